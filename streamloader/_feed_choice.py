"""Whether reading and decoding can move into a process of their own, and whether they do."""

from __future__ import annotations

import dataclasses
import logging
import pickle

from streamloader._settings import Feed, Settings
from streamloader.errors import ConfigError

logger = logging.getLogger("streamloader.loader")


def choose_feed(settings: Settings, gpu: int | None) -> Settings:
    """The settings with a feed chosen: a process for a GPU, if what is to go there can."""
    if settings.feed != "auto":
        return settings
    feed: Feed = "thread" if gpu is None else "process"
    if feed == "process":
        try:
            check_can_move(settings)
        except ConfigError as reason:
            logger.info("feed='auto' chose threads: %s", reason)
            feed = "thread"
    return dataclasses.replace(settings, feed=feed)


def check_can_move(settings: Settings) -> None:
    """Raises ConfigError for what another process cannot be given."""
    code = settings.user_code
    for name in ("map", "collate", "batch_map"):
        function = getattr(code, name)
        if function is not None and getattr(function, "__module__", None) == "__main__":
            raise ConfigError(
                f"feed='process' imports {name}= in another process, and {function!r} stands in the"
                " main script: move it into a module"
            )
    try:
        pickle.dumps(settings)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ConfigError(
            "feed='process' hands transform, map, collate, batch_map and storage_options to another"
            f" process: use functions and classes of a module ({error})"
        ) from error
