"""What a conversion did, and which files it left out."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from streamloader.errors import StreamLoaderError

REJECTS_NAME = "rejects.jsonl"
JSON_REJECTS = 1000


class RejectKind(Enum):
    """Why a file is not in the data set; only ``BAD`` counts towards ``max_rejects``."""

    BAD = "bad"
    OTHER = "other"
    HIDDEN = "hidden"


_KIND_ORDER = {RejectKind.BAD: 0, RejectKind.OTHER: 1, RejectKind.HIDDEN: 2}


@dataclass(frozen=True, slots=True)
class Rejected:
    """One sample, file or folder that was left out.

    Args:
        path: relative to the source, as the file system gives it (surrogateescape); for samples
            that are no files, their key.
        reason: what it is, or what is wrong with it.
        kind: a bad sample, another file, or a hidden one.
    """

    path: str
    reason: str
    kind: RejectKind = RejectKind.BAD

    def to_json(self) -> dict[str, str]:
        """Return path and reason; bytes of the name that are not UTF-8 appear as ``\\xNN``."""
        return {"path": utf8_name(self.path), "reason": self.reason}


class RejectedError(StreamLoaderError):
    """Too many files were rejected, so nothing was published.

    Args:
        message: one sentence.
        rejected: the files that were rejected until then.
    """

    def __init__(self, message: str, rejected: Iterable[Rejected]) -> None:
        super().__init__(message)
        self.rejected = sort_rejects(rejected)

    def to_json(self) -> dict[str, Any]:
        """Return the rejects as JSON values, the first 1,000 of them."""
        return _rejects_json(self.rejected)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a conversion is, in samples and in bytes of the source."""

    samples: int
    total_samples: int
    bytes_in: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What one conversion did.

    Args:
        url: where the data set is.
        samples: samples stored.
        shards: shards published.
        bytes_in: bytes of the stored source files.
        bytes_out: bytes of all shards.
        rejected: everything that was left out, bad pictures first, each kind by path.
        seconds: wall time.
        classes: class names by label; empty for a flat source.
        splits: samples by split; empty without splits.
        block_samples: samples per block.
        fingerprint: SHA-256 of the manifest, in hex.
        warnings: sentences for the user.
        resumed_shards: shards that an earlier run had stored.
        revision: of the data set, 1 for a new one.
        total_samples: samples of the data set, with those of earlier revisions.
        requests: to the destination, repeated ones included.
        retries: requests to the destination that were repeated.
    """

    url: str
    samples: int
    shards: int
    bytes_in: int
    bytes_out: int
    rejected: tuple[Rejected, ...]
    seconds: float
    classes: tuple[str, ...]
    splits: dict[str, int]
    block_samples: int
    fingerprint: str
    warnings: tuple[str, ...]
    resumed_shards: int = 0
    revision: int = 1
    total_samples: int = 0
    requests: int = 0
    retries: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values; of ``rejected`` the first 1,000."""
        return {
            "url": self.url,
            "samples": self.samples,
            "shards": self.shards,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            **_rejects_json(self.rejected),
            "seconds": self.seconds,
            "classes": list(self.classes),
            "splits": self.splits,
            "block_samples": self.block_samples,
            "fingerprint": self.fingerprint,
            "warnings": list(self.warnings),
            "resumed_shards": self.resumed_shards,
            "revision": self.revision,
            "total_samples": self.total_samples,
            "requests": self.requests,
            "retries": self.retries,
        }


def sort_rejects(rejects: Iterable[Rejected]) -> tuple[Rejected, ...]:
    """Order rejects: bad pictures, other files, hidden ones; each by code points of the path."""
    return tuple(sorted(rejects, key=lambda r: (_KIND_ORDER[r.kind], r.path)))


def _rejects_json(rejects: Sequence[Rejected]) -> dict[str, Any]:
    return {
        "rejected": [reject.to_json() for reject in rejects[:JSON_REJECTS]],
        "rejected_total": len(rejects),
    }


def rejects_jsonl(rejects: Iterable[Rejected]) -> bytes:
    """Return one JSON object a line, ASCII only, so that any tool and terminal reads it."""
    lines = (json.dumps(reject.to_json(), sort_keys=True) + "\n" for reject in rejects)
    return "".join(lines).encode("ascii")


def utf8_name(name: str) -> str:
    """Return a file name as text that UTF-8 can hold.

    Names that are UTF-8 come back unchanged. In any other, each undecodable byte becomes
    ``\\xNN``.
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")
