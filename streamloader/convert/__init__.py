"""From raw pictures to a published data set, and a look at what was published."""

from streamloader.convert.append import append
from streamloader.convert.clean import CleanReport, clean
from streamloader.convert.conversion import convert
from streamloader.convert.describe import Description, PictureSizes, describe
from streamloader.convert.difference import Difference, compare
from streamloader.convert.faults import Fault, VerifyReport
from streamloader.convert.options import ConvertOptions, CutOptions
from streamloader.convert.picture_options import PictureOptions
from streamloader.convert.report import (
    ConvertReport,
    Progress,
    Rejected,
    RejectedError,
    RejectKind,
)
from streamloader.convert.samples import StoredSample, read_samples, spread_samples
from streamloader.convert.sheet import draw_sheet
from streamloader.convert.sources import SOURCE_KINDS
from streamloader.convert.verify import verify
from streamloader.convert.writer import DatasetWriter

__all__ = [
    "SOURCE_KINDS",
    "CleanReport",
    "ConvertOptions",
    "ConvertReport",
    "CutOptions",
    "DatasetWriter",
    "Description",
    "Difference",
    "Fault",
    "PictureOptions",
    "PictureSizes",
    "Progress",
    "RejectKind",
    "Rejected",
    "RejectedError",
    "StoredSample",
    "VerifyReport",
    "append",
    "clean",
    "compare",
    "convert",
    "describe",
    "draw_sheet",
    "read_samples",
    "spread_samples",
    "verify",
]
