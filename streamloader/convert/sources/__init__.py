"""What can be converted: each kind of source in a file of its own, behind one contract."""

from streamloader.convert.sources.opening import SOURCE_KINDS, SourceChoice, open_source
from streamloader.convert.sources.source import (
    Int64Array,
    Listing,
    ReadPacked,
    ReadSamples,
    Record,
    Source,
    SplitListing,
)

__all__ = [
    "SOURCE_KINDS",
    "Int64Array",
    "Listing",
    "ReadPacked",
    "ReadSamples",
    "Record",
    "Source",
    "SourceChoice",
    "SplitListing",
    "open_source",
]
