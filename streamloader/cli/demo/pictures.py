"""Photograph-like pictures in eight classes, painted from a seed.

A picture is a sky-to-ground gradient, cloudy noise of several scales, soft blobs of a second
colour and sensor grain, stored as a 4:2:0 JPEG. The classes differ in colour, in the direction and
scale of their texture and in their blobs; every picture draws its own light, tint, horizon and
size, so that no single pixel gives the class away.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from streamloader.topology import allowed_cpus

_Plane = npt.NDArray[np.float32]
_Rgb = tuple[float, float, float]

JPEG_QUALITY = 85
JPEG_SUBSAMPLING_420 = 2
MEAN_WIDTH, MEAN_HEIGHT = 320, 240
SIZE_SPREAD = 0.25
GRAIN_LEVELS = 5.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What the pictures of one class have in common; colours and levels are on the 0-255 scale.

    Args:
        name: the class, and the name of its folder.
        top: colour at the upper edge.
        bottom: colour at the lower edge.
        spot: colour of the blobs.
        grid: cells of the coarsest noise over (height, width): unequal numbers stretch the texture.
        octaves: number of noise layers, each twice as fine and 0.6 times as strong as the last.
        relief: standard deviation of the noise.
        blobs: most blobs in one picture.
        blob_radius: mean radius of a blob, as a fraction of the picture's height.
    """

    name: str
    top: _Rgb
    bottom: _Rgb
    spot: _Rgb
    grid: tuple[int, int]
    octaves: int
    relief: float
    blobs: int
    blob_radius: float


SCENES = (
    Scene("autumn", (176, 140, 96), (150, 84, 38), (214, 120, 30), (10, 12), 4, 34.0, 40, 0.07),
    Scene("canyon", (196, 142, 108), (158, 78, 52), (120, 54, 40), (16, 2), 4, 30.0, 4, 0.20),
    Scene("coral", (40, 128, 150), (70, 96, 128), (232, 110, 128), (6, 7), 4, 22.0, 50, 0.09),
    Scene("dunes", (222, 204, 170), (204, 164, 104), (236, 214, 160), (7, 2), 2, 22.0, 3, 0.40),
    Scene("forest", (108, 136, 96), (44, 74, 36), (70, 50, 32), (3, 22), 4, 34.0, 8, 0.10),
    Scene("night", (22, 24, 52), (30, 26, 40), (244, 210, 130), (3, 4), 2, 7.0, 60, 0.025),
    Scene("sea", (150, 186, 214), (24, 84, 124), (222, 236, 240), (26, 4), 3, 20.0, 10, 0.05),
    Scene("snow", (196, 210, 228), (236, 240, 246), (120, 134, 150), (4, 5), 4, 11.0, 10, 0.16),
)


def paint(scene: Scene, *, seed: int, number: int) -> Image.Image:
    """Paint picture ``number`` of a scene: RGB, about 320x240, the same for the same seed."""
    rng = np.random.default_rng([seed, number, *scene.name.encode()])
    wide, tall = rng.uniform(1 - SIZE_SPREAD, 1 + SIZE_SPREAD, 2)
    width, height = round(MEAN_WIDTH * wide), round(MEAN_HEIGHT * tall)

    pixels = _gradient(scene, height, width, rng)
    pixels += (scene.relief * _clouds(scene, height, width, rng))[..., None]
    _add_blobs(pixels, scene, rng)
    pixels *= rng.uniform(0.75, 1.2) * rng.uniform(0.92, 1.08, 3).astype(np.float32)
    pixels += GRAIN_LEVELS * rng.standard_normal((height, width, 1), dtype=np.float32)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def _gradient(scene: Scene, height: int, width: int, rng: np.random.Generator) -> _Plane:
    """Blend top into bottom around a slanted horizon: float32 [height, width, 3]."""
    horizon, slant, softness = rng.uniform(0.3, 0.7), rng.uniform(-0.2, 0.2), rng.uniform(0.1, 0.5)
    down = np.linspace(0, 1, height, dtype=np.float32)[:, None]
    across = np.linspace(-0.5, 0.5, width, dtype=np.float32)[None, :]
    ground = 1 / (1 + np.exp((horizon + slant * across - down) * (4 / softness)))
    top, bottom = np.asarray(scene.top, np.float32), np.asarray(scene.bottom, np.float32)
    mixed: _Plane = top + ground[..., None].astype(np.float32) * (bottom - top)
    return mixed


def _clouds(scene: Scene, height: int, width: int, rng: np.random.Generator) -> _Plane:
    """Sum of ever finer smooth noise, scaled to unit variance: float32 [height, width]."""
    total = np.zeros((height, width), np.float32)
    rows, columns = scene.grid
    for octave in range(scene.octaves):
        cells = (min(rows << octave, height), min(columns << octave, width))
        knots = Image.fromarray(rng.standard_normal(cells, dtype=np.float32))
        layer = knots.resize((width, height), Image.Resampling.BICUBIC)
        total += 0.6**octave * np.asarray(layer)
    scaled: _Plane = total / total.std()
    return scaled


def _add_blobs(pixels: _Plane, scene: Scene, rng: np.random.Generator) -> None:
    """Lay soft-edged discs of the scene's second colour over the picture, in place."""
    height, width, _ = pixels.shape
    for _ in range(rng.integers(scene.blobs // 2, scene.blobs + 1)):
        radius = max(1.5, scene.blob_radius * height * rng.uniform(0.5, 1.5))
        y, x = rng.uniform(0, height), rng.uniform(0, width)
        reach = 1.5 * radius
        y0, y1 = max(0, int(y - reach)), min(height, int(y + reach) + 1)
        x0, x1 = max(0, int(x - reach)), min(width, int(x + reach) + 1)
        distance = np.hypot(np.arange(y0, y1)[:, None] - y, np.arange(x0, x1)[None, :] - x)
        cover = np.clip((reach - distance) / (0.5 * radius), 0, 1)[..., None].astype(np.float32)
        tint = np.asarray(scene.spot, np.float32) * np.float32(rng.uniform(0.85, 1.1))
        patch = pixels[y0:y1, x0:x1]
        patch += rng.uniform(0.6, 1.0) * cover * (tint - patch)


def make_pictures(
    folder: Path, count: int, *, seed: int = 0, painted: Callable[[int], None] | None = None
) -> int:
    """Write ``count`` JPEGs into class folders ``folder/<scene>/<number>.jpg``.

    Picture ``n`` is of class ``n % 8``, so the classes are even. Painting is spread over the cores.

    Args:
        folder: where the class folders are made.
        count: number of pictures.
        seed: which pictures; the same seed gives the same files.
        painted: called with the number of finished pictures, from this thread.

    Returns:
        Bytes written.
    """
    for scene in SCENES[:count]:
        (folder / scene.name).mkdir(parents=True, exist_ok=True)
    stop = threading.Event()

    def write(number: int) -> int:
        if stop.is_set():
            return 0
        scene = SCENES[number % len(SCENES)]
        path = folder / scene.name / f"{number:05d}.jpg"
        picture = paint(scene, seed=seed, number=number)
        picture.save(path, quality=JPEG_QUALITY, subsampling=JPEG_SUBSAMPLING_420)
        return path.stat().st_size

    total = 0
    with ThreadPoolExecutor(allowed_cpus(), "streamloader-demo-paint") as threads:
        try:
            for done, size in enumerate(threads.map(write, range(count)), start=1):
                total += size
                if painted is not None:
                    painted(done)
        finally:
            # An interrupt must not wait for the pictures that are still queued.
            stop.set()
    return total
