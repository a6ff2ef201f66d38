"""Who does the work of a conversion: this process, or the machines of a cluster."""

from streamloader.convert.engines.engine import Engine, Job
from streamloader.convert.engines.local import LocalEngine
from streamloader.errors import ConfigError

__all__ = ["ENGINES", "Engine", "Job", "LocalEngine", "open_engine"]

ENGINES = ("local", "ray")


def open_engine(name: str, num_threads: int) -> Engine:
    """Return the engine of this name.

    Args:
        name: one of ``ENGINES``.
        num_threads: threads that read and decode, of each process that works.

    Raises:
        ConfigError: no such engine, or its package is not installed.
    """
    if name == "local":
        return LocalEngine(num_threads)
    if name == "ray":
        from streamloader.convert.engines.ray import RayEngine

        return RayEngine(num_threads)
    raise ConfigError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
