"""Prefetching: the bytes of coming samples, in order of need, within a bound of memory."""

from streamloader.fetch.arena import Arena
from streamloader.fetch.budget import MemoryPlan, divide_memory, open_block_bytes, plan_memory
from streamloader.fetch.cache import BlockCache, CacheOptions
from streamloader.fetch.cancel import all_or_cancel
from streamloader.fetch.catalog import Catalog, read_manifest
from streamloader.fetch.loop import LoopThread, Running
from streamloader.fetch.prefetcher import Fetched, Prefetcher
from streamloader.fetch.rows import BAD_LENGTH, RowLayout

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
    "RowLayout",
    "Running",
    "all_or_cancel",
    "divide_memory",
    "open_block_bytes",
    "plan_memory",
    "read_manifest",
]
