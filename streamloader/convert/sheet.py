"""Draws a contact sheet: what is in a data set, at one look."""

from __future__ import annotations

import math
from collections.abc import Sequence

from PIL import Image, ImageDraw

from streamloader.convert.samples import StoredSample
from streamloader.decode import PictureFault, decode_picture

TILE_PIXELS = 160
_CAPTION_PIXELS = 16
_GAP_PIXELS = 4
_CAPTION_CHARACTERS = 26
_BACKGROUND, _INK, _FAULT_INK = (24, 24, 24), (230, 230, 230), (255, 96, 96)


def draw_sheet(samples: Sequence[StoredSample], field: str) -> Image.Image:
    """Draw a square-ish grid of pictures with their numbers and classes.

    Args:
        samples: at least one.
        field: name of the picture field.
    """
    columns = math.ceil(math.sqrt(len(samples)))
    rows = math.ceil(len(samples) / columns)
    step_x, step_y = TILE_PIXELS + _GAP_PIXELS, TILE_PIXELS + _CAPTION_PIXELS + _GAP_PIXELS
    size = (columns * step_x + _GAP_PIXELS, rows * step_y + _GAP_PIXELS)
    sheet = Image.new("RGB", size, _BACKGROUND)
    for place, sample in enumerate(samples):
        row, column = divmod(place, columns)
        _draw_tile(sheet, sample, field, _GAP_PIXELS + column * step_x, _GAP_PIXELS + row * step_y)
    return sheet


def _draw_tile(sheet: Image.Image, sample: StoredSample, field: str, x: int, y: int) -> None:
    draw = ImageDraw.Draw(sheet)
    try:
        tile = Image.fromarray(decode_picture(sample.record[field]))
    except PictureFault:
        draw.text((x + 4, y + TILE_PIXELS // 2), "cannot be decoded", fill=_FAULT_INK)
    else:
        tile.thumbnail((TILE_PIXELS, TILE_PIXELS))
        left, top = (TILE_PIXELS - tile.width) // 2, (TILE_PIXELS - tile.height) // 2
        sheet.paste(tile, (x + left, y + top))
    name = sample.class_name
    caption = f"{sample.number}" if name is None else f"{sample.number} {name}"
    # Pillow's own font knows Latin-1 only.
    text = caption[:_CAPTION_CHARACTERS].encode("latin-1", "replace").decode("latin-1")
    draw.text((x, y + TILE_PIXELS + 2), text, fill=_INK)
