"""A server that goes wrong, for trying a loader or a command by hand.

    python -m tests.storage_backends.run_fault_proxy http://127.0.0.1:8333 --port 9000 \\
        --share 0.01 --faults stall,reset,503 --latency-ms 100 --bytes-per-s 50e6

Give its URL as ``--endpoint-url``; http only. Ctrl-C ends it and says what it did.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from tests.storage_backends.fault_proxy import (
    Answer,
    Break,
    Drip,
    Fault,
    FaultProxy,
    Flip,
    IgnoreRange,
    Rewrite,
    Seen,
    SlowStart,
    Stall,
)

FAULTS: dict[str, Callable[[random.Random], Fault]] = {
    "503": lambda rng: Answer(503, "SlowDown"),
    "retry-after": lambda rng: Answer(503, "SlowDown", {"Retry-After": "1"}),
    "500": lambda rng: Answer(500, "InternalError"),
    "reset": lambda rng: Break(rng.randrange(-1, 100_000), reset=True),
    "cut": lambda rng: Break(rng.randrange(-1, 100_000)),
    "stall": lambda rng: Stall(rng.randrange(-1, 100_000)),
    "drip": lambda rng: Drip(1_000, 0.1),
    "flip": lambda rng: Flip(rng.randrange(1_000)),
    "short": lambda rng: Rewrite(body_bytes=rng.randrange(1_000)),
    "whole": lambda rng: IgnoreRange(),
    "slow": lambda rng: SlowStart(5.0),
    "expired": lambda rng: Answer(403, "ExpiredToken"),
    "moved": lambda rng: Answer(301, "PermanentRedirect", {"x-amz-bucket-region": "us-east-1"}),
}


async def run(args: argparse.Namespace) -> None:
    rng = random.Random(args.seed)
    done: Counter[str] = Counter()

    def choose(seen: Seen) -> Fault | None:
        done["requests"] += 1
        if seen.method != "GET" or rng.random() >= args.share:
            return None
        kind = rng.choice(args.faults)
        done[kind] += 1
        return FAULTS[kind](rng)

    bounds = {"latency_s": args.latency_ms / 1e3, "bytes_per_s": args.bytes_per_s}
    async with FaultProxy(args.upstream, port=args.port, **bounds) as proxy:
        proxy.plan_by(choose)
        sys.stdout.write(f"{proxy.url} -> {args.upstream}\n")
        sys.stdout.flush()
        try:
            await asyncio.Event().wait()
        finally:
            sys.stdout.write(f"{json.dumps(done)}\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("upstream", help="URL of the real server: http://host:port")
    parser.add_argument("--port", type=int, default=0, help="a free one by default")
    parser.add_argument("--share", type=float, default=0.01, help="of GET requests that go wrong")
    parser.add_argument("--faults", type=lambda text: text.split(","), default=list(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--bytes-per-s", type=float, help="of each connection")
    args = parser.parse_args()
    unknown = set(args.faults) - set(FAULTS)
    if unknown:
        parser.error(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    try:
        asyncio.run(run(args))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
