"""What of a loader's state says how pictures are decoded."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamloader.decode.gpu import check_share
from streamloader.errors import ConfigError

logger = logging.getLogger("streamloader.loader")


@dataclass(frozen=True, slots=True)
class DecodeState:
    """Which decoders a run uses. Others give the same crops, and pixels that differ by rounding.

    Args:
        path: the decoders, such as "native"; "" if the state does not say.
        gpu_share: of the JPEGs that the GPU's engines can decode, how many they get; None if they
            are not used.
    """

    path: str
    gpu_share: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return {"decode_path": self.path, "gpu_decode_share": self.gpu_share}

    @staticmethod
    def parse(state: Mapping[str, Any]) -> DecodeState:
        """Reads what ``to_dict`` gave; a state without it says nothing.

        Raises:
            ConfigError: a value has a wrong type or range.
        """
        path, share = state.get("decode_path", ""), state.get("gpu_decode_share")
        if not isinstance(path, str):
            raise ConfigError(f"state field 'decode_path' must be a string, got {path!r}")
        return DecodeState(path, None if share is None else check_share(share))

    def warn_if_other(self, now: DecodeState) -> None:
        """Logs a warning if the run goes on with other decoders than this saved one."""
        if self.path and self != now:
            logger.warning(
                "the state was saved by a run that decoded with %s, this loader decodes with %s:"
                " crops are the same, pixels may differ by rounding",
                self._words(),
                now._words(),
            )

    def _words(self) -> str:
        if self.gpu_share is None:
            return self.path
        return f"{self.path} (gpu_decode_share={self.gpu_share:g})"
