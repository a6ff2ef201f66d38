"""Exceptions that cross from the feed process to the trainer's."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from streamloader.errors import StreamLoaderError


class FeedDied(StreamLoaderError):
    """The feed process ended again and again; the message has its last words."""


@dataclass(frozen=True, slots=True)
class SentError:
    """An exception on its way: notes travel apart, since classes that pickle themselves drop them.

    Attributes:
        error: itself if it survives the way, else one with its words.
        notes: that it had.
    """

    error: BaseException
    notes: tuple[str, ...]

    @staticmethod
    def of(error: BaseException) -> SentError:
        notes = tuple(getattr(error, "__notes__", ()))
        try:
            copy = pickle.loads(pickle.dumps(error))
        except Exception:  # noqa: BLE001 - anything may be wrong with a foreign exception class
            copy = None
        if type(copy) is type(error) and str(copy) == str(error):
            return SentError(error, notes)
        return SentError(StreamLoaderError(f"{type(error).__name__}: {error}"), notes)

    def received(self) -> BaseException:
        """The exception with its notes."""
        missing = [n for n in self.notes if n not in getattr(self.error, "__notes__", ())]
        for note in missing:
            self.error.add_note(note)
        return self.error
