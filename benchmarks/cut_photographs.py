"""Cuts installed wallpapers into photographs of about 500x375 for the benchmarks.

    apt-get install gnome-backgrounds lomiri-wallpapers-16.04 lomiri-wallpapers-20.04 \
        plasma-workspace-wallpapers
    python benchmarks/cut_photographs.py /tmp/photographs --count 2000

Each picture is a part of a real photograph, scaled so that it stays sharp, 4:2:0, 80-110 KB.
They go into 20 class folders.
"""

from __future__ import annotations

import argparse
import io
import random
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from PIL import Image

SOURCES = ("/usr/share/backgrounds", "/usr/share/wallpapers")
SMALLEST_BYTES, LARGEST_BYTES = 60_000, 130_000


def find_wallpapers() -> list[Path]:
    found = [
        path
        for root in SOURCES
        for path in sorted(Path(root).rglob("*"))
        if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp") and not path.is_symlink()
    ]
    return [path for path in found if path.stat().st_size > 300_000]


def cut(job: tuple[Path, int, Path, int]) -> int:
    """Cuts pictures out of one wallpaper; returns how many it gave."""
    source, seed, out, count = job
    rng = random.Random(seed)
    whole = Image.open(source).convert("RGB")
    made = 0
    for attempt in range(count * 8):
        if made == count:
            break
        scale = rng.uniform(1.0, 2.5)
        width, height = rng.randint(480, 520), rng.randint(355, 395)
        cut_width, cut_height = int(width * scale), int(height * scale)
        if cut_width > whole.width or cut_height > whole.height:
            continue
        left = rng.randint(0, whole.width - cut_width)
        top = rng.randint(0, whole.height - cut_height)
        part = whole.crop((left, top, left + cut_width, top + cut_height))
        part = part.resize((width, height), Image.Resampling.LANCZOS)
        for quality in (88, 92, 95, 97):
            data = io.BytesIO()
            part.save(data, "JPEG", quality=quality, subsampling="4:2:0")
            if SMALLEST_BYTES <= data.tell() <= LARGEST_BYTES:
                name = f"{seed:03d}-{attempt:05d}.jpg"
                (out / f"class{made % 20:02d}" / name).write_bytes(data.getvalue())
                made += 1
                break
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    wallpapers = find_wallpapers()
    if not wallpapers:
        raise SystemExit(f"no wallpapers under {' or '.join(SOURCES)}: install the packages above")
    for number in range(20):
        (arguments.out / f"class{number:02d}").mkdir(parents=True, exist_ok=True)
    each = 2 * -(-arguments.count // len(wallpapers))
    jobs = [(path, seed, arguments.out, each) for seed, path in enumerate(wallpapers)]
    with ProcessPoolExecutor(arguments.jobs) as executor:
        made = sum(executor.map(cut, jobs))
    pictures = sorted(arguments.out.rglob("*.jpg"))
    for surplus in pictures[arguments.count :]:
        surplus.unlink()
    kept = pictures[: arguments.count]
    mean = sum(path.stat().st_size for path in kept) / max(1, len(kept))
    print(f"{len(kept)} of {made} pictures from {len(wallpapers)} wallpapers, mean {mean:,.0f} B")


if __name__ == "__main__":
    main()
