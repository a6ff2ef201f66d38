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

_ROOM_FOR_MEANS = 2
_LEAST_ROOM_BYTES = 64 << 10

Int64s = npt.NDArray[np.int64]


def table_spec(picture: Field) -> FieldSpec:
    """The slot field of a picture field's table, rows of ``ROW_DTYPE``."""
    return FieldSpec(picture.name + TABLE_SUFFIX, "int32", (TABLE_WORDS,))


def room_for_picture(mean_bytes: float, batch_size: int, limit_bytes: int) -> int:
    """Bytes that a compressed picture for the engines may have: longer ones are left to the CPU.

    Engines may get the pictures of a batch in memory of a fixed size. Which pictures they get must
    not follow from what else is in the batch, so the room of each is the same.

    Args:
        mean_bytes: of a sample as it is stored.
        batch_size: pictures of a batch.
        limit_bytes: that the pictures of one batch may take.
    """
    wanted = max(_ROOM_FOR_MEANS * mean_bytes, _LEAST_ROOM_BYTES)
    return max(int(min(wanted, limit_bytes / batch_size)) // 256, 1) * 256


@dataclass(frozen=True, slots=True)
class Router:
    """Divides pictures between the engines and the CPU.

    Attributes:
        share: of the pictures that the engines can decode, how many they get.
        room_bytes: a picture that is longer as it is stored is left to the CPU.
        slab_bytes: a picture that is larger when decoded is left to the CPU.
        counters: told the number of pictures that no engine decodes as
            ``decode.pictures_not_for_engine``, and of those that an engine could but for their
            header as ``decode.pictures_of_odd_header``.
    """

    share: float
    room_bytes: int
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
            rows[f"{field.name}@length"].astype(np.int64),
            share=self.share,
            max_pixels=decoder.limits.max_pixels,
            max_bytes=self.room_bytes,
            slab_bytes=self.slab_bytes,
        )
        self.counters.add("decode.pictures_not_for_engine", int(np.count_nonzero(unable)))
        return FieldRoute(self, field, rows, engine, decoder)


class Staging:
    """Pictures of one field of a batch that the CPU decodes for the GPU.

    They are staged one after the other in the slot, at places numbered from 0, so that only they
    cross the bus.

    Args:
        field: their name.
        num_rows: of the batch.
        begun: places that are taken already.
    """

    def __init__(self, field: str, num_rows: int, begun: int = 0) -> None:
        self.num_staged = begun
        self._field = field
        self._place_of = np.full(num_rows, -1, np.int64)

    def add(self, rows: Int64s) -> None:
        """Gives the pictures of ``rows`` the next places."""
        self._place_of[rows] = self.num_staged + np.arange(len(rows))
        self.num_staged += len(rows)

    def write(self, entries: npt.NDArray[np.void], rows: Int64s) -> None:
        """Writes the places of ``rows`` into the batch's table."""
        stage_rows(entries, rows, self._place_of[rows])

    def decode(self, decoder: Decoder, share: Share) -> dict[int, str]:
        """Decodes staged pictures; reasons by row of the batch for those at fault.

        Args:
            share: its rows are rows of the batch, its batch holds the staged pictures.
        """
        places = self._place_of[share.rows]
        row_at = dict(zip(places.tolist(), share.rows.tolist(), strict=True))
        return {
            row_at[fault.row]: f"field {self._field!r}: {fault.reason}"
            for fault in decoder.decode(share.at_rows(places))
        }

    def redo(self, table: npt.NDArray[np.int32], decoder: Decoder, share: Share) -> dict[int, str]:
        """Decodes by the CPU, after all, what the engines refused; reasons of bad rows."""
        self.add(share.rows)
        found = self.decode(decoder, share)
        entries = table.reshape(-1).view(ROW_DTYPE)
        entries[share.rows] = np.zeros((), ROW_DTYPE)
        self.write(entries, share.rows[~np.isin(share.rows, list(found))])
        return found


class FieldRoute:
    """The pictures of one field of one batch.

    Attributes:
        staging: of those that the CPU decodes.
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
        self.staging = Staging(field.name, len(rows))
        self.staging.add(np.flatnonzero(~engine))

    def for_cpu(self, rows: Int64s) -> Int64s:
        """Those of ``rows`` that decode workers decode."""
        return rows[~self._engine[rows]]

    def decode(self, share: Share) -> dict[int, str]:
        """As of ``Staging.decode``."""
        return self.staging.decode(self._decoder, share)

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
        self.staging.write(entries, np.flatnonzero(~self._engine & good))
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
        """As of ``Staging.redo``."""
        return self.staging.redo(table, self._decoder, share)

    def _take_over(self, share: Share) -> dict[int, str]:
        if not len(share.rows):
            return {}
        self._engine[share.rows] = False
        self.staging.add(share.rows)
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
        memories: by picture field, uint8 [n] that the offsets of its batch count from.
        stagings: by picture field, of the pictures that the CPU decodes.
        redo: decodes all of it by the CPU into the slot instead, when the engines refuse;
            reasons by row of the batch for bad pictures.
        release: to be called once the compressed bytes are no longer needed.
    """

    batches: dict[str, EngineBatch]
    memories: dict[str, npt.NDArray[np.uint8]]
    stagings: dict[str, Staging]
    redo: Callable[[], dict[int, str]]
    release: Callable[[], None]
