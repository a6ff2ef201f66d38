"""What belongs to the process that made it: threads and children do not come along into a fork."""

from __future__ import annotations

import os

from streamloader.errors import ConfigError


class OwnProcess:
    """Base of an engine; remembers the process that made it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_forked(self) -> bool:
        """Whether this process is a fork of the one that made it."""
        return os.getpid() != self._process

    def refuse_fork(self) -> None:
        """Raises ConfigError in a forked process."""
        if self.is_forked:
            raise ConfigError(
                f"this loader belongs to process {self._process}, whose threads did not come along"
                f" into the forked process {os.getpid()}: make a loader there"
            )
