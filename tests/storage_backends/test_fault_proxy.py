"""The proxy itself: its bounds hold, and it can be run by hand."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from scripted_server import ScriptedServer, ranged

from storage_backends import open_store
from tests.storage_backends.fault_proxy import FaultProxy

CONTENT = bytes(range(256)) * 800


async def read_all(url: str, counts: Any = None) -> float:
    """Seconds that reading the whole content took."""
    buffer = bytearray(len(CONTENT))
    async with open_store(url, counts) as store:
        started = time.monotonic()
        await store.read_into("a", 0, buffer)
        assert buffer == CONTENT
        return time.monotonic() - started


async def test_bandwidth_and_latency_are_bounded() -> None:
    async with ScriptedServer([ranged(CONTENT)]) as server:
        async with FaultProxy(server.url, bytes_per_s=len(CONTENT)) as proxy:
            assert await read_all(proxy.url) >= 0.9
        async with FaultProxy(server.url, latency_s=0.3) as proxy:
            assert await read_all(proxy.url) >= 0.3


@pytest.mark.parametrize("fault", ["503", "reset", "cut", "short"])
async def test_the_proxy_runs_by_hand(fault: str, counts: Any) -> None:
    async with ScriptedServer([ranged(CONTENT)]) as server:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.storage_backends.run_fault_proxy", server.url),
            *("--share", "0.5", "--faults", fault, "--seed", "1"),
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            url = (await process.stdout.readline()).decode().split(" ")[0]
            for _ in range(8):
                await read_all(url, counts)
        finally:
            process.send_signal(signal.SIGINT)
            rest, _ = await process.communicate()
    told = json.loads(rest)
    assert told[fault] > 0
    assert told["requests"] == counts.totals["storage.requests"]
