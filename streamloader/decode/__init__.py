"""Compressed pictures to pixels in a batch: transform specs, decoders and the worker pool.

Knows nothing of storage, ranks or whose memory it writes to.
"""

from streamloader.decode.crops import CropPlan, plan_crops
from streamloader.decode.faults import PictureFault, RowFault
from streamloader.decode.picture import MAX_PIXELS, decode_picture
from streamloader.decode.pillow_decoder import PillowDecoder
from streamloader.decode.pixel_format import PixelFormat
from streamloader.decode.share import AbortFlag, Share
from streamloader.decode.specs import (
    CenterCrop,
    Compose,
    RandomResizedCrop,
    Resize,
    Transform,
    output_size,
)
from streamloader.decode.worker_pool import PoolJob, WorkerPool

__all__ = [
    "MAX_PIXELS",
    "AbortFlag",
    "CenterCrop",
    "Compose",
    "CropPlan",
    "PictureFault",
    "PillowDecoder",
    "PixelFormat",
    "PoolJob",
    "RandomResizedCrop",
    "Resize",
    "RowFault",
    "Share",
    "Transform",
    "WorkerPool",
    "decode_picture",
    "output_size",
    "plan_crops",
]
