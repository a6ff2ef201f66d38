"""Which pictures of a batch the GPU's engines decode, and what is left to the decode workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.decode import Decoder, Share
from streamloader.decode.gpu import (
    ROW_DTYPE,
    TABLE_WORDS,
    EngineBatch,
    choose_engine_rows,
    plan_engine_batch,
    plan_pictures,
    stage_rows,
)
from streamloader.dts import Field
from streamloader.monitor import Counters
from streamloader.transfer import FieldSpec

TABLE_SUFFIX = "@rows"
"""Of the hidden slot field that says where the GPU finds the picture of each row."""

Int64s = npt.NDArray[np.int64]


def table_spec(picture: Field) -> FieldSpec:
    """The slot field of a picture field's table, rows of ``ROW_DTYPE``."""
    return FieldSpec(picture.name + TABLE_SUFFIX, "int32", (TABLE_WORDS,))


@dataclass(frozen=True, slots=True)
class Router:
    """Divides pictures between the engines and the CPU.

    Attributes:
        share: of the pictures that the engines can decode, how many they get.
        slab_bytes: a picture that is larger when decoded is left to the CPU.
        counters: told the number of pictures that no engine decodes as
            ``decode.pictures_not_for_engine``, and of those that an engine could but for their
            header as ``decode.pictures_of_odd_header``.
    """

    share: float
    slab_bytes: int
    counters: Counters

    def route(
        self, field: Field, rows: npt.NDArray[np.void], samples: Int64s, decoder: Decoder
    ) -> FieldRoute:
        """The way of each picture of ``field`` in a batch with these rows."""
        widths, heights = (
            rows[f"{field.name}.{side}"].astype(np.int64) for side in ("width", "height")
        )
        engine, unable = choose_engine_rows(
            rows[f"{field.name}.kind"],
            widths,
            heights,
            samples,
            share=self.share,
            max_pixels=decoder.limits.max_pixels,
            slab_bytes=self.slab_bytes,
        )
        self.counters.add("decode.pictures_not_for_engine", int(np.count_nonzero(unable)))
        return FieldRoute(self, field, rows, engine, decoder)


class FieldRoute:
    """The pictures of one field of one batch.

    Pictures that the CPU decodes are staged one after the other in the slot, at places numbered
    from 0, so that only they cross the bus.

    Attributes:
        num_staged: places taken so far.
    """

    def __init__(
        self,
        router: Router,
        field: Field,
        rows: npt.NDArray[np.void],
        engine: npt.NDArray[np.bool_],
        decoder: Decoder,
    ) -> None:
        self._router = router
        self._field = field
        self._rows = rows
        self._engine = engine
        self._decoder = decoder
        self._place_of = np.full(len(rows), -1, np.int64)
        self._row_at: Int64s = np.empty(0, np.int64)
        self._stage(np.flatnonzero(~engine))

    @property
    def num_staged(self) -> int:
        return len(self._row_at)

    def _stage(self, rows: Int64s) -> None:
        self._place_of[rows] = len(self._row_at) + np.arange(len(rows))
        self._row_at = np.concatenate([self._row_at, rows])

    def for_cpu(self, rows: Int64s) -> Int64s:
        """Those of ``rows`` that decode workers decode."""
        return rows[~self._engine[rows]]

    def decode(self, share: Share) -> dict[int, str]:
        """Decodes staged pictures; reasons by row of the batch for those at fault.

        Args:
            share: its rows are rows of the batch, its batch holds the staged pictures.
        """
        staged = share.at_rows(self._place_of[share.rows])
        return {
            int(self._row_at[fault.row]): f"field {self._field.name!r}: {fault.reason}"
            for fault in self._decoder.decode(staged)
        }

    def finish(
        self,
        table: npt.NDArray[np.int32],
        share_of: Callable[[Int64s], Share],
        faults: Mapping[int, str],
    ) -> tuple[EngineBatch, dict[int, str]]:
        """Writes the table of the batch, once the decode workers are done.

        Pictures whose header is not what their columns say are decoded here, by the CPU.

        Args:
            table: int32 [B, 16].
            share_of: the share of these rows of the batch.
            faults: rows that are bad already; they get no picture.

        Returns:
            What is left to the engines, and the reasons of further bad rows.
        """
        entries = table.reshape(-1).view(ROW_DTYPE)
        entries[...] = np.zeros((), ROW_DTYPE)
        good = np.ones(len(self._rows), np.bool_)
        good[list(faults)] = False
        rows = np.flatnonzero(self._engine & good)
        share = share_of(rows)
        columns = self._columns(rows)
        sound, crops = plan_pictures(self._decoder.transform, share, *columns)
        found = self._take_over(share.part(np.flatnonzero(~sound)))
        self._router.counters.add("decode.pictures_of_odd_header", int(np.count_nonzero(~sound)))
        good[list(found)] = False
        staged = np.flatnonzero(~self._engine & good)
        stage_rows(entries, staged, self._place_of[staged])
        kept = np.flatnonzero(sound)
        share = share.part(kept)
        widths, heights = columns[0][kept], columns[1][kept]
        batch = plan_engine_batch(
            entries,
            share.rows,
            share.offsets,
            share.lengths,
            widths,
            heights,
            crops,
            slab_bytes=self._router.slab_bytes,
        )
        return batch, found

    def redo(self, table: npt.NDArray[np.int32], share: Share) -> dict[int, str]:
        """Decodes by the CPU, after all, what the engines refused; reasons of bad rows."""
        found = self._take_over(share)
        good = share.rows[~np.isin(share.rows, list(found))]
        entries = table.reshape(-1).view(ROW_DTYPE)
        entries[share.rows] = np.zeros((), ROW_DTYPE)
        stage_rows(entries, good, self._place_of[good])
        return found

    def _take_over(self, share: Share) -> dict[int, str]:
        if not len(share.rows):
            return {}
        self._engine[share.rows] = False
        self._stage(share.rows)
        return self.decode(share)

    def _columns(self, rows: Int64s) -> tuple[Int64s, Int64s, npt.NDArray[Any]]:
        """Widths, heights and kinds of the pictures of ``rows``."""
        values = self._rows[rows]
        name = self._field.name
        widths = values[f"{name}.width"].astype(np.int64)
        return widths, values[f"{name}.height"].astype(np.int64), values[f"{name}.kind"]


@dataclass(slots=True)
class EngineWork:
    """What is left of a filled batch for the thread that drives the engines.

    Attributes:
        batches: by picture field.
        num_staged: by picture field, staged pictures so far.
        redo: decodes all of it by the CPU into the slot instead, when the engines refuse;
            reasons by row of the batch for bad pictures.
        release: to be called once the compressed bytes are no longer needed.
    """

    batches: dict[str, EngineBatch]
    num_staged: Callable[[str], int]
    redo: Callable[[], dict[int, str]]
    release: Callable[[], None]
