"""Box fields of a batch: read as they are stored, moved with the crop of their picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from streamloader.decode import AppliedCrops, move_boxes
from streamloader.decode.specs import Size
from streamloader.dts import Field, bf16_to_float32, copy_rows
from streamloader.dts.values import decode
from streamloader.errors import ShardError

_NUMBERS_PER_BOX = 4

Places = npt.NDArray[np.int64]


def fixed_boxes(
    field: Field,
    rows: npt.NDArray[np.void],
    memory: npt.NDArray[np.uint8],
    places: Places,
    crops: AppliedCrops,
    size: Size,
) -> npt.NDArray[np.float32]:
    """Boxes of a field of fixed shape [..., 4], for the rows at ``places``, n of them.

    Args:
        field: of a float type.
        rows: of the batch, of the catalog's ``RowLayout`` dtype.
        memory: where the offsets of ``rows`` lead.
        places: rows of the batch.
        crops: of the batch.
        size: (height, width) of the output in pixels.

    Returns:
        float32 [n, ..., 4], in pixels of the output.
    """
    if field.is_column:
        stored = rows[field.name][places]
    else:
        stored = np.empty((len(places), *field.shape), field.dtype)
        copy_rows(memory, rows[f"{field.name}@offset"][places], stored, None)
    values = bf16_to_float32(stored) if field.type == "bf16" else stored
    boxes = values.reshape(-1, _NUMBERS_PER_BOX)
    owners = np.repeat(places, len(boxes) // len(places))
    return move_boxes(boxes, owners, crops, *size).reshape(len(places), *field.shape)


def listed_boxes(
    field: Field,
    rows: npt.NDArray[np.void],
    memory: npt.NDArray[np.uint8],
    places: Places,
    crops: AppliedCrops,
    size: Size,
) -> tuple[dict[int, npt.NDArray[np.float32]], dict[int, str]]:
    """Boxes of a field of shape [-1], for the rows at ``places``; arguments as above.

    Returns:
        By row: float32 [n, 4] in pixels of the output, or what is wrong with the stored values.
    """
    stored: dict[int, npt.NDArray[Any]] = {}
    faults: dict[int, str] = {}
    for place in places.tolist():
        offset, length = (int(rows[f"{field.name}@{end}"][place]) for end in ("offset", "length"))
        try:
            values = decode(field, memory.data[offset : offset + length], "", 0)
        except ShardError as error:
            faults[place] = error.reason
            continue
        if len(values) % _NUMBERS_PER_BOX:
            faults[place] = (
                f"field {field.name!r}: {len(values)} numbers, which are no boxes of four: write"
                " x0, y0, x1, y1 for each"
            )
        else:
            stored[place] = values.reshape(-1, _NUMBERS_PER_BOX)
    if not stored:
        return {}, faults
    counts = [len(boxes) for boxes in stored.values()]
    owners = np.repeat(np.array(list(stored), np.int64), counts)
    moved = move_boxes(np.concatenate(list(stored.values())), owners, crops, *size)
    parts = np.split(moved, np.cumsum(counts)[:-1])
    return dict(zip(stored, parts, strict=True)), faults
