from __future__ import annotations

from typing import Any

import pytest

from streamloader.decode import CenterCrop, Compose, RandomResizedCrop, Resize, output_size
from streamloader.errors import ConfigError


@pytest.mark.parametrize(
    ("spec", "size"),
    [
        (RandomResizedCrop(224), (224, 224)),
        (RandomResizedCrop((192, 256)), (192, 256)),
        (Resize((30, 40)), (30, 40)),
        (CenterCrop(7), (7, 7)),
        (Compose([Resize(256), CenterCrop((224, 192))]), (224, 192)),
        (Compose([Compose([Resize(256), CenterCrop(200)]), Resize(100)]), (100, 100)),
        (Compose([Resize((300, 200)), Resize(100)]), (150, 100)),
        (Compose([Resize((200, 301)), Resize(100)]), (100, 150)),
    ],
)
def test_output_size_is_known_before_any_picture(spec: Any, size: tuple[int, int]) -> None:
    assert output_size(spec) == size


@pytest.mark.parametrize("spec", [Resize(256), Compose([CenterCrop(8), Resize((4, 4)), Resize(2)])])
def test_a_size_that_follows_from_fixed_sizes_is_fixed(spec: Any) -> None:
    if isinstance(spec, Compose):
        assert output_size(spec) == (2, 2)
    else:
        with pytest.raises(ConfigError, match=r"add CenterCrop\(size\) after it.*got Resize"):
            output_size(spec)


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "224", (224,), (1, 2, 3), [3, 3], 65_536, None])
@pytest.mark.parametrize("spec", [RandomResizedCrop, Resize, CenterCrop])
def test_a_wrong_size_is_refused_with_the_value(spec: Any, size: Any) -> None:
    with pytest.raises(ConfigError, match=r"takes size.*got "):
        spec(size)


@pytest.mark.parametrize(
    "options",
    [
        {"scale": (0.0, 1.0)},
        {"scale": (0.5, 0.4)},
        {"scale": (0.5, 1.1)},
        {"scale": 0.5},
        {"scale": (0.1, float("nan"))},
        {"ratio": (0.0, 1.0)},
        {"ratio": (2.0, 1.0)},
        {"ratio": (1.0, float("inf"))},
        {"ratio": ("a", "b")},
        {"flip": -0.1},
        {"flip": 1.1},
        {"flip": float("nan")},
        {"flip": True},
    ],
)
def test_a_wrong_range_is_refused_with_the_value(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"got .+$"):
        RandomResizedCrop(224, **options)


@pytest.mark.parametrize("parts", [[], Resize(3), "Resize", [Resize(3), "x"], [lambda x: x], None])
def test_compose_takes_only_specs(parts: Any) -> None:
    with pytest.raises(ConfigError, match=r"got "):
        Compose(parts)


def test_something_else_is_no_transform() -> None:
    with pytest.raises(ConfigError, match="a transform is RandomResizedCrop"):
        output_size(lambda picture: picture)  # type: ignore[arg-type]  # the mistake under test


def test_equal_specs_are_equal_and_hashable() -> None:
    assert Compose([Resize(2), CenterCrop(1)]) == Compose((Resize(2), CenterCrop(1)))
    assert len({RandomResizedCrop(3), RandomResizedCrop(3, flip=0.5), RandomResizedCrop(3)}) == 2
