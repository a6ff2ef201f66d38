"""What a run saves to continue its order: a few numbers, whatever the size of the data set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from streamloader.errors import ConfigError, StateMismatch
from streamloader.order.arrived import Arrived
from streamloader.order.gaps import Gaps
from streamloader.order.mixture_state import mixture_difference
from streamloader.order.plan import LAST_BATCH_RULES
from streamloader.order.spec import ORDER_VERSION, SHUFFLE_MODES, checked_int

_MODES = ("deterministic", "arrival")
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
    "version": "order rule version",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderState:
    """A place in the order of a run.

    Nothing of it depends on ranks, batch size or workers, but for ``arrived``.

    Raises:
        ConfigError: a field has the wrong type or range; the message names it.
    """

    fingerprint: str
    """Digest of the data set's manifest."""

    epoch: int
    position: int
    """Positions of the epoch's global order that the consumers took; what was prefetched counts
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

    gaps: Gaps | None = None
    """What an earlier part of the epoch left open; it comes before the rest."""

    arrived: Arrived | None = None
    """What this rank took out of turn, by arrival; None where ``position`` says it all."""

    mode: str = "deterministic"
    """How batches were made: ``"deterministic"``, or by ``"arrival"``."""

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
        object.__setattr__(self, "gaps", Gaps.parse(self.gaps))
        object.__setattr__(self, "arrived", Arrived.parse(self.arrived))

    def to_dict(self) -> dict[str, Any]:
        """The state as a dict of strings, integers, None and dicts of these, ready for JSON."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["gaps"] = self.gaps and self.gaps.to_dict()
        values["arrived"] = self.arrived and self.arrived.to_dict()
        return values

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
        differing = [name for name in _CONTINUED if getattr(self, name) != getattr(other, name)]
        if "mixture" in differing and "fingerprint" in differing:
            differing.remove("fingerprint")  # that of a mixture is made of its data sets'
        differences = [self._difference(name, other) for name in differing]
        if differences:
            raise StateMismatch(
                f"the saved state cannot continue here: {'; '.join(differences)}; "
                "make these equal, or start without the state"
            )

    def check_fits(self, num_samples: int) -> None:
        """Make sure that the state names nothing beyond the end of an epoch of ``num_samples``.

        Raises:
            ConfigError: it does.
        """
        reached = {"position": self.position, "gaps": self.gaps.end if self.gaps else 0}
        arrived = self.arrived
        if arrived is not None:
            global_batch = arrived.batch_size * arrived.world_size
            batches = -(-max(0, num_samples - arrived.start) // global_batch)
            over = arrived.end > batches * arrived.batch_size
            reached["arrived"] = num_samples + 1 if over else arrived.start
        for name, place in reached.items():
            if place > num_samples:
                raise ConfigError(
                    f"state field {name!r} lies beyond the {num_samples} samples of the epoch:"
                    f" {getattr(self, name)}"
                )

    def _difference(self, name: str, other: LoaderState) -> str:
        if name == "mixture":
            return mixture_difference(self.mixture, other.mixture)
        saved, current = getattr(self, name), getattr(other, name)
        return f"its {_CONTINUED[name]} is {saved!r}, the loader's is {current!r}"

    def _set(self, name: str, value: int) -> None:
        object.__setattr__(self, name, value)
