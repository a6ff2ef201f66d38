"""Which decoder is opened, and that the choice changes no more than rounding."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamloader.decode import (
    NativeDecoder,
    PillowDecoder,
    RandomResizedCrop,
    Resize,
    decode_picture,
    native_kernel,
    open_decoder,
)
from streamloader.errors import ConfigError


@pytest.fixture
def not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ImportError("libjpeg.so.62: cannot open shared object file")
    monkeypatch.setattr(native_kernel, "MISSING", missing)


@pytest.mark.usefixtures("not_built")
def test_pillow_stands_in_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "streamloader.decode"):
        decoder = open_decoder(Resize((8, 8)))
    assert isinstance(decoder, PillowDecoder)
    assert decoder.name == "pillow"
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "was not built (libjpeg.so.62: cannot open" in record.message
    assert "libjpeg-dev" in record.message


@pytest.mark.usefixtures("not_built")
def test_a_native_decoder_that_was_not_built_is_refused_when_asked_for() -> None:
    with pytest.raises(ConfigError, match="was not built; install the headers") as caught:
        open_decoder(Resize((8, 8)), name="native")
    assert isinstance(caught.value.__cause__, ImportError)


@pytest.mark.usefixtures("not_built")
def test_whole_pictures_come_from_pillow_then(photo: Any, encoded: Any) -> None:
    assert decode_picture(encoded(photo(9, 7))).shape == (7, 9, 3)


def test_another_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="native and pillow, got 'turbo'"):
        open_decoder(Resize((8, 8)), name="turbo")


def test_each_name_opens_its_decoder(decoder_name: str, caplog: pytest.LogCaptureFixture) -> None:
    decoder = open_decoder(Resize((8, 8)), name=decoder_name)
    assert decoder.name == decoder_name
    assert isinstance(decoder, NativeDecoder if decoder_name == "native" else PillowDecoder)
    assert not caplog.records


@pytest.mark.usefixtures("native_built")
def test_both_decoders_agree_on_every_hostile_picture(
    expected: dict[str, Any], hostile_images: Path, share_of: Any
) -> None:
    data = [(hostile_images / name).read_bytes() for name in sorted(expected)]
    seen = []
    for name in ("native", "pillow"):
        out = np.zeros((len(data), 20, 20, 3), np.uint8)
        decoder = open_decoder(RandomResizedCrop(20, flip=0.5), name=name)
        faults = decoder.decode(share_of(data, out))
        seen.append(({fault.row for fault in faults}, out.astype(int)))
    (bad, native), (also_bad, pillow) = seen
    assert bad == also_bad
    assert np.abs(native - pillow).max(axis=(1, 2, 3)).max() <= 3
