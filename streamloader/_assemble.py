"""Turns the bytes of one batch into a filled slot; runs in the decode workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader._boxes import fixed_boxes, listed_boxes
from streamloader._fields import INDEX, SOURCE, VALID, BatchFields
from streamloader._routing import TABLE_SUFFIX, EngineWork, FieldRoute, Router
from streamloader.decode import (
    AbortWord,
    AppliedCrops,
    Decoder,
    Joint,
    MaskDecoder,
    Share,
    decode_jointly,
)
from streamloader.dts import Field, copy_rows
from streamloader.dts.values import decode
from streamloader.errors import ShardError
from streamloader.fetch import BAD_LENGTH, Arena, Fetched
from streamloader.order import BatchRows, Mixture, share_rows
from streamloader.transfer import Slot


@dataclass(frozen=True, slots=True)
class Recipe:
    """What stays the same for all batches of an epoch.

    Attributes:
        decoder: None if pictures stay bytes.
        mixture: there if the samples are those of several data sets.
        router: there if engines of the GPU decode some of the pictures.
        mask_decoder: there if the transform is a ``Joint``; follows from the decoder.
    """

    fields: BatchFields
    decoder: Decoder | None
    arena: Arena
    workers: int
    batch_size: int
    seed: int
    epoch: int
    mixture: Mixture | None = None
    router: Router | None = None
    mask_decoder: MaskDecoder | None = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        masks, decoder = None, self.decoder
        if decoder is not None and isinstance(decoder.transform, Joint):
            dtype = decoder.transform.mask_dtype
            masks = MaskDecoder(decoder.height, decoder.width, dtype, decoder.limits)
        object.__setattr__(self, "mask_decoder", masks)


@dataclass(slots=True)
class Filled:
    """A batch whose slot is full.

    Attributes:
        samples: the rows' numbers in the data set, or through those of a mixture, int64 [b].
        variable: values of the variable fields, one per row.
        faults: reasons of its bad rows.
        engine: what engines of the GPU have still to decode, if they are used.
        mapped: what the user's code made of the batch; the slot is then no part of it.
    """

    slot: Slot
    plan: BatchRows
    samples: npt.NDArray[np.int64]
    variable: dict[str, Any]
    faults: dict[int, str]
    engine: EngineWork | None = None
    mapped: dict[str, Any] | None = None


class AssembleJob:
    """One batch as a job of the worker pool: one share per seat.

    Args:
        on_done: gets the filled batch, in the thread that finished the last share.
        on_failure: gets an exception that is not the fault of a sample's content.
    """

    def __init__(
        self,
        recipe: Recipe,
        fetched: Fetched,
        slot: Slot,
        *,
        abort: AbortWord,
        on_done: Callable[[Filled], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._recipe = recipe
        self._fetched = fetched
        self._slot = slot
        self._abort = abort
        self._on_done = on_done
        self._on_failure = on_failure
        self._views = slot.views
        self._draws = draws(recipe.mixture, fetched.samples, fetched.plan)
        self._variable: dict[str, list[Any]] = {
            f.name: [None] * len(fetched.rows) for f in recipe.fields.listed
        }
        self._crops = AppliedCrops.empty(recipe.batch_size if recipe.mask_decoder else 0)
        self._routes: dict[str, FieldRoute] = self._choose_routes()
        self.num_shares = self._choose_num_shares()
        self._faults: list[dict[int, str]] = [{} for _ in range(self.num_shares)]

    def run(self, share_no: int) -> None:
        recipe, plan = self._recipe, self._fetched.plan
        if share_no == 0:
            self._fill_columns()
        seat = share_rows(plan.number, recipe.batch_size, self.num_shares, share_no)
        places = np.arange(len(plan.samples), dtype=np.int64)[seat]
        places = self._without_known_faults(places, share_no)
        if not len(places):
            return
        for field in recipe.fields.arrays:
            self._copy_array(field, places)
        if recipe.mask_decoder is not None:
            self._decode_jointly(recipe.mask_decoder, places, self._faults[share_no])
        else:
            for field in recipe.fields.pictures:
                self._decode(field, places, self._faults[share_no])
        for field in recipe.fields.variable:
            self._read_values(field, places, self._faults[share_no])

    def done(self) -> None:
        faults: dict[int, str] = {}
        for part in self._faults:
            faults.update(part)
        fetched = self._fetched
        work = self._engine_work(faults) if self._routes else None
        if work is None:
            fetched.release()
        self._on_done(
            Filled(self._slot, fetched.plan, fetched.samples, self._variable, faults, work)
        )

    def _choose_routes(self) -> dict[str, FieldRoute]:
        recipe, fetched = self._recipe, self._fetched
        if recipe.router is None or recipe.decoder is None:
            return {}
        return {
            field.name: recipe.router.route(field, fetched.rows, self._draws, recipe.decoder)
            for field in recipe.fields.pictures
        }

    def _choose_num_shares(self) -> int:
        """One a worker, but fewer where engines leave the workers little to decode."""
        workers = self._recipe.workers
        if not self._routes:
            return workers
        rows = max(route.staging.num_staged for route in self._routes.values())
        return max(1, min(workers, -(-rows * workers // self._recipe.batch_size)))

    def _engine_work(self, faults: dict[int, str]) -> EngineWork:
        """What the engines have to do; adds the faults that planning it finds."""
        batches = {}
        for field in self._recipe.fields.pictures:
            batches[field.name], found = self._routes[field.name].finish(
                self._views[field.name + TABLE_SUFFIX], partial(self._share, field), faults
            )
            faults.update(found)

        def redo() -> dict[int, str]:
            found: dict[int, str] = {}
            for field in self._recipe.fields.pictures:
                table = self._views[field.name + TABLE_SUFFIX]
                share = self._share(field, batches[field.name].rows)
                found |= self._routes[field.name].redo(table, share)
            return found

        return EngineWork(
            batches,
            dict.fromkeys(batches, self._recipe.arena.array),
            {name: route.staging for name, route in self._routes.items()},
            redo,
            self._fetched.release,
        )

    def failed(self, error: BaseException) -> None:
        self._on_failure(error)

    def _fill_columns(self) -> None:
        plan, rows = self._fetched.plan, self._fetched.rows
        count = len(rows)
        samples, mixture = self._fetched.samples, self._recipe.mixture
        if mixture is not None:
            source = mixture.source_of(samples)
            samples = samples - mixture.first_samples[source]
            self._views[SOURCE][:count] = source
        elif self._recipe.fields.mixed:
            self._views[SOURCE][:count] = 0
        self._views[INDEX][:count] = samples
        self._views[VALID][:count] = plan.valid
        for field in self._recipe.fields.columns:
            self._views[field.name][:count] = rows[field.name]

    def _without_known_faults(
        self, places: npt.NDArray[np.int64], share_no: int
    ) -> npt.NDArray[np.int64]:
        known = self._fetched.faults
        if not known:
            return places
        bad = [place for place in places.tolist() if place in known]
        self._faults[share_no].update({place: known[place] for place in bad})
        return places[~np.isin(places, bad)]

    def _copy_array(self, field: Field, places: npt.NDArray[np.int64]) -> None:
        offsets = self._fetched.rows[f"{field.name}@offset"][places]
        copy_rows(self._recipe.arena.array, offsets, self._views[field.name], places)

    def _decode(self, field: Field, places: npt.NDArray[np.int64], faults: dict[int, str]) -> None:
        assert self._recipe.decoder is not None
        route = self._routes.get(field.name)
        if route is not None:
            faults.update(route.decode(self._share(field, route.for_cpu(places))))
            return
        for fault in self._recipe.decoder.decode(self._share(field, places)):
            faults[fault.row] = f"field {field.name!r}: {fault.reason}"

    def _share(self, field: Field, places: npt.NDArray[np.int64]) -> Share:
        rows = self._fetched.rows
        return Share(
            data=self._recipe.arena.array,
            offsets=rows[f"{field.name}@offset"][places],
            lengths=rows[f"{field.name}@length"][places],
            samples=self._draws[places],
            rows=places,
            out=self._views[field.name],
            seed=self._recipe.seed,
            epoch=self._recipe.epoch,
            abort=self._abort,
        )

    def _decode_jointly(
        self, mask_decoder: MaskDecoder, places: npt.NDArray[np.int64], faults: dict[int, str]
    ) -> None:
        fields, decoder = self._recipe.fields, self._recipe.decoder
        assert decoder is not None
        found = decode_jointly(
            {field.name: self._share(field, places) for field in fields.pictures},
            {field.name: self._share(field, places) for field in fields.masks},
            self._crops,
            picture_decoder=decoder,
            mask_decoder=mask_decoder,
        )
        faults.update(found)
        places = places[~np.isin(places, list(found))]
        if self._abort.is_set() or not len(places):
            return
        rows, memory = self._fetched.rows, self._recipe.arena.array
        size = (decoder.height, decoder.width)
        for field in fields.boxes:
            if not field.is_variable:
                boxes = fixed_boxes(field, rows, memory, places, self._crops, size)
                self._views[field.name][places] = boxes
                continue
            listed, wrong = listed_boxes(field, rows, memory, places, self._crops, size)
            for place, moved in listed.items():
                self._variable[field.name][place] = moved
            for place, reason in wrong.items():
                faults.setdefault(place, reason)

    def _read_values(
        self, field: Field, places: npt.NDArray[np.int64], faults: dict[int, str]
    ) -> None:
        values = self._variable[field.name]
        rows = self._fetched.rows
        offsets = rows[f"{field.name}@offset"][places].tolist()
        lengths = rows[f"{field.name}@length"][places].tolist()
        memory = self._recipe.arena.array.data
        for place, offset, length in zip(places.tolist(), offsets, lengths, strict=True):
            if length == BAD_LENGTH:
                continue
            try:
                value = decode(field, memory[offset : offset + length], "", 0)
            except ShardError as error:
                faults[place] = error.reason
                continue
            # An array looks into the arena, whose memory is used again for other samples.
            values[place] = value.copy() if isinstance(value, np.ndarray) else value


def host_fields(
    fields: BatchFields, arrays: dict[str, npt.NDArray[Any]], variable: dict[str, Any]
) -> dict[str, Any]:
    """Fields of a batch from the arrays of its slot; pictures as [B, 3, H, W] views."""
    pictures = {field.name for field in fields.pictures}
    batch: dict[str, Any] = {
        name: array.transpose(0, 3, 1, 2) if name in pictures else array
        for name, array in arrays.items()
    }
    return batch | variable


def draws(
    mixture: Mixture | None, samples: npt.NDArray[np.int64], plan: BatchRows
) -> npt.NDArray[np.int64]:
    """What random crops of a batch are keyed with, int64 [b]: the samples, told apart by pass."""
    return samples if mixture is None else mixture.draws(samples, plan.repeat)


def stand_in(filled: Filled, fields: BatchFields) -> None:
    """Fills each bad row with the nearest good one and clears its ``valid``.

    The nearest lower good row is taken, else the nearest higher, else zeros; ``index`` (and
    ``source``) keep the number of the bad sample.
    """
    # Staged pictures lie in an order of their own; which one a row has, its table says.
    routed = () if filled.engine is None else tuple(filled.engine.batches)
    views = filled.slot.views
    kept = (*fields.numbering, *routed)
    count = len(filled.plan.samples)
    good = [row for row in range(count) if row not in filled.faults]
    for row in filled.faults:
        lower = [other for other in good if other < row]
        source = lower[-1] if lower else (good[0] if good else None)
        for name, view in views.items():
            if name in kept:
                continue
            view[row] = view[source] if source is not None else 0
        for values in filled.variable.values():
            values[row] = values[source] if source is not None else None
        views[VALID][row] = False
