import numpy as np
import pytest

from streamloader import ConfigError
from streamloader.fetch import open_block_bytes, plan_memory
from streamloader.order import OrderSpec

MIB = 1 << 20


def spec(**options):
    wanted = {"num_samples": 1_281_167, "block_samples": 9, "seed": 0, "shuffle": True}
    wanted.update(options)
    return OrderSpec.choose(wanted.pop("num_samples"), wanted.pop("block_samples"), **wanted)


def blocks(order, mean=MIB, spread=MIB // 4):
    rng = np.random.default_rng(0)
    return rng.normal(mean, spread, order.num_blocks).clip(1).astype(np.int64)


def test_a_rank_alone_needs_a_window_of_every_lane():
    order = spec()
    needed = open_block_bytes(order, blocks(order), batch_size=256, world_size=1, row_bytes=40)
    assert 512 * MIB < needed < 700 * MIB


def test_more_ranks_need_less_each():
    order = spec()
    sizes = blocks(order)
    needed = [
        open_block_bytes(order, sizes, batch_size=256, world_size=r, row_bytes=40)
        for r in (1, 2, 8)
    ]
    assert needed[0] > 1.7 * needed[1] > 3 * needed[2]


def test_a_small_data_set_needs_little_more_than_all_of_it():
    order = spec(num_samples=20)
    sizes = blocks(order)
    needed = open_block_bytes(order, sizes, batch_size=256, world_size=1, row_bytes=40)
    rows = 20 * 40 + 3 * 256 * len(sizes)
    assert sizes.sum() <= needed <= sizes.sum() + rows + 3 * sizes.max()


def test_the_parts_of_a_plan_never_exceed_the_limit():
    plan = plan_memory(
        1 << 30,
        slot_bytes=38 * MIB,
        slots=5,
        tail_bytes=50 * MIB,
        needed_block_bytes=400 * MIB,
        all_block_bytes=140_000 * MIB,
    )
    assert plan.slots * plan.slot_bytes + plan.tail_bytes + plan.block_bytes <= 1 << 30
    assert plan.block_bytes >= 400 * MIB
    grown = plan.max_slots * plan.slot_bytes + plan.tail_bytes + plan.block_bytes
    assert grown <= 1 << 30


@pytest.mark.parametrize("tail_bytes", [0, MIB, 200 * MIB, 5000 * MIB])
def test_the_least_limit_that_a_refusal_names_works_and_one_byte_less_does_not(tail_bytes):
    options = {
        "slot_bytes": 38 * MIB + 1,
        "slots": 5,
        "tail_bytes": tail_bytes,
        "needed_block_bytes": 400 * MIB + 1,
        "all_block_bytes": 140_000 * MIB,
    }
    with pytest.raises(ConfigError) as refused:
        plan_memory(MIB, **options)
    least = int(str(refused.value).split("at least ")[1].split(", or")[0].replace(",", ""))
    plan_memory(least, **options)
    with pytest.raises(ConfigError):
        plan_memory(least - 2, **options)
