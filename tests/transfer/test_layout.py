"""Slot layout: nothing overlaps, nothing moves that need not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloader.errors import ConfigError
from streamloader.transfer import FieldSpec, SlotLayout

shapes = st.lists(st.integers(1, 9), max_size=3).map(tuple)
dtypes = st.sampled_from(["bool", "uint8", "int16", "float32", "int64", "complex128"])
field_lists = st.lists(st.tuples(dtypes, shapes), min_size=1, max_size=6).map(
    lambda kinds: [FieldSpec(f"f{n}", dtype, shape) for n, (dtype, shape) in enumerate(kinds)]
)
layouts = st.builds(SlotLayout.build, field_lists, st.integers(1, 40))


@given(layouts)
def test_regions_are_aligned_and_never_closer_than_the_guard(layout: SlotLayout) -> None:
    end = None
    for region in layout.regions:
        assert region.offset % 256 == 0
        assert end is None or region.offset >= end + 16
        end = region.end
    assert end is not None
    assert layout.nbytes >= end + 16
    assert layout.stride_bytes % 4096 == 0
    assert 0 <= layout.stride_bytes - layout.nbytes < 4096


@given(layouts)
def test_the_field_with_the_largest_rows_comes_last(layout: SlotLayout) -> None:
    sizes = [region.field.row_bytes for region in layout.regions]
    assert sizes == sorted(sizes)


@given(layouts, st.data())
def test_used_bytes_hold_every_filled_row_and_end_with_the_last_one(
    layout: SlotLayout, data: st.DataObject
) -> None:
    rows = data.draw(st.integers(0, layout.batch_size))
    buffer = np.zeros(layout.nbytes, np.uint8)
    for array in layout.views(buffer, rows).values():
        array.view(np.uint8)[...] = 1
    written = np.flatnonzero(buffer)
    assert layout.used_bytes(rows) == (written[-1] + 1 if rows else 0)


@given(layouts)
def test_views_cover_their_own_bytes_and_nobody_elses(layout: SlotLayout) -> None:
    buffer = np.zeros(layout.nbytes, np.uint8)
    for number, (name, array) in enumerate(layout.views(buffer).items(), start=1):
        field = next(field for field in layout.fields if field.name == name)
        assert array.shape == (layout.batch_size, *field.shape)
        assert array.dtype == np.dtype(field.dtype)
        array.view(np.uint8)[...] += np.uint8(number)
    total = sum(layout.batch_size * field.row_bytes for field in layout.fields)
    assert np.count_nonzero(buffer) == total
    assert buffer.max() == len(layout.fields)


def test_views_come_in_the_callers_order_whatever_the_layout() -> None:
    layout = SlotLayout.build([FieldSpec("big", "uint8", (9,)), FieldSpec("small", "bool")], 2)
    assert list(layout.views(bytearray(layout.nbytes))) == ["big", "small"]
    assert [region.field.name for region in layout.regions] == ["small", "big"]


def test_bfloat16_is_carried_as_uint16() -> None:
    field = FieldSpec("image", "uint16", (2,), torch_dtype="bfloat16")
    assert (field.torch_name, field.row_bytes) == ("bfloat16", 4)


@pytest.mark.parametrize(
    ("dtype", "shape", "torch_dtype", "complaint"),
    [
        ("object", (), None, "bool or number"),
        (">i8", (), None, "native byte order"),
        ("<U3", (), None, "bool or number"),
        ("no_such", (), None, "does not know dtype 'no_such'"),
        ("uint8", (3, 0), None, r">= 1, got \(3, 0\)"),
        ("uint8", (), "bfloat16", "as wide as uint8, got 'bfloat16'"),
        ("uint16", (), "nonsense", "got 'nonsense'"),
    ],
)
def test_a_field_that_cannot_be_laid_out_is_refused(
    dtype: str, shape: tuple[int, ...], torch_dtype: str | None, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        FieldSpec("image", dtype, shape, torch_dtype)


def test_a_layout_needs_rows_and_distinct_names() -> None:
    field = FieldSpec("a", "uint8")
    with pytest.raises(ConfigError, match="batch_size must be >= 1, got 0"):
        SlotLayout.build([field], 0)
    with pytest.raises(ConfigError, match="each name once"):
        SlotLayout.build([field, field], 1)
    with pytest.raises(ConfigError, match="at least one field"):
        SlotLayout.build([], 1)
    with pytest.raises(ConfigError, match="needs a name"):
        FieldSpec("", "uint8")


def test_a_buffer_that_is_too_small_or_not_bytes_is_refused() -> None:
    layout = SlotLayout.build([FieldSpec("a", "int64")], 4)
    with pytest.raises(ValueError, match=f"needs {layout.nbytes} bytes, the buffer has 8"):
        layout.views(bytearray(8))
    with pytest.raises(ValueError, match="contiguous uint8"):
        layout.views(np.zeros(2 * layout.nbytes, np.uint8)[::2])
    with pytest.raises(ValueError, match="within 0 and 4, got 5"):
        layout.used_bytes(5)
