"""JPEG decode on the GPU's own engines, and the kernels that make batches of what they give."""

from streamloader.decode.gpu.fused import RowMaker
from streamloader.decode.gpu.gpu_decoder import SLAB_BYTES, GpuDecoder
from streamloader.decode.gpu.headers import is_engine_kind, sound_headers
from streamloader.decode.gpu.nvjpeg import Nvjpeg, NvjpegError
from streamloader.decode.gpu.paced import PacedEngine
from streamloader.decode.gpu.planning import plan_pictures
from streamloader.decode.gpu.route import (
    ROW_DTYPE,
    TABLE_WORDS,
    EngineBatch,
    check_share,
    choose_engine_rows,
    plan_engine_batch,
    stage_rows,
)

__all__ = [
    "ROW_DTYPE",
    "SLAB_BYTES",
    "TABLE_WORDS",
    "EngineBatch",
    "GpuDecoder",
    "Nvjpeg",
    "NvjpegError",
    "PacedEngine",
    "RowMaker",
    "check_share",
    "choose_engine_rows",
    "is_engine_kind",
    "plan_engine_batch",
    "plan_pictures",
    "sound_headers",
    "stage_rows",
]
