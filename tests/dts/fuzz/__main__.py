"""Feeds damaged and forged data sets to the parsers: ``python -m tests.dts.fuzz --seconds 60``.

Every case is decided by (seed, number), so a failure is replayed with ``--seed S --only N``.
Memory is bounded: the address space of the process is limited to what it had at the start and
``HEADROOM_BYTES``, and a MemoryError is a failure like any other. A failing input is written
where the program was started; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
import traceback
from pathlib import Path

from tests.dts.fuzz.fuzzer import Fuzzer

HEADROOM_BYTES = 512 << 20


def limit_memory() -> None:
    """Limit the address space to what the process has now and the headroom."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def run(fuzzer: Fuzzer, numbers: range, until_s: float) -> int | None:
    """Number of the first case that fails, None when none did before ``time.monotonic()`` says."""
    for number in numbers:
        if time.monotonic() > until_s:
            return None
        try:
            fuzzer.check(fuzzer.case(number))
        # A case may fail in any way at all; whatever it is becomes the report.
        except Exception:  # noqa: BLE001  printed in full, and the exit code says so
            traceback.print_exc()
            return number
    return None


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Fuzz the parsers of shards and manifests.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="replay one case")
    options = parser.parse_args(argv)
    fuzzer = Fuzzer(options.seed)
    limit_memory()
    only = options.only
    numbers = range(2**62) if only is None else range(only, only + 1)
    started_s = time.monotonic()
    failed = run(fuzzer, numbers, started_s + options.seconds)
    spent_s = time.monotonic() - started_s
    total = fuzzer.counts.total()
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    lines = [f"{total} cases in {spent_s:.0f} s, seed {options.seed}, peak {peak_mib} MiB"]
    lines += [f"  {count:8}  {how}" for how, count in sorted(fuzzer.counts.items())]
    sys.stdout.write("\n".join(lines) + "\n")
    if failed is None:
        return 0
    name = f"fuzz-{options.seed}-{failed}.bin"
    Path(name).write_bytes(fuzzer.case(failed).data)
    sys.stderr.write(f"failed: {name}; replay with --seed {options.seed} --only {failed}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
