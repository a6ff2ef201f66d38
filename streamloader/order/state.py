"""What a run saves to continue its order: a few numbers, whatever the size of the data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamloader.errors import ConfigError, StateMismatch
from streamloader.order.plan import LAST_BATCH_RULES
from streamloader.order.spec import ORDER_VERSION, SHUFFLE_MODES, checked_int

_MODES = ("deterministic",)
_U64_MAX = (1 << 64) - 1

# What must be equal to continue the same global sequence, and the words for it in messages.
_CONTINUED = {
    "fingerprint": "data set fingerprint",
    "split": "split",
    "subset": "subset",
    "mixture": "mixture",
    "epoch_size": "epoch size",
    "seed": "seed",
    "shuffle": "shuffle",
    "lanes": "lanes",
    "window": "window",
    "mode": "mode",
    "version": "order rule version",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """A place in the order of a run; nothing of it depends on ranks, batch size or workers.

    Raises:
        ConfigError: a field has the wrong type or range; the message names it.
    """

    fingerprint: str
    """Digest of the data set's manifest."""

    epoch: int
    position: int
    """Positions of the epoch's global order that the consumer took; what was prefetched counts
    not."""

    seed: int
    lanes: int
    window: int
    shuffle: str
    last_batch: str = "pad"
    split: str | None = None
    subset: str | None = None
    """Says which part of the samples is used; None for all."""

    mixture: str | None = None
    """Says which data sets are mixed, and how; None for one data set."""

    epoch_size: int | None = None
    """Samples of an epoch where they were set by hand; None for all of the data set."""

    skipped: int = 0
    """Bad samples skipped in this epoch so far."""

    skipped_digest: str = ""
    """Digest of their numbers."""

    mode: str = "deterministic"
    version: int = ORDER_VERSION
    """Version of the rules that the position belongs to."""

    def __post_init__(self) -> None:
        for name, low, high in (
            ("version", 1, _U64_MAX),
            ("epoch", 0, _U64_MAX),
            ("position", 0, _U64_MAX),
            ("seed", 0, _U64_MAX),
            ("lanes", 1, _U64_MAX),
            ("window", 1, _U64_MAX),
            ("skipped", 0, _U64_MAX),
        ):
            self._set(name, checked_int(f"state field {name!r}", getattr(self, name), low, high))
        if self.epoch_size is not None:
            size = checked_int("state field 'epoch_size'", self.epoch_size, 1, _U64_MAX)
            self._set("epoch_size", size)
        for name in ("fingerprint", "skipped_digest"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(
                    f"state field {name!r} must be a string, got {getattr(self, name)!r}"
                )
        for name in ("split", "subset", "mixture"):
            if not isinstance(getattr(self, name), (str, type(None))):
                raise ConfigError(
                    f"state field {name!r} must be a string or null, got {getattr(self, name)!r}"
                )
        for name, choices in (
            ("shuffle", SHUFFLE_MODES),
            ("last_batch", LAST_BATCH_RULES),
            ("mode", _MODES),
        ):
            if getattr(self, name) not in choices:
                raise ConfigError(
                    f"state field {name!r} must be one of {choices}, got {getattr(self, name)!r}"
                )

    def to_dict(self) -> dict[str, Any]:
        """The state as a flat dict of strings, integers and None, ready for JSON."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def parse(cls, values: object) -> LoaderState:
        """Read what ``to_dict`` gave; keys that are not of this class are left to their owners.

        Raises:
            StateMismatch: the state was written under another version of the order rules.
            ConfigError: it is no mapping, a key is missing, or a value has a wrong type or range.
        """
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"a loader state must be a dict from state_dict(), got {type(values).__name__}"
            )
        names = [field.name for field in dataclasses.fields(cls)]
        missing = [name for name in names if name not in values]
        if "version" not in missing and values["version"] != ORDER_VERSION:
            raise StateMismatch(
                f"the state was saved under order rule version {values['version']!r}, this "
                f"streamloader has version {ORDER_VERSION}; load it with the release that saved it"
            )
        if missing:
            raise ConfigError(
                f"the loader state lacks {', '.join(missing)}; pass a whole dict from state_dict()"
            )
        return cls(**{name: values[name] for name in names})

    def check_continues(self, other: LoaderState) -> None:
        """Make sure that this saved state can continue in the loader that ``other`` describes.

        Ranks, batch size, workers and the last-batch rule may differ: the global order is the same.

        Args:
            other: state of the loader as it is configured now.

        Raises:
            StateMismatch: the global order would be another one; the message names everything that
                differs.
        """
        differences = [
            f"its {words} is {getattr(self, name)!r}, the loader's is {getattr(other, name)!r}"
            for name, words in _CONTINUED.items()
            if getattr(self, name) != getattr(other, name)
        ]
        if differences:
            raise StateMismatch(
                f"the saved state cannot continue here: {'; '.join(differences)}; "
                "make these equal, or start without the state"
            )

    def _set(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value)
