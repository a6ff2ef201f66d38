"""What stands behind the one call that decodes a worker's share of a batch."""

from __future__ import annotations

from typing import Protocol

from streamloader.decode.faults import RowFault
from streamloader.decode.limits import PictureLimits
from streamloader.decode.share import Share
from streamloader.decode.specs import Transform


class Decoder(Protocol):
    """Fills rows of batches; any number of threads may call it at once."""

    @property
    def name(self) -> str:
        """ "native" or "pillow", for reports."""
        ...

    @property
    def transform(self) -> Transform:
        """What is done to each picture."""
        ...

    @property
    def limits(self) -> PictureLimits:
        """A picture beyond them is a fault."""
        ...

    @property
    def height(self) -> int:
        """Of each picture in the batch, in pixels."""
        ...

    @property
    def width(self) -> int:
        """Of each picture in the batch, in pixels."""
        ...

    def decode(self, share: Share) -> list[RowFault]:
        """Fills the share's rows of ``share.out``.

        The call looks at ``share.abort`` before each picture; after an abort the remaining rows
        are as they were.

        Returns:
            The pictures that could not be decoded, whose rows are now zero.

        Raises:
            ConfigError: ``share.out`` is not what the transform and the pixel format fill.
            MemoryError: no memory for a picture within the limits.
        """
        ...
