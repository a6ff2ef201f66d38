"""One self-contained HTML page of a demo run: facts, loss curve, stage times, training crops."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from string import Template

import numpy as np
import numpy.typing as npt
from PIL import Image

CURVE_WIDTH, CURVE_HEIGHT, CURVE_MARGIN = 720, 240, 40
SHEET_COLUMNS = 12
SHEET_GAP_PX = 4
PERCENTILES = ("p50", "p95", "p99", "max")

_PAGE = Template(
    """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
  :root { color-scheme: light dark; }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; }
  body { padding: 0 1rem; }
  table { border-collapse: collapse; }
  td, th { padding: .2rem 1.2rem .2rem 0; text-align: left; border-bottom: 1px solid #8884; }
  td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
  svg, img { max-width: 100%; height: auto; }
  svg text { font-size: 12px; fill: currentColor; }
</style>
<h1>$title</h1>
<table>$facts</table>
<h2>Loss</h2>
$curve
<h2>Where the time went</h2>
<p>Milliseconds per event; stages overlap.</p>
<table>$stages</table>
<h2>What the model saw first</h2>
$sheet
</html>
"""
)


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Times of one stage of the loader, in milliseconds."""

    name: str
    count: int
    p50: float
    p95: float
    p99: float
    max: float


def render_page(
    title: str,
    *,
    facts: Mapping[str, str],
    losses: Sequence[float],
    restart_step: int,
    stages: Iterable[StageTimes],
    crops: npt.NDArray[np.uint8],
) -> str:
    """Return the page; ``crops`` is uint8 [n, H, W, 3]."""
    rows = (f"<tr><th>{escape(k)}</th><td>{escape(v)}</td></tr>" for k, v in facts.items())
    return _PAGE.substitute(
        title=escape(title),
        facts="".join(rows),
        curve=loss_curve(losses, restart_step),
        stages=_stage_rows(stages),
        sheet=_sheet_image(crops),
    )


def loss_curve(losses: Sequence[float], restart_step: int) -> str:
    """Return an SVG of the loss by step, with a dashed line where the run was restarted."""
    right, floor = CURVE_WIDTH - CURVE_MARGIN, CURVE_HEIGHT - CURVE_MARGIN
    left = CURVE_MARGIN - 6
    top_loss = max(losses, default=0.0) or 1.0
    steps = max(1, len(losses) - 1)

    def x_of(step: float) -> float:
        return CURVE_MARGIN + step / steps * (right - CURVE_MARGIN)

    def y_of(loss: float) -> float:
        return floor - loss / top_loss * (floor - CURVE_MARGIN)

    points = " ".join(f"{x_of(i):.1f},{y_of(loss):.1f}" for i, loss in enumerate(losses))
    cut = f"{x_of(restart_step - 0.5):.1f}"
    return (
        f'<svg viewBox="0 0 {CURVE_WIDTH} {CURVE_HEIGHT}" role="img" aria-label="loss by step">'
        f'<path d="M{CURVE_MARGIN},{CURVE_MARGIN}V{floor}H{right}" fill="none" stroke="#888"/>'
        f'<line x1="{cut}" x2="{cut}" y1="{CURVE_MARGIN}" y2="{floor}" stroke="#888"'
        ' stroke-dasharray="4"/>'
        f'<text x="{cut}" y="{CURVE_MARGIN - 8}" text-anchor="middle">restart</text>'
        f'<polyline points="{points}" fill="none" stroke="#2a7de1" stroke-width="1.5"/>'
        f'<text x="{left}" y="{CURVE_MARGIN + 4}" text-anchor="end">{top_loss:.1f}</text>'
        f'<text x="{left}" y="{floor}" text-anchor="end">0</text>'
        f'<text x="{right}" y="{floor + 18}" text-anchor="end">step {len(losses)}</text>'
        "</svg>"
    )


def _stage_rows(stages: Iterable[StageTimes]) -> str:
    heads = "".join(f'<th class="number">{name}</th>' for name in ("count", *PERCENTILES))
    rows = [f"<tr><th>stage</th>{heads}</tr>"]
    for stage in stages:
        times = (f'<td class="number">{getattr(stage, p):.2f}</td>' for p in PERCENTILES)
        count = f'<td class="number">{stage.count}</td>'
        rows.append(f"<tr><td>{escape(stage.name)}</td>{count}{''.join(times)}</tr>")
    return "".join(rows)


def contact_sheet(crops: npt.NDArray[np.uint8]) -> Image.Image:
    """Lay uint8 [n, H, W, 3] pictures out in rows of twelve."""
    count, height, width, _ = crops.shape
    rows = -(-count // SHEET_COLUMNS)
    step_x, step_y = width + SHEET_GAP_PX, height + SHEET_GAP_PX
    sheet = Image.new("RGB", (SHEET_COLUMNS * step_x, rows * step_y), "white")
    for place, crop in enumerate(crops):
        row, column = divmod(place, SHEET_COLUMNS)
        sheet.paste(Image.fromarray(crop), (column * step_x, row * step_y))
    return sheet


def _sheet_image(crops: npt.NDArray[np.uint8]) -> str:
    encoded = io.BytesIO()
    contact_sheet(crops).save(encoded, "JPEG", quality=90)
    data = base64.b64encode(encoded.getvalue()).decode("ascii")
    return f'<img alt="{len(crops)} training crops" src="data:image/jpeg;base64,{data}">'
