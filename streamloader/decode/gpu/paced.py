"""The JPEG engines with or without the library's own pipeline, whichever suits the moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from streamloader.decode.gpu.gpu_decoder import JpegEngine
from streamloader.decode.gpu.nvjpeg import Nvjpeg

#: From the first share of the time in the engines on, they are what everything else waits for, and
#: below the second they are not. It is a mean over about so many calls: more than a consumer that
#: has stopped leaves room for.
_BUSY_SHARE, _IDLE_SHARE = 0.75, 0.5
_MEAN_CALLS = 16
#: Calls after which the slower way is tried again, for a few calls.
_CALLS_BETWEEN_TRIALS = 256
_TRIAL_CALLS = 6
_WEIGHT_OF_NEW = 0.25
_NEVER = float("inf")


class NamedEngine(JpegEngine, Protocol):
    """See ``Nvjpeg``."""

    @property
    def version(self) -> str: ...


class PacedEngine:
    """Decodes without a pipeline, as a training step beside it needs, unless it is what limits.

    While the engines are busy nearly all of the time, calls with the pipeline are tried now and
    then, and the way that takes less time for each picture is kept. Both give the same pixels.

    Args:
        open_engine: makes an engine, given whether it is ``pipelined``; the second one is made
            when it is first tried.
        now_s: a clock.
    """

    def __init__(
        self,
        open_engine: Callable[[bool], NamedEngine] = lambda pipelined: Nvjpeg(pipelined=pipelined),
        now_s: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._open_engine = open_engine
        self._now_s = now_s
        self._engines: dict[bool, NamedEngine] = {False: open_engine(False)}
        self._picture_s: dict[bool, float] = {}
        self._ended_s = 0.0
        self._unused = {False}
        self._busy_s = self._whole_s = 0.0
        self._limits = False
        self._calls_to_trial = 0
        self._trial_calls = 0
        self._trial = False

    @property
    def version(self) -> str:
        """Of the library."""
        return self._engines[False].version

    def decode(
        self,
        addresses: npt.NDArray[np.uint64],
        lengths: npt.NDArray[np.uint64],
        images: npt.NDArray[np.void],
        stream: int,
    ) -> None:
        """As of ``Nvjpeg``."""
        started_s = self._now_s()
        pipelined = self._choose()
        self._engine(pipelined).decode(addresses, lengths, images, stream)
        self._note(pipelined, len(addresses), started_s)

    def _choose(self) -> bool:
        """Whether the next call is pipelined."""
        if not self._limits:
            self._trial_calls = 0
            return False
        if not self._trial_calls:
            faster = self._picture_s.get(True, _NEVER) < self._picture_s.get(False, _NEVER)
            self._calls_to_trial -= 1
            if self._calls_to_trial >= 0:
                return faster
            self._calls_to_trial = _CALLS_BETWEEN_TRIALS
            self._trial_calls, self._trial = _TRIAL_CALLS, not faster
            # What it took long ago says nothing.
            self._picture_s.pop(self._trial, None)
        self._trial_calls -= 1
        return self._trial

    def _engine(self, pipelined: bool) -> NamedEngine:
        engine = self._engines.get(pipelined)
        if engine is None:
            engine = self._engines[pipelined] = self._open_engine(pipelined)
            # The first call of an engine prepares it, and says nothing of the others.
            self._unused.add(pipelined)
        return engine

    def _note(self, pipelined: bool, count: int, started_s: float) -> None:
        ended_s = self._now_s()
        taken_s = ended_s - started_s
        # Before the first call the engines were idle.
        since_s = ended_s - self._ended_s if self._whole_s else _MEAN_CALLS * taken_s
        self._ended_s = ended_s
        kept = 1 - 1 / _MEAN_CALLS
        self._busy_s = kept * self._busy_s + taken_s
        self._whole_s = kept * self._whole_s + since_s
        share = self._busy_s / (self._whole_s or 1.0)
        self._limits = share >= (_IDLE_SHARE if self._limits else _BUSY_SHARE)
        if pipelined in self._unused:
            self._unused.remove(pipelined)
            return
        before_s = self._picture_s.get(pipelined, taken_s / count)
        self._picture_s[pipelined] = before_s + _WEIGHT_OF_NEW * (taken_s / count - before_s)

    def close(self) -> None:
        """Frees both. May be called twice."""
        for engine in self._engines.values():
            engine.close()
