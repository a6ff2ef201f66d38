from typing import Any

import pytest

from streamloader.errors import ConfigError
from streamloader.order import OrderSpec


@pytest.mark.parametrize(
    ("blocks", "lanes"),
    [(1, 1), (3, 1), (4, 1), (7, 1), (8, 2), (15, 2), (16, 4), (1023, 128), (1024, 256)],
)
def test_small_data_sets_get_fewer_lanes(blocks: int, lanes: int) -> None:
    spec = OrderSpec.choose(blocks * 10, 10)
    assert spec.lanes == lanes
    assert lanes == 1 or spec.num_blocks >= 4 * lanes


def test_lanes_that_fit_are_kept_whatever_their_number() -> None:
    assert OrderSpec.choose(10_000, 10, lanes=100).lanes == 100
    assert OrderSpec.choose(10_000, 100, lanes=100).lanes == 16


def test_a_short_last_block_counts_as_a_block() -> None:
    assert OrderSpec.choose(71, 10).num_blocks == 8
    assert OrderSpec.choose(71, 10).lanes == 2


@pytest.mark.parametrize(
    ("given", "mode"),
    [(True, "window"), (False, "none"), ("window", "window"), ("global", "global")],
)
def test_shuffle_takes_a_flag_or_a_mode(given: bool | str, mode: str) -> None:
    spec = OrderSpec.choose(100_000, 10, shuffle=given)
    assert spec.shuffle == mode
    assert spec.lanes == (256 if mode == "window" else 1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_samples": 0}, "num_samples must be an integer from 1 to"),
        ({"block_samples": 0}, "block_samples must be an integer from 1 to"),
        ({"seed": -1}, "seed must be an integer from 0 to"),
        ({"seed": 2**64}, "seed must be an integer from 0 to"),
        ({"seed": 0.5}, "seed must be an integer .*got 0.5"),
        ({"lanes": 0}, "lanes must be an integer from 1 to"),
        ({"lanes": True}, "lanes must be an integer .*got True"),
        ({"window": 0}, "window must be an integer from 1 to"),
        ({"shuffle": "full"}, "shuffle must be .*got 'full'"),
    ],
)
def test_values_that_cannot_work_are_refused(change: dict[str, Any], message: str) -> None:
    arguments = {"num_samples": 100, "block_samples": 4, **change}
    with pytest.raises(ConfigError, match=message):
        OrderSpec.choose(**arguments)


def test_modes_without_lanes_refuse_them() -> None:
    with pytest.raises(ConfigError, match="'global' has no lanes; pass lanes=1, got 8"):
        OrderSpec(100, 4, 0, "global", 8, 2)
