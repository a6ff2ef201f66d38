"""Compressed pictures for the GPU's engines that lie in the batch's slot, not in the blocks.

The blocks are in the memory of the feed process; the slots are in the memory of both.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader._routing import TABLE_SUFFIX, EngineWork, Staging
from streamloader.decode import Decoder, Share
from streamloader.decode.gpu import EngineBatch
from streamloader.dts import Field, copy_values
from streamloader.transfer import FieldSpec, Slot

CARRIED_SUFFIX = "@jpeg"
"""Of the hidden slot field with the compressed pictures of the engines, one a row."""

Bytes = npt.NDArray[np.uint8]


def carried_spec(picture: Field, room_bytes: int) -> FieldSpec:
    """The slot field of a picture field's compressed pictures."""
    return FieldSpec(picture.name + CARRIED_SUFFIX, "uint8", (room_bytes,))


@dataclass(frozen=True, slots=True)
class Carried:
    """What another process needs to know of the pictures that engines have to decode.

    Attributes:
        batches: by picture field; offsets count from the field's carried pictures.
        num_staged: by picture field, pictures that the CPU has decoded.
    """

    batches: dict[str, EngineBatch]
    num_staged: dict[str, int]


def carry(work: EngineWork, views: Mapping[str, npt.NDArray[Any]]) -> Carried:
    """Copies the engines' pictures into the slot, and ends the work's hold on the blocks."""
    batches = {}
    for name, batch in work.batches.items():
        room = views[name + CARRIED_SUFFIX]
        lengths = batch.lengths.astype(np.int64)
        copy_values(work.memories[name], batch.offsets, lengths, room, batch.rows)
        batches[name] = dataclasses.replace(batch, offsets=batch.rows * room.shape[1])
    work.release()
    staged = {name: staging.num_staged for name, staging in work.stagings.items()}
    return Carried(batches, staged)


def received_work(
    carried: Carried,
    slot: Slot,
    samples: npt.NDArray[np.int64],
    decoder: Decoder,
    *,
    seed: int,
    epoch: int,
) -> EngineWork:
    """The work for the engines of this process, in a slot that another one filled.

    Args:
        samples: int64 [b], what random crops of the batch are keyed with.
        decoder: for what the engines refuse.
        seed, epoch: key the random crops.
    """
    views = slot.views
    stagings = {
        name: Staging(name, len(samples), begun) for name, begun in carried.num_staged.items()
    }

    def redo() -> dict[int, str]:
        found: dict[int, str] = {}
        for name, batch in carried.batches.items():
            share = Share(
                data=_flat(views, name),
                offsets=batch.offsets,
                lengths=batch.lengths.astype(np.int64),
                samples=samples[batch.rows],
                rows=batch.rows,
                out=views[name],
                seed=seed,
                epoch=epoch,
            )
            found |= stagings[name].redo(views[name + TABLE_SUFFIX], decoder, share)
        return found

    memories = {name: _flat(views, name) for name in carried.batches}
    return EngineWork(carried.batches, memories, stagings, redo, release=lambda: None)


def _flat(views: Mapping[str, npt.NDArray[Any]], name: str) -> Bytes:
    flat: Bytes = views[name + CARRIED_SUFFIX].reshape(-1)
    return flat
