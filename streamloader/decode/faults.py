"""What is wrong with a picture, told to whoever asked for it."""

from __future__ import annotations

from dataclasses import dataclass

from streamloader.errors import StreamLoaderError


class PictureFault(StreamLoaderError):
    """One picture whose bytes cannot be decoded.

    Args:
        reason: the true format and what is wrong with it, in a few words.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row of a batch whose picture could not be decoded; the row holds zeros.

    Args:
        row: of the batch.
        sample: the picture's number in the data set.
        reason: the true format and what is wrong with it.
    """

    row: int
    sample: int
    reason: str
