from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
from PIL import Image

from streamloader.cli.demo.report import StageTimes, contact_sheet, loss_curve, render_page


def _page(**changes) -> str:
    content = {
        "facts": {"data set": "s3://a/<b>&c"},
        "losses": [2.0, 1.0, 0.5],
        "restart_step": 2,
        "stages": [StageTimes("decode", 7, 1.0, 2.0, 3.0, 4.25)],
        "crops": np.full((13, 8, 8, 3), 200, np.uint8),
    }
    return render_page("demo", **{**content, **changes})


def test_page_needs_nothing_from_elsewhere() -> None:
    links: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            links.extend(value or "" for name, value in attrs if name in {"src", "href"})

    Links().feed(_page())
    assert len(links) == 1
    assert links[0].startswith("data:image/jpeg;base64,")


def test_text_from_outside_is_escaped() -> None:
    page = _page()
    assert "s3://a/&lt;b&gt;&amp;c" in page
    assert "<b>" not in page


def test_stage_times_stand_in_the_table() -> None:
    assert re.search(r"<td>decode</td><td [^>]*>7</td>.*>4\.25</td>", _page())


def test_curve_has_a_point_per_step_and_the_restart_between_two() -> None:
    svg = ElementTree.fromstring(loss_curve([2.0, 1.0, 0.5], 2))
    line = next(e for e in svg.iter() if e.tag.endswith("polyline"))
    points = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
    assert len(points) == 3
    heights = [y for _, y in points]
    assert heights == sorted(heights)
    restart = float(next(e for e in svg.iter() if e.tag.endswith("line")).attrib["x1"])
    assert points[1][0] < restart < points[2][0]


def test_curve_of_a_loss_of_zero_is_drawn() -> None:
    assert "nan" not in loss_curve([0.0], 1)


def test_sheet_shows_every_crop_in_rows_of_twelve() -> None:
    crops = np.zeros((13, 8, 10, 3), np.uint8)
    crops[12] = (255, 0, 0)
    sheet = contact_sheet(crops)
    assert sheet.size == (12 * 14, 2 * 12)
    assert sheet.getpixel((2, 14)) == (255, 0, 0)
    data = re.search(r"base64,([^\"]+)", _page(crops=crops))
    assert data is not None
    assert Image.open(io.BytesIO(base64.b64decode(data.group(1)))).size == sheet.size
