"""Compressed pictures to pixels in a batch: transform specs, decoders and the worker pool.

Knows nothing of storage, ranks or whose memory it writes to.
"""

from streamloader.decode.boxes import move_boxes
from streamloader.decode.choosing import (
    check_picture,
    decode_picture,
    native_is_built,
    open_decoder,
)
from streamloader.decode.crops import AppliedCrops, CropPlan, plan_crops
from streamloader.decode.decoder import Decoder
from streamloader.decode.faults import PictureFault, RowFault
from streamloader.decode.joint import decode_jointly
from streamloader.decode.limits import MAX_PIXELS, MAX_SCANS, PictureLimits
from streamloader.decode.mask import MaskDecoder
from streamloader.decode.native_decoder import NativeDecoder
from streamloader.decode.pillow_decoder import PillowDecoder
from streamloader.decode.pixel_format import PixelFormat
from streamloader.decode.share import AbortFlag, AbortWord, Share
from streamloader.decode.specs import (
    CenterCrop,
    Compose,
    Joint,
    RandomResizedCrop,
    Resize,
    Transform,
    output_size,
)
from streamloader.decode.worker_pool import PoolJob, WorkerPool

__all__ = [
    "MAX_PIXELS",
    "MAX_SCANS",
    "AbortFlag",
    "AbortWord",
    "AppliedCrops",
    "CenterCrop",
    "Compose",
    "CropPlan",
    "Decoder",
    "Joint",
    "MaskDecoder",
    "NativeDecoder",
    "PictureFault",
    "PictureLimits",
    "PillowDecoder",
    "PixelFormat",
    "PoolJob",
    "RandomResizedCrop",
    "Resize",
    "RowFault",
    "Share",
    "Transform",
    "WorkerPool",
    "check_picture",
    "decode_jointly",
    "decode_picture",
    "move_boxes",
    "native_is_built",
    "open_decoder",
    "output_size",
    "plan_crops",
]
