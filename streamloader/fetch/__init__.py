"""Prefetching: the bytes of coming samples, in order of need, within a bound of memory."""

from streamloader.fetch.arena import Arena
from streamloader.fetch.budget import (
    MemoryPlan,
    Reading,
    divide_among,
    divide_memory,
    limit_tails,
    open_block_bytes,
    plan_memory,
)
from streamloader.fetch.cache import BlockCache, CacheOptions
from streamloader.fetch.cancel import all_or_cancel
from streamloader.fetch.catalog import Catalog, read_manifest
from streamloader.fetch.loop import LoopThread, Running
from streamloader.fetch.prefetcher import Fetched, Prefetcher
from streamloader.fetch.rows import BAD_LENGTH, RowLayout
from streamloader.fetch.sources import Sources

__all__ = [
    "BAD_LENGTH",
    "Arena",
    "BlockCache",
    "CacheOptions",
    "Catalog",
    "Fetched",
    "LoopThread",
    "MemoryPlan",
    "Prefetcher",
    "Reading",
    "RowLayout",
    "Running",
    "Sources",
    "all_or_cancel",
    "divide_among",
    "divide_memory",
    "limit_tails",
    "open_block_bytes",
    "plan_memory",
    "read_manifest",
]
