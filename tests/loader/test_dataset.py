"""Random access by sample number."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch
from picture_sets import NUM_PICTURES, picture

from streamloader import ConfigError, DatasetWriter, SampleError, open_dataset


def test_any_sample_comes_as_it_was_written(pictures):
    with open_dataset(pictures) as dataset:
        assert len(dataset) == NUM_PICTURES
        assert dataset.classes == ["a", "b"]
        for number in (0, 41, NUM_PICTURES - 1):
            assert dataset[number] == {"image": picture(number), "label": number}
            assert dataset.key(number) == f"p/{number}.jpg"
        assert dataset[-1]["label"] == NUM_PICTURES - 1
        with pytest.raises(IndexError, match=str(NUM_PICTURES)):
            dataset[NUM_PICTURES]


def test_labels_need_no_payload(pictures):
    with open_dataset(pictures) as dataset:
        before = dataset.counters.count("storage.bytes_read")
        labels = dataset.labels
        read = dataset.counters.count("storage.bytes_read") - before
    assert labels.tolist() == list(range(NUM_PICTURES))
    assert labels.dtype == np.int64
    assert read < sum(len(picture(number)) for number in range(NUM_PICTURES)) / 4


def test_a_column_that_does_not_exist_names_those_that_do(pictures):
    with (
        open_dataset(pictures) as dataset,
        pytest.raises(ConfigError, match=r"label, image\.width"),
    ):
        dataset.column("weight")


def test_a_damaged_sample_is_told_by_name(pictures, tmp_path, damage):
    shutil.copytree(pictures, tmp_path / "set")
    shard = damage(tmp_path / "set", 7)
    with open_dataset(tmp_path / "set") as dataset:
        assert dataset[6]["label"] == 6
        with pytest.raises(SampleError) as raised:
            dataset[7]
    assert (raised.value.key, raised.value.shard) == ("p/7.jpg", shard)


def test_every_type_of_field_comes_back(tmp_path):
    fields = {
        "text": "str",
        "meta": "json",
        "tokens": "int32:[-1]",
        "box": ("float32", (4,)),
        "raw": ("uint8", (10, 10)),
        "flag": "bool",
    }
    samples = [
        {
            "text": f"caption {n} é",
            "meta": {"n": n, "tags": ["x"] * n},
            "tokens": np.arange(n, dtype=np.int32),
            "box": np.full(4, n, np.float32),
            "raw": np.full((10, 10), n, np.uint8),
            "flag": n % 2 == 0,
        }
        for n in range(7)
    ]
    with DatasetWriter(tmp_path / "set", fields, block_samples=3) as writer:
        for sample in samples:
            writer.write(sample)
    with open_dataset(tmp_path / "set") as dataset:
        for number, wanted in enumerate(samples):
            got = dataset[number]
            for name, value in wanted.items():
                assert np.array_equal(got[name], value), name
            assert dataset.key(number) is None


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_worker_processes_of_a_dataloader_each_open_it_for_themselves(pictures, how):
    with open_dataset(pictures) as dataset:
        theirs = torch.utils.data.DataLoader(
            dataset, batch_size=None, num_workers=2, multiprocessing_context=how, timeout=60
        )
        assert [sample["label"] for sample in theirs] == list(range(NUM_PICTURES))
        assert dataset[3]["label"] == 3


def test_a_forked_process_neither_opens_a_closed_data_set_again_nor_waits_for_its_thread(pictures):
    closed, left = open_dataset(pictures), open_dataset(pictures)
    closed.close()

    class Checks(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, number):
            left.close()  # the thread is the parent's: waiting for it would never end
            with pytest.raises(RuntimeError, match="closed"):
                closed[number]
            return number

    workers = torch.utils.data.DataLoader(
        Checks(), num_workers=1, multiprocessing_context="fork", timeout=60
    )
    assert [int(number) for number in workers] == [0]
    assert left[0]["label"] == 0
    left.close()
