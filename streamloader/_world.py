"""Which rank this process is: arguments first, then torch.distributed, then the launcher.

Nothing is initialised and no collective is called; the environment is read here only, and
at the moment the loader asks.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from streamloader.errors import ConfigError

logger = logging.getLogger(__name__)

_LOCAL_RANK_NAMES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
_LOCAL_SIZE_NAMES = (
    "LOCAL_WORLD_SIZE",
    "SLURM_NTASKS_PER_NODE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)


@dataclass(frozen=True, slots=True)
class World:
    """Rank and world size of this process, over all nodes and on its node."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def detect_world(
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    local_world_size: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> World:
    """Finds the world of this process.

    Raises:
        ConfigError: values that contradict each other, or only one of rank and world size.
    """
    env = os.environ if environ is None else environ
    if (rank is None) != (world_size is None):
        raise ConfigError("rank and world_size go together: give both or neither")
    if rank is None or world_size is None:
        rank, world_size = _distributed() or _launched(env) or (0, 1)
    if world_size < 1 or not 0 <= rank < world_size:
        raise ConfigError(f"rank must lie in [0, world_size), got {rank} of {world_size}")
    if local_rank is None:
        local_rank = _first_int(env, _LOCAL_RANK_NAMES, default=0)
    if local_world_size is None:
        local_world_size = _first_int(env, _LOCAL_SIZE_NAMES, default=0)
        if not local_world_size:
            local_world_size = 1
            if world_size > 1:
                logger.warning(
                    "world_size is %d but nothing says how many ranks share this node:"
                    " num_workers is not divided; pass local_world_size",
                    world_size,
                )
    if local_world_size < 1:
        raise ConfigError(f"local_world_size must be at least 1, got {local_world_size}")
    return World(rank, world_size, local_rank, local_world_size)


def _distributed() -> tuple[int, int] | None:
    """Rank and world size from torch.distributed, if it is loaded and initialised."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module.get_rank(), module.get_world_size()


def _launched(env: Mapping[str, str]) -> tuple[int, int] | None:
    if "RANK" not in env and "WORLD_SIZE" not in env:
        return None
    if "RANK" not in env or "WORLD_SIZE" not in env:
        raise ConfigError("the environment has only one of RANK and WORLD_SIZE: set both")
    return _int(env, "RANK"), _int(env, "WORLD_SIZE")


def _first_int(env: Mapping[str, str], names: tuple[str, ...], default: int) -> int:
    for name in names:
        if name in env:
            return _int(env, name)
    return default


def _int(env: Mapping[str, str], name: str) -> int:
    try:
        return int(env[name])
    except ValueError:
        raise ConfigError(
            f"environment variable {name} must be a number, got {env[name]!r}"
        ) from None
