"""Counts what a conversion has done, and stops it when too much was rejected."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from streamloader.convert.report import Progress, Rejected, RejectedError, utf8_name

ProgressCallback = Callable[[Progress], None]


class Tally:
    """Samples done and rejected, of all shards together; used from one thread.

    Args:
        total_samples: samples of the source.
        total_bytes: bytes of the source.
        max_rejects: bad samples that are tolerated; None for any number.
        progress: called after every change.
    """

    def __init__(
        self,
        total_samples: int,
        total_bytes: int,
        max_rejects: int | None,
        progress: ProgressCallback | None = None,
    ) -> None:
        self._done = Progress(0, total_samples, 0, total_bytes)
        self._max_rejects = max_rejects
        self._progress = progress
        self.rejects: list[Rejected] = []
        self.bytes_in = 0

    def add(
        self,
        *,
        samples: int = 0,
        bytes_seen: int = 0,
        bytes_in: int = 0,
        rejects: Iterable[Rejected] = (),
    ) -> None:
        """Count samples that were looked at.

        Args:
            samples: how many, rejected ones included.
            bytes_seen: their bytes in the source.
            bytes_in: bytes of those that are stored.
            rejects: those that are not.

        Raises:
            RejectedError: these are more than allowed.
        """
        self.rejects.extend(rejects)
        self.bytes_in += bytes_in
        self._check()
        self._done = Progress(
            self._done.samples + samples,
            self._done.total_samples,
            self._done.bytes_in + bytes_seen,
            self._done.total_bytes,
        )
        if self._progress is not None:
            self._progress(self._done)

    def _check(self) -> None:
        if self._max_rejects is not None and len(self.rejects) > self._max_rejects:
            last = self.rejects[-1]
            raise RejectedError(
                f"more than {self._max_rejects} bad files, nothing was published; the last was"
                f" {utf8_name(last.path)}: {last.reason}",
                self.rejects,
            )
