"""Free ports of loopback for a server of several services."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence

from streamloader.errors import ConfigError

_FIRST_PORT, _LAST_PORT = 20_000, 45_000


def free_ports(names: Sequence[str], host: str, twin_offset: int) -> dict[str, int]:
    """One free port per name.

    Args:
        names: of the services.
        host: address to bind.
        twin_offset: the port so far above each is free as well.

    Raises:
        ConfigError: there are not enough.
    """
    ports: dict[str, int] = {}
    candidates = list(range(_FIRST_PORT, _LAST_PORT))
    secrets.SystemRandom().shuffle(candidates)
    free = (p for p in candidates if _is_free(host, p) and _is_free(host, p + twin_offset))
    for name in names:
        port = next(free, None)
        if port is None:
            raise ConfigError(
                f"no free port between {_FIRST_PORT} and {_LAST_PORT} on {host}; "
                "end some of the programs that listen there"
            )
        ports[name] = port
    return ports


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
