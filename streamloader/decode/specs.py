"""What is done to a picture, as data: four specs that fold to one crop and one resize.

A fifth, Joint, does the same to the masks and boxes that belong to the picture.

A spec says nothing about how a picture is decoded, so every decode path, on a CPU or on a GPU,
can carry it out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from streamloader.errors import ConfigError

Size: TypeAlias = tuple[int, int]

MaskType: TypeAlias = Literal["uint8", "int32"]

_LONGEST_SIDE = 65_535
_MASK_TYPES = ("uint8", "int32")


@dataclass(frozen=True, slots=True)
class RandomResizedCrop:
    """A random part of the picture, scaled to one size (Szegedy et al., 2015).

    Args:
        size: side of the square output, or (height, width), in pixels.
        scale: smallest and largest share of the picture's area, in (0, 1].
        ratio: smallest and largest width / height of the part.
        flip: probability of a mirror image, left for right.
    """

    size: int | Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.0

    def __post_init__(self) -> None:
        _check_size("RandomResizedCrop", self.size)
        low, high = _check_range("scale", self.scale)
        if not 0.0 < low <= high <= 1.0:
            raise ConfigError(
                "RandomResizedCrop takes scale=(smallest, largest) with "
                f"0 < smallest <= largest <= 1, got {self.scale}"
            )
        low, high = _check_range("ratio", self.ratio)
        if not 0.0 < low <= high < math.inf:
            raise ConfigError(
                "RandomResizedCrop takes ratio=(smallest, largest) with "
                f"0 < smallest <= largest, got {self.ratio}"
            )
        if not _is_number(self.flip) or not 0.0 <= self.flip <= 1.0:
            raise ConfigError(
                f"RandomResizedCrop takes flip, a probability from 0 to 1, got {self.flip!r}"
            )


@dataclass(frozen=True, slots=True)
class Resize:
    """The whole picture, scaled.

    Args:
        size: length of the shorter side in pixels, the other one in proportion and cut to a whole
            pixel; or (height, width), which may change the proportions.
    """

    size: int | Size

    def __post_init__(self) -> None:
        _check_size("Resize", self.size)


@dataclass(frozen=True, slots=True)
class CenterCrop:
    """The middle of the picture; a smaller picture is first scaled up until it just covers.

    Args:
        size: side of the square, or (height, width), in pixels.
    """

    size: int | Size

    def __post_init__(self) -> None:
        _check_size("CenterCrop", self.size)


@dataclass(frozen=True, slots=True, init=False)
class Compose:
    """Several specs, one after the other.

    They fold to one box of the stored picture that is resized once, so no detail is lost between
    steps and no pixel is computed that a later step cuts off.

    Args:
        transforms: specs, the first one applied first; may contain other Compose.
    """

    transforms: tuple[Spec, ...]

    def __init__(self, transforms: Sequence[Spec]) -> None:
        if not isinstance(transforms, (list, tuple)):
            raise ConfigError(f"Compose takes a list of transforms, got {transforms!r}")
        if not transforms:
            raise ConfigError(f"Compose takes at least one transform, got {transforms!r}")
        for transform in transforms:
            if not isinstance(transform, (RandomResizedCrop, Resize, CenterCrop, Compose)):
                raise ConfigError(
                    "Compose takes RandomResizedCrop, Resize, CenterCrop and Compose, "
                    f"got {transform!r}"
                )
        object.__setattr__(self, "transforms", tuple(transforms))


Step: TypeAlias = RandomResizedCrop | Resize | CenterCrop
Spec: TypeAlias = Step | Compose


@dataclass(frozen=True, slots=True)
class Joint:
    """One crop a sample, for all its pictures, masks and boxes.

    The first picture field that is no mask draws the crop, from the size that its header states:
    the same one that ``spec`` alone would draw. Every other picture and mask of the sample must
    have that size; one that has not is a fault of the sample.

    - Pictures are decoded as ever: three channels, antialiased.
    - Masks are sampled at pixel centres (nearest) and never converted: palette indices stay
      indices and grey values stay values. A batch has them as ``mask_dtype`` [B, height, width].
    - Boxes are (x0, y0, x1, y1) in pixels of the stored picture, edges and not centres: the whole
      picture is (0, 0, width, height). They are moved to pixels of the output and clipped to it.
      One that lies outside keeps its place with no area, so labels stay aligned. A field of type
      ``float:[-1]`` holds them one after the other and becomes a list of float32 [n, 4]; one of
      a fixed shape [..., 4] becomes float32 [B, ..., 4].

    Args:
        spec: what is done to them all; its output size must not depend on the picture.
        masks: names of picture fields.
        boxes: names of float fields.
        mask_dtype: "uint8", or "int32", which 16-bit masks need.
    """

    spec: Spec
    masks: Sequence[str] = ()
    boxes: Sequence[str] = ()
    mask_dtype: MaskType = "uint8"

    def __post_init__(self) -> None:
        if isinstance(self.spec, Joint):
            raise ConfigError(f"Joint takes a spec that is no Joint itself, got {self.spec!r}")
        output_size(self.spec)
        for name in ("masks", "boxes"):
            object.__setattr__(self, name, _field_names(name, getattr(self, name)))
        both = sorted(set(self.masks) & set(self.boxes))
        if both:
            raise ConfigError(f"a field of a Joint is a mask or holds boxes, got both for {both}")
        if self.mask_dtype not in _MASK_TYPES:
            raise ConfigError(
                f"Joint takes mask_dtype, one of {', '.join(_MASK_TYPES)}, got {self.mask_dtype!r}"
            )


Transform: TypeAlias = Spec | Joint


def output_size(spec: Transform) -> Size:
    """(height, width) in pixels of every picture that ``spec`` gives.

    Raises:
        ConfigError: the size would differ from picture to picture.
    """
    known: Size | None = None
    for step in steps(spec):
        if isinstance(step, Resize) and isinstance(step.size, int):
            known = None if known is None else _short_side_of(known, step.size)
        else:
            known = size_of(step.size)
    if known is None:
        raise ConfigError(
            "pictures of one batch must have one size, and a Resize with one number keeps each "
            "picture's own proportions; add CenterCrop(size) after it, or give (height, width), "
            f"got {spec}"
        )
    return known


def steps(spec: Transform) -> Iterator[Step]:
    """The specs of ``spec`` in the order they apply, without nesting."""
    if isinstance(spec, Joint):
        yield from steps(spec.spec)
    elif isinstance(spec, Compose):
        for part in spec.transforms:
            yield from steps(part)
    elif isinstance(spec, (RandomResizedCrop, Resize, CenterCrop)):
        yield spec
    else:
        raise ConfigError(
            "a transform is RandomResizedCrop, Resize, CenterCrop, a Compose of them, or a Joint "
            f"of one of these, got {spec!r}"
        )


def size_of(size: int | Size) -> Size:
    """(height, width) of a size given as a side or as a pair."""
    return (size, size) if isinstance(size, int) else size


def _short_side_of(size: Size, side: int) -> Size:
    height, width = size
    if width <= height:
        return int(side * height / width), side
    return side, int(side * width / height)


def _field_names(option: str, names: object) -> tuple[str, ...]:
    if not isinstance(names, (tuple, list)) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"Joint takes {option}, a tuple of field names, got {names!r}")
    if len(set(names)) != len(names):
        raise ConfigError(f"Joint takes {option}, each field once, got {names!r}")
    return tuple(names)


def _check_size(owner: str, size: object) -> None:
    sides = size if isinstance(size, tuple) else (size, size)
    whole = len(sides) == 2 and all(type(side) is int for side in sides)
    if not whole or not all(0 < side <= _LONGEST_SIDE for side in sides):
        raise ConfigError(
            f"{owner} takes size, one whole number or a tuple (height, width), each from 1 to "
            f"{_LONGEST_SIDE} pixels, got {size!r}"
        )


def _check_range(name: str, limits: object) -> tuple[float, float]:
    if not isinstance(limits, tuple) or len(limits) != 2 or not all(map(_is_number, limits)):
        raise ConfigError(
            f"RandomResizedCrop takes {name}, a tuple (smallest, largest), got {limits!r}"
        )
    return float(limits[0]), float(limits[1])


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
