"""A network with latency, of which some answers stall: how much of the speed is left."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import numpy as np
import pytest

from storage_backends import open_store
from tests.storage_backends.fault_proxy import Fault, FaultProxy, Seen, Stall

pytestmark = pytest.mark.s3

READS, AT_ONCE, NBYTES = 600, 16, 20_000


@pytest.mark.slow
async def test_one_stalled_answer_in_a_hundred_costs_less_than_a_fifth(
    s3_place: Any, counts: Any
) -> None:
    content = np.random.default_rng(0).bytes(READS * NBYTES)
    async with open_store(s3_place.url, **s3_place.options) as direct:
        await direct.put("a", content)
    rng = random.Random(3)

    def stall_some(seen: Seen) -> Fault | None:
        return Stall(rng.choice([-1, 5_000])) if rng.random() < 0.01 else None

    async with FaultProxy(s3_place.options["endpoint_url"], latency_s=0.1) as proxy:
        options = {**s3_place.options, "endpoint_url": proxy.url}
        async with open_store(s3_place.url, counts, **options) as store:

            async def run() -> float:
                waiting = iter(range(READS))

                async def work() -> None:
                    buffer = bytearray(NBYTES)
                    for number in waiting:
                        await store.read_into("a", number * NBYTES, buffer)
                        assert buffer == content[number * NBYTES : (number + 1) * NBYTES]

                started = time.monotonic()
                await asyncio.gather(*(work() for _ in range(AT_ONCE)))
                return time.monotonic() - started

            await run()
            without = await run()
            proxy.plan_by(stall_some)
            stalled = await run()
    assert counts.totals["storage.hedges_won"] > 0
    assert counts.totals["storage.retries"] == 0
    assert without / stalled >= 0.8, (without, stalled)
