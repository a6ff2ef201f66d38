"""Batches of data sets that are not pictures with labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from streamloader import CenterCrop, ConfigError, DatasetWriter, StreamLoader


@pytest.fixture
def mixed(tmp_path):
    fields = {
        "text": "str",
        "meta": "json",
        "tokens": "int32:[-1]",
        "box": ("float32", (4,)),
        "raw": ("uint8", (10, 10)),
        "half": ("bfloat16", (40,)),
        "flag": "bool",
    }
    with DatasetWriter(tmp_path / "set", fields, block_samples=3) as writer:
        for n in range(20):
            writer.write(
                {
                    "text": f"caption {n}",
                    "meta": {"n": n},
                    "tokens": np.arange(n, dtype=np.int32),
                    "box": np.full(4, n, np.float32),
                    "raw": np.full((10, 10), n, np.uint8),
                    "half": np.full(40, n / 2, np.float32),
                    "flag": n % 2 == 0,
                }
            )
    return tmp_path / "set"


def test_fixed_fields_are_tensors_and_variable_ones_are_lists(mixed):
    seen = []
    with StreamLoader(mixed, batch_size=6, shuffle=True, device="cpu") as stream:
        for batch in stream:
            assert batch["raw"].shape == (6, 10, 10)
            assert batch["half"].dtype == torch.bfloat16
            assert batch["flag"].dtype == torch.bool
            for row, n in enumerate(batch["index"].tolist()):
                assert batch["text"][row] == f"caption {n}"
                assert batch["meta"][row] == {"n": n}
                assert batch["tokens"][row].tolist() == list(range(n))
                assert batch["box"][row].tolist() == [n] * 4
                assert batch["raw"][row].unique().tolist() == [n]
                assert batch["half"][row].float().unique().tolist() == [n / 2]
                assert bool(batch["flag"][row]) == (n % 2 == 0)
            seen += batch["index"][batch["valid"]].tolist()
    assert sorted(seen) == list(range(20))


def test_a_transform_without_a_picture_field_is_refused_with_the_fields(mixed):
    with pytest.raises(ConfigError, match="no picture field; its fields are text"):
        StreamLoader(mixed, batch_size=2, transform=CenterCrop(8), device="cpu")


def test_two_pictures_a_sample_are_both_decoded_with_the_same_crop(tmp_path):
    from picture_sets import picture

    from streamloader import RandomResizedCrop

    with DatasetWriter(tmp_path / "set", {"left": "picture", "right": "picture"}) as writer:
        for n in range(4):
            writer.write({"left": picture(n), "right": picture(n)})
    transform = RandomResizedCrop(16, flip=0.5)
    with StreamLoader(tmp_path / "set", batch_size=4, transform=transform, device="cpu") as stream:
        batch = next(iter(stream))
    assert torch.equal(batch["left"], batch["right"])


def test_a_field_with_a_name_of_the_batch_is_refused(tmp_path):
    with DatasetWriter(tmp_path / "set", {"valid": "int64"}) as writer:
        writer.write({"valid": 1})
    with pytest.raises(ConfigError, match="'valid'"):
        StreamLoader(tmp_path / "set", batch_size=1, device="cpu")


def test_arrays_of_any_length_outlive_the_memory_they_were_read_into(tmp_path):
    with DatasetWriter(tmp_path / "set", {"tokens": "int32:[-1]"}, block_samples=4) as writer:
        for n in range(120):
            writer.write({"tokens": np.full(20_000, n, np.int32)})
    options = {"batch_size": 4, "memory_limit": "3mib", "prefetch_batches": 1, "device": "cpu"}
    with StreamLoader(tmp_path / "set", **options) as stream:
        held = list(stream)
    for batch in held:
        for n, tokens in zip(batch["index"].tolist(), batch["tokens"], strict=True):
            assert (tokens == n).all()


def test_variable_fields_come_as_one_tensor_with_offsets_when_asked(mixed):
    options = {"batch_size": 6, "shuffle": True, "device": "cpu", "last_batch": "partial"}
    with StreamLoader(mixed, pack=["tokens", "text"], **options) as stream:
        for batch in stream:
            ends = batch["tokens.offsets"].tolist()
            assert batch["tokens"].dtype == torch.int32
            assert batch["tokens.offsets"].dtype == torch.int64
            text, text_ends = batch["text"], batch["text.offsets"].tolist()
            assert len(ends) == len(batch["index"]) + 1
            for row, n in enumerate(batch["index"].tolist()):
                assert batch["tokens"][ends[row] : ends[row + 1]].tolist() == list(range(n))
                said = bytes(text[text_ends[row] : text_ends[row + 1]].tolist()).decode()
                assert said == f"caption {n}"
            assert isinstance(batch["meta"], list)


@pytest.mark.parametrize("name", ["box", "meta", "nothing"])
def test_what_cannot_be_packed_is_refused_with_what_can(mixed, name):
    with pytest.raises(ConfigError, match="there are text, tokens"):
        StreamLoader(mixed, batch_size=2, device="cpu", pack=[name])
