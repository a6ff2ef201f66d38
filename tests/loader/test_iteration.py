"""What a training loop sees: batches, epochs, order, padding."""

from __future__ import annotations

import hashlib
import shutil
import threading

import numpy as np
import pytest
import torch
from picture_sets import NUM_PICTURES, picture, write_pictures

from streamloader import CenterCrop, ConfigError, RandomResizedCrop, StreamLoader
from streamloader.decode import decode_picture, native_is_built


def loader(dataset, **options):
    wanted = {"batch_size": 8, "transform": RandomResizedCrop(32, flip=0.5), "device": "cpu"}
    return StreamLoader(str(dataset), **{**wanted, **options})


def epoch(stream):
    """Samples in order, and a digest of every byte of the epoch."""
    samples, digest = [], hashlib.sha256()
    for batch in stream:
        samples += batch["index"][batch["valid"]].tolist()
        for name in sorted(batch):
            digest.update(np.ascontiguousarray(batch[name].numpy()).tobytes())
    return samples, digest.hexdigest()


def test_a_batch_is_a_mapping_of_tensors_in_channels_last(pictures):
    with loader(pictures) as stream:
        batch = next(iter(stream))
    assert set(batch) == {"image", "label", "index", "valid"}
    assert batch["image"].shape == (8, 3, 32, 32)
    assert batch["image"].dtype == torch.uint8
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)
    assert batch["label"].dtype == torch.int64
    assert batch["index"].dtype == torch.int64
    assert batch["valid"].dtype == torch.bool
    assert batch["label"].tolist() == batch["index"].tolist()


@pytest.mark.parametrize("device", ["cpu:0", torch.device("cpu"), torch.device("cpu", 0)])
def test_the_cpu_has_the_names_that_torch_gives_it(pictures, device):
    with loader(pictures, device=device) as stream:
        assert next(iter(stream))["image"].device.type == "cpu"


def test_a_batch_made_anew_from_its_fields_has_them_and_no_state(pictures):
    with loader(pictures) as stream:
        batch = next(iter(stream))
    again = type(batch)(dict(batch.items()))
    assert again["image"] is batch["image"]
    assert set(again) == set(batch)
    assert batch.to("cpu").state == batch.state
    with pytest.raises(ConfigError, match="has no state"):
        _ = again.state


def test_pixels_are_those_of_the_stored_picture(pictures):
    with loader(pictures, transform=CenterCrop(32), batch_size=5) as stream:
        for batch in stream:
            for row in np.flatnonzero(batch["valid"].numpy()):
                whole = decode_picture(picture(int(batch["index"][row])))
                top, left = round((whole.shape[0] - 32) / 2), round((whole.shape[1] - 32) / 2)
                wanted = whole[top : top + 32, left : left + 32]
                got = batch["image"][row].permute(1, 2, 0).numpy()
                assert np.array_equal(got, wanted)


@pytest.mark.parametrize("shuffle", [False, True, "window", "global"])
def test_every_sample_comes_once_per_epoch_and_epochs_differ(pictures, shuffle):
    with loader(pictures, shuffle=shuffle) as stream:
        first, _ = epoch(stream)
        second, _ = epoch(stream)
    assert sorted(first) == sorted(second) == list(range(NUM_PICTURES))
    if shuffle is False:
        assert first == second == list(range(NUM_PICTURES))
    else:
        assert first != second
        assert first != sorted(first)


def test_bytes_are_the_same_for_any_number_of_workers_and_on_every_run(pictures):
    seen = set()
    for workers in (1, 2, 4, 2):
        with loader(pictures, shuffle=True, num_workers=workers) as stream:
            seen.add(epoch(stream)[1])
    assert len(seen) == 1


def test_another_seed_gives_another_order_and_set_epoch_repeats_one(pictures):
    with loader(pictures, shuffle=True, seed=1) as one, loader(pictures, shuffle=True) as zero:
        assert epoch(one)[0] != epoch(zero)[0]
        zero.set_epoch(0)
        again = epoch(zero)
        zero.set_epoch(0)
        assert epoch(zero) == again


