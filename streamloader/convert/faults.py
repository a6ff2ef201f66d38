"""What ``verify`` reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from streamloader.errors import ShardError

JSON_FAULTS = 1000


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong in a data set.

    Args:
        shard: file it is in.
        reason: what is wrong.
        sample: number of the sample in its split, if one sample is concerned.
        offset: byte offset in the file, if known.
    """

    shard: str
    reason: str
    sample: int | None = None
    offset: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fault as JSON values."""
        return {
            "shard": self.shard,
            "sample": self.sample,
            "offset": self.offset,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What ``verify`` looked at and found.

    Args:
        url: the data set.
        samples: samples whose records were read and checked.
        shards: shards that the manifest names.
        bytes: bytes read.
        faults: in the order of the shards and their samples.
        seconds: wall time.
    """

    url: str
    samples: int
    shards: int
    bytes: int
    faults: tuple[Fault, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.faults

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; of the faults the first 1,000."""
        return {
            "url": self.url,
            "ok": self.ok,
            "samples": self.samples,
            "shards": self.shards,
            "bytes": self.bytes,
            "errors": [fault.to_json() for fault in self.faults[:JSON_FAULTS]],
            "errors_total": len(self.faults),
            "seconds": self.seconds,
        }


def fault_of(error: ShardError) -> Fault:
    """Return what the format's reader refused, as a fault."""
    return Fault(error.shard, error.reason, offset=error.offset)