def test_the_last_batch_is_padded_with_flagged_rows(pictures):
    with loader(pictures) as stream:
        batches = list(stream)
        assert len(batches) == len(stream) == -(-NUM_PICTURES // 8)
    last = batches[-1]
    assert last["valid"].sum() == NUM_PICTURES % 8
    assert last["image"].shape[0] == 8
    assert last["index"][~last["valid"]].tolist() == [0] * (8 - NUM_PICTURES % 8)


def test_the_last_batch_can_be_dropped_or_partial(pictures):
    with loader(pictures, drop_last=True) as stream:
        assert [len(batch["index"]) for batch in stream] == [8] * (NUM_PICTURES // 8)
        assert len(stream) == NUM_PICTURES // 8
    with loader(pictures, last_batch="partial") as stream:
        sizes = [batch["image"].shape[0] for batch in stream]
        assert sizes[-1] == NUM_PICTURES % 8
        assert len(sizes) == len(stream)
    with pytest.raises(ConfigError, match="not both"):
        loader(pictures, drop_last=True, last_batch="pad")


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_ranks_have_equal_steps_and_share_the_epoch_exactly(pictures, world_size):
    seen, steps = [], set()
    for rank in range(world_size):
        with loader(
            pictures, shuffle=True, rank=rank, world_size=world_size, local_world_size=world_size
        ) as stream:
            steps.add(len(stream))
            seen += epoch(stream)[0]
    assert len(steps) == 1
    assert sorted(seen) == list(range(NUM_PICTURES))


def test_without_a_transform_pictures_come_as_they_are_stored(pictures):
    with loader(pictures, transform=None) as stream:
        for batch in stream:
            for row, data in enumerate(batch["image"]):
                assert data == picture(int(batch["index"][row]))


@pytest.mark.parametrize("output", ["float32", "float16", "bfloat16"])
def test_float_outputs_are_normalised(pictures, output):
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    options = {"transform": CenterCrop(32), "batch_size": 8}
    with (
        loader(pictures, **options) as plain,
        loader(pictures, output=output, mean=mean, std=std, **options) as stream,
    ):
        raw, batch = next(iter(plain))["image"], next(iter(stream))["image"]
    assert batch.dtype == getattr(torch, output)
    shape = (1, 3, 1, 1)
    wanted = (raw.float() / 255 - torch.tensor(mean).view(shape)) / torch.tensor(std).view(shape)
    assert torch.allclose(batch.float(), wanted, rtol=1e-2, atol=1e-2)


def test_a_held_batch_is_never_overwritten(pictures):
    with loader(pictures, shuffle=True, prefetch_batches=1) as stream:
        held = [(batch, batch["image"].clone(), batch["label"].clone()) for batch in stream]
    for batch, image, label in held:
        assert torch.equal(batch["image"], image)
        assert torch.equal(batch["label"], label)


def test_an_early_break_starts_the_next_epoch_and_leaves_no_thread(pictures):
    before = {thread.name for thread in threading.enumerate()}
    with loader(pictures, shuffle=True) as stream:
        for _ in range(20):
            next(iter(stream))
        assert stream.state_dict()["epoch"] == 19
        assert sorted(epoch(stream)[0]) == list(range(NUM_PICTURES))
        assert stream.state_dict()["epoch"] == 20
    assert {thread.name for thread in threading.enumerate()} <= before


def test_an_iterator_that_gave_nothing_uses_up_no_epoch(pictures):
    with loader(pictures, shuffle=True) as stream:
        untouched = iter(stream)
        iter(stream)
        assert stream.state_dict()["epoch"] == 0
        with pytest.raises(ConfigError, match="ended by a newer"):
            next(untouched)
        states = [batch.state for batch in stream]
        assert {state["epoch"] for state in states} == {0}
        stream.load_state_dict(states[2])
        iter(stream)
        assert [batch.state for batch in stream] == states[3:]
        iter(stream)
        assert next(iter(stream)).state["epoch"] == 1


def test_a_second_iterator_ends_the_first(pictures):
    with loader(pictures) as stream:
        first = iter(stream)
        next(first)
        second = iter(stream)
        with pytest.raises(ConfigError, match="ended by a newer"):
            next(first)
        assert len(list(second)) == len(stream)
        with pytest.raises(StopIteration):
            next(second)


def test_a_closed_loader_says_so_and_close_is_idempotent(pictures):
    stream = loader(pictures)
    batch = next(iter(stream))
    copy = batch["image"].clone()
    stream.close()
    stream.close()
    assert torch.equal(batch["image"], copy)
    with pytest.raises(ConfigError, match="closed"):
        iter(stream)


def test_stats_tell_counts_times_and_memory(pictures):
    with loader(pictures, shuffle=True) as stream:
        epoch(stream)
        stats = stream.stats()
    assert stats["counters"]["samples"] == NUM_PICTURES
    assert stats["counters"]["fetch.pieces"] > 0
    assert stats["counters"]["storage.bytes_read"] >= stats["counters"]["fetch.bytes"]
    assert stats["times_ms"]["decode.share_s"]["count"] > 0
    assert stats["memory_bytes"]["used"]["blocks_peak"] > 0
    assert stats["decoder"] == ("native" if native_is_built() else "pillow")


def test_a_split_that_does_not_exist_is_refused(pictures):
    with pytest.raises(ConfigError, match="no split 'val'"):
        loader(pictures, split="val")


def test_a_place_without_a_data_set_is_refused_with_advice(tmp_path):
    with pytest.raises(ConfigError, match="no data set at .*streamloader convert"):
        loader(tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 0}, "batch_size must be"),
        ({"num_workers": 0}, "num_workers must be"),
        ({"pin_workers": "numa"}, "pin_workers must be one of .*'node'"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"device": "tpu"}, "device must be"),
        ({"memory_limit": "many"}, "memory_limit must be"),
        ({"memory_limit": "10kib"}, "memory_limit=.* too small.* at least"),
        ({"output": "int4"}, "got 'int4'"),
    ],
)
def test_arguments_that_cannot_work_are_refused_by_name(pictures, options, words):
    with pytest.raises(ConfigError, match=words):
        loader(pictures, **options)


def test_the_limit_that_the_refusal_names_is_enough(pictures):
    with pytest.raises(ConfigError) as refused:
        loader(pictures, shuffle=True, memory_limit=1000)
    least = int(str(refused.value).split("at least ")[1].split(", or")[0].replace(",", ""))
    with loader(pictures, shuffle=True, memory_limit=least) as stream:
        assert sorted(epoch(stream)[0]) == list(range(NUM_PICTURES))
        memory = stream.stats()["memory_bytes"]
    used = memory["used"]
    assert used["blocks_peak"] + used["tails"] + used["slots"] <= least
    assert least < 10_000_000


def test_a_data_set_of_one_picture_fills_a_batch_with_flagged_rows(tmp_path):

    write_pictures(tmp_path / "one", count=1)
    for rank in range(3):
        with loader(
            tmp_path / "one", shuffle=True, rank=rank, world_size=3, local_world_size=3
        ) as stream:
            batches = list(stream)
        assert len(batches) == 1
        assert batches[0]["valid"].sum() == (1 if rank == 0 else 0)


def test_a_missing_shard_reaches_the_consumer_by_name(pictures, tmp_path):
    from storage_backends import NotFound

    shutil.copytree(pictures, tmp_path / "set")
    victim = sorted((tmp_path / "set").glob("*.dts"))[1]
    victim.unlink()
    with loader(tmp_path / "set") as stream, pytest.raises(NotFound, match=victim.name):
        list(stream)


@pytest.mark.parametrize(("count", "block_samples"), [(70, 66), (5, 3), (128, 120), (9, 1)])
def test_data_sets_of_a_few_blocks_fit_the_memory_they_ask_for(tmp_path, count, block_samples):
    write_pictures(tmp_path / "set", count=count, block_samples=block_samples)
    with pytest.raises(ConfigError) as refused:
        loader(tmp_path / "set", shuffle=True, memory_limit=1000)
    least = int(str(refused.value).split("at least ")[1].split(", or")[0].replace(",", ""))
    with loader(tmp_path / "set", shuffle=True, memory_limit=least) as stream:
        for _ in range(5):
            assert sorted(epoch(stream)[0]) == list(range(count))
