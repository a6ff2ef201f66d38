"""Several data sets mixed by weight: what comes, in which order, and what is refused."""

from __future__ import annotations

import io
import json
import logging
import shutil

import numpy as np
import pytest
from picture_sets import picture, write_pictures
from PIL import Image
from user_functions import double_label

from streamloader import (
    CenterCrop,
    ConfigError,
    DatasetWriter,
    RandomResizedCrop,
    SampleError,
    Source,
    StateMismatch,
    StreamLoader,
)
from streamloader.convert import convert
from streamloader.decode import decode_picture

SIZES = (83, 30)
WEIGHTS = (0.7, 0.3)
TOTAL = sum(SIZES)


@pytest.fixture(scope="session")
def both(pictures, tmp_path_factory):
    """Two data sets of pictures; a label is the number of its sample."""
    small = tmp_path_factory.mktemp("mixture") / "small"
    write_pictures(small, SIZES[1])
    return str(pictures), str(small)


def loader(data, **options):
    wanted = {"batch_size": 8, "transform": CenterCrop(24), "device": "cpu", "shuffle": True}
    return StreamLoader(data, **{**wanted, **options})


def mixed(both, **options):
    return loader(dict(zip(both, WEIGHTS, strict=True)), **options)


def drawn(batches):
    """(source, index) of each valid row."""
    return [
        pair
        for batch in batches
        for pair, valid in zip(
            zip(batch["source"].tolist(), batch["index"].tolist(), strict=True),
            batch["valid"].tolist(),
            strict=True,
        )
        if valid
    ]


def content(batches):
    return [
        ({name: np.asarray(value).tobytes() for name, value in b.items()}, b.state) for b in batches
    ]


def global_order(both, batch_size, world_size, **options):
    """The epoch's rows as all ranks together have them, by batch in ascending position."""
    rows = []
    for rank in range(world_size):
        with mixed(both, batch_size=batch_size, rank=rank, world_size=world_size, **options) as own:
            for number, batch in enumerate(own):
                rows += [(number, pair) for pair in drawn([batch])]
    return rows


def test_rows_are_samples_of_the_data_sets_that_they_name(both):
    with mixed(both) as stream:
        batches = list(stream)
        assert len(batches) == len(stream) == -(-TOTAL // 8)
        assert stream.num_samples == TOTAL
        assert stream.classes == ["a", "b"]
    for batch in batches:
        assert batch["source"].dtype == batch["index"].dtype
        assert batch["label"].tolist() == batch["index"].tolist()
        whole = decode_picture(picture(int(batch["index"][0])))
        top, left = round((whole.shape[0] - 24) / 2), round((whole.shape[1] - 24) / 2)
        crop = whole[top : top + 24, left : left + 24]
        assert np.array_equal(batch["image"][0].permute(1, 2, 0).numpy(), crop)


def test_every_prefix_has_the_weights_and_every_data_set_goes_through_full_passes(both):
    with mixed(both) as stream:
        pairs = [pair for _ in range(3) for pair in drawn(stream)]
    assert len(pairs) == 3 * TOTAL
    sources = np.array([source for source, _ in pairs])
    ones = np.cumsum(sources)
    assert np.abs(ones - WEIGHTS[1] * np.arange(1, len(pairs) + 1)).max() <= 0.5
    for source, size in enumerate(SIZES):
        numbers = [index for of, index in pairs if of == source]
        assert len(numbers) > size
        for begin in range(0, len(numbers) - size + 1, size):
            assert sorted(numbers[begin : begin + size]) == list(range(size))


def test_without_weights_every_sample_of_all_data_sets_comes_once_an_epoch(both):
    with loader(list(both)) as stream:
        every = {(source, index) for source, size in enumerate(SIZES) for index in range(size)}
        first, second = drawn(stream), drawn(stream)
    assert len(first) == len(second) == TOTAL
    assert set(first) == set(second) == every
    assert first != second


@pytest.mark.parametrize("shuffle", [True, False, "global"])
def test_one_data_set_in_a_list_is_the_plain_loader_and_says_its_number(both, shuffle):
    with loader(both[0], shuffle=shuffle) as plain, loader({both[0]: 5}, shuffle=shuffle) as one:
        for _ in range(2):
            for ours, theirs in zip(one, plain, strict=True):
                assert ours["source"].tolist() == [0] * 8
                assert ours.state == theirs.state
                for name in theirs:
                    assert np.array_equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("epoch_size", [1, 40, 500])
def test_epochs_of_another_size_go_on_where_the_last_one_stopped(both, epoch_size):
    with mixed(both, epoch_size=epoch_size, batch_size=10) as stream:
        assert stream.num_samples == epoch_size
        pairs = [p for _ in range(max(2, 240 // epoch_size)) for p in drawn(stream)]
    with mixed(both) as stream:
        whole = [pair for _ in range(9) for pair in drawn(stream)]
    assert pairs == whole[: len(pairs)]


@pytest.mark.parametrize(("batch_size", "world_size"), [(4, 2), (3, 3), (2, 5), (64, 4)])
def test_ranks_take_equal_steps_of_one_order(both, batch_size, world_size):
    alone = global_order(both, batch_size * world_size, 1)
    shared = global_order(both, batch_size, world_size)
    assert sorted(shared) == sorted(alone)
    for rank in range(world_size):
        with mixed(both, batch_size=batch_size, rank=rank, world_size=world_size) as own:
            assert len(own) == -(-TOTAL // (batch_size * world_size))


def test_a_run_resumes_at_every_batch_and_on_other_ranks_and_batch_sizes(both):
    with mixed(both) as stream:
        list(stream)
        batches = list(stream)
    whole = drawn(batches)
    for number, batch in enumerate(batches[:-1]):
        state = json.loads(json.dumps(batch.state))
        rest = whole[8 * (number + 1) :]
        with mixed(both) as stream:
            stream.load_state_dict(state)
            assert content(stream) == content(batches[number + 1 :])
        if number % 5 == 0:
            with mixed(both, batch_size=3) as stream:
                stream.load_state_dict(state)
                assert drawn(stream) == rest
            shares = []
            for rank in range(3):
                with mixed(both, batch_size=2, rank=rank, world_size=3) as stream:
                    stream.load_state_dict(state)
                    shares += drawn(stream)
            assert sorted(shares) == sorted(rest)


def test_the_feed_process_gives_the_same_batches_and_states(both):
    options = {"transform": RandomResizedCrop(24), "epoch_size": 60}
    with mixed(both, **options) as threads, mixed(both, feed="process", **options) as process:
        for _ in range(2):
            assert content(process) == content(threads)


def test_devices_of_one_process_have_the_batches_of_ranks(both):
    ranks = [list(mixed(both, rank=rank, world_size=2)) for rank in range(2)]
    data = dict(zip(both, WEIGHTS, strict=True))
    with loader(data, device=None, devices=["cpu", "cpu"]) as group:
        for number, step in enumerate(group):
            wanted = [rank[number] for rank in ranks]
            for ours, theirs in zip(step, wanted, strict=True):
                for name in theirs:
                    assert np.array_equal(ours[name], theirs[name]), name


@pytest.mark.parametrize("last_batch", ["pad", "drop", "partial"])
def test_the_end_of_an_epoch_keeps_ranks_in_step(both, last_batch):
    pairs, steps = [], set()
    for rank in range(3):
        options = {"rank": rank, "world_size": 3, "last_batch": last_batch}
        with mixed(both, batch_size=10, **options) as stream:
            batches = list(stream)
            steps.add(len(batches))
            pairs += drawn(batches)
    assert steps == {3 if last_batch == "drop" else 4}
    assert len(pairs) == (90 if last_batch == "drop" else TOTAL)


def test_batches_by_arrival_have_the_samples_and_crops_of_the_planned_order(both):
    data = {both[0]: 0.4, both[1]: 0.6}
    options = {"transform": RandomResizedCrop(24), "batch_size": 10}
    with loader(data, **options) as planned, loader(data, deterministic=False, **options) as free:
        for _ in range(2):
            wanted, found = (
                sorted(
                    (source, index, batch["image"][row].numpy().tobytes())
                    for batch in stream
                    for row, (source, index) in enumerate(
                        zip(batch["source"].tolist(), batch["index"].tolist(), strict=True)
                    )
                    if batch["valid"][row]
                )
                for stream in (planned, free)
            )
            assert found == wanted
            assert len(found) == TOTAL


@pytest.mark.parametrize("deterministic", [True, False])
def test_what_ranks_took_by_arrival_goes_on_exactly_on_other_ranks(both, deterministic):
    taken, states = [], []
    for rank in range(2):
        options = {"rank": rank, "world_size": 2, "deterministic": False}
        with mixed(both, batch_size=5, **options) as stream:
            batches = iter(stream)
            taken += drawn([next(batches) for _ in range(4)])
            states.append(json.loads(json.dumps(stream.state_dict())))
    for rank in range(3):
        options = {"rank": rank, "world_size": 3, "deterministic": deterministic}
        with mixed(both, batch_size=4, **options) as stream:
            stream.load_state_dict(states)
            taken += drawn(stream)
    with mixed(both) as stream:
        assert sorted(taken) == sorted(drawn(stream))


def test_a_sample_drawn_again_in_an_epoch_is_cropped_anew(both):
    data = {both[0]: 0.1, both[1]: 0.9}
    with loader(data, transform=RandomResizedCrop(24)) as stream:
        crops = {}
        for batch in stream:
            for row, pair in enumerate(
                zip(batch["source"].tolist(), batch["index"].tolist(), strict=True)
            ):
                if batch["valid"][row]:
                    crops.setdefault(pair, []).append(batch["image"][row].numpy().tobytes())
    again = [found for found in crops.values() if len(found) > 1]
    assert len(again) == 30
    assert all(len(set(found)) == len(found) for found in again)


def test_a_state_of_another_mixture_is_refused_with_what_differs(both, tmp_path):
    write_pictures(tmp_path / "other", 12)
    other = str(tmp_path / "other")
    with mixed(both) as stream:
        state = stream.state_dict()
    for data, words in (
        ({both[0]: 0.6, both[1]: 0.4}, "its weight of data set 0 is 7, the loader's is 3"),
        ({both[0]: 0.7, other: 0.3}, "its data set 1 is [0-9a-f]{16}, the loader's is [0-9a-f]"),
        ({both[1]: 0.3, both[0]: 0.7}, "its data set 0 is .* its data set 1 is"),
        ({both[0]: 7, both[1]: 3, other: 1}, "it mixes 2 data sets, the loader mixes 3"),
        (both[0], "it mixes several data sets, the loader has one"),
    ):
        with loader(data) as stream, pytest.raises(StateMismatch, match=words) as refused:
            stream.load_state_dict(state)
        assert "fingerprint" not in str(refused.value)
    with mixed(both, epoch_size=50) as stream, pytest.raises(StateMismatch, match="epoch size"):
        stream.load_state_dict(state)
    with loader({both[0]: 70, both[1]: 30}) as stream:
        stream.load_state_dict(state)


def write_numbers(path, fields, count=10, **options):
    with DatasetWriter(path, fields, **options) as writer:
        for number in range(count):
            writer.write(dict.fromkeys(fields, number))
    return str(path)


@pytest.mark.parametrize(
    ("fields", "options", "words"),
    [
        ({"label": "int32"}, {}, r"the field 'label' is i8 in the one and i4 in the other"),
        ({"label": "int64:[2]"}, {}, r"the field 'label' is i8 in the one and i8:\[2\]"),
        ({"label": "int64", "more": "int64"}, {}, r"two has the field 'more', .*one does not"),
        ({"other": "int64"}, {}, r"one has the field 'label', .*two does not"),
        ({"label": "int64"}, {"classes": ["a"]}, "they have 2 and 1 classes"),
        ({"label": "int64"}, {"classes": ["a", "c"]}, "class 1 is 'b' in the one and 'c' in the"),
        ({"label": "int64"}, {"classes": None}, "only .*one has names of classes"),
    ],
)
def test_data_sets_that_do_not_mix_are_refused_by_name(tmp_path, fields, options, words):
    one = write_numbers(tmp_path / "one", {"label": "int64"}, classes=["a", "b"])
    two = tmp_path / "two"
    with DatasetWriter(two, fields, **{"classes": ["a", "b"], **options}) as writer:
        writer.write({name: [0, 0] if "[2]" in kind else 0 for name, kind in fields.items()})
    with pytest.raises(ConfigError, match=words) as refused:
        loader([one, str(two)], transform=None)
    assert one in str(refused.value)
    assert str(two) in str(refused.value)


def test_fields_may_stand_in_another_order_and_under_another_codec(tmp_path):
    pytest.importorskip("zstandard")
    texts = {"one": [], "two": []}
    for name, fields, options in (
        ("one", {"text": "str", "n": "int64"}, {}),
        ("two", {"n": "int64", "text": "str"}, {"codec": "zstd"}),
    ):
        with DatasetWriter(tmp_path / name, fields, **options) as writer:
            for number in range(20):
                texts[name].append(f"{name} {number} " * 20)
                writer.write({"text": texts[name][-1], "n": number})
    with loader([str(tmp_path / "one"), str(tmp_path / "two")], transform=None) as stream:
        seen = 0
        for batch in stream:
            assert batch["n"].tolist() == batch["index"].tolist()
            for row, text in enumerate(batch["text"]):
                name = ("one", "two")[int(batch["source"][row])]
                assert text == texts[name][int(batch["index"][row])]
                seen += 1
    assert seen == 40


def test_a_data_set_with_a_field_called_source_is_not_mixed_but_loads_alone(tmp_path):
    path = write_numbers(tmp_path / "one", {"source": "int64"})
    with pytest.raises(ConfigError, match="field named 'source'"):
        loader([path], transform=None)
    with loader(path, transform=None, shuffle=False, batch_size=10) as stream:
        assert next(iter(stream))["source"].tolist() == list(range(10))


@pytest.mark.parametrize(
    ("choose", "words"),
    [
        (lambda a, b: {a: 0.0, b: 1.0}, "must be a positive number, got 0.0"),
        (lambda a, b: {a: -0.5, b: 1.0}, "must be a positive number, got -0.5"),
        (lambda a, b: {a: float("nan"), b: 1.0}, "must be a positive number, got nan"),
        (lambda a, b: {a: "much", b: 1.0}, "must be a positive number, got 'much'"),
        (lambda a, b: [Source(a, 0.5), Source(b)], "no weight for .*small: give every data set"),
        (lambda a, b: [], "one data set at least"),
        (lambda a, b: {}, "one data set at least"),
        (lambda a, b: [a, 7], "takes URLs and Source, got 7"),
        (lambda a, b: 7, "give the URL of a data set"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(both, choose, words):
    with pytest.raises(ConfigError, match=words):
        loader(choose(*both))


@pytest.mark.parametrize("options", [{"subset": 0.5}, {"sampler_weights": "balanced"}])
def test_choosing_from_one_data_set_is_refused_for_a_mixture(both, options):
    with pytest.raises(ConfigError, match="choose from one data set: leave them out"):
        mixed(both, **options)
    with loader([both[1]], subset=[3, 4]) as stream:
        assert sorted(drawn(stream)) == [(0, 3), (0, 4)]


def test_a_split_and_options_may_be_one_data_set_s_own(both, tmp_path):
    for number in range(12):
        folder = tmp_path / "pictures" / ("train" if number < 9 else "val") / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(picture(number))
    split = str(tmp_path / "split")
    convert(str(tmp_path / "pictures"), split)
    with loader([Source(split, 1, split="val"), Source(both[1], 1)]) as stream:
        state = stream.state_dict()
        assert stream.num_samples == 33
        assert {index for source, index in drawn(stream) if source == 0} == {0, 1, 2}
    with (
        loader([Source(split, 1, split="train"), Source(both[1], 1)]) as stream,
        pytest.raises(StateMismatch, match=r"data set 0 is \w+:val, the loader's is \w+:train"),
    ):
        stream.load_state_dict(state)
    with pytest.raises(ConfigError, match="no split 'val'"):
        loader([Source(split), Source(both[1])], split="val")


def test_a_damaged_sample_is_named_in_its_own_data_set_and_skipped_in_step(
    both, tmp_path, damage, caplog
):
    path = tmp_path / "small"
    shutil.copytree(both[1], path)
    shard = damage(path, 21)
    data = {both[0]: 0.7, str(path): 0.3}
    options = {"epoch_size": 100, "on_error": "skip", "max_bad_fraction": 0.1}
    with loader(data) as stream, pytest.raises(SampleError) as raised:
        list(stream)
    error = raised.value
    assert (error.sample, error.key, error.shard) == (21, "p/21.jpg", shard)
    assert error.dataset == str(path)
    with caplog.at_level(logging.WARNING, "streamloader"), loader(data, **options) as stream:
        batches = list(stream)
        state = stream.state_dict()
    rows = [
        (batch, row)
        for batch in batches
        for row in range(8)
        if (int(batch["source"][row]), int(batch["index"][row])) == (1, 21)
    ]
    assert len(rows) == state["skipped"] == 1
    batch, row = rows[0]
    assert not batch["valid"][row]
    good = row - 1 if row else 1
    assert np.array_equal(batch["image"][row], batch["image"][good])
    assert "p/21.jpg" in caplog.text
    assert str(path) in caplog.text


def test_the_cache_keeps_blocks_of_every_data_set_and_serves_them_later(both, tmp_path):
    options = {"cache_dir": tmp_path / "cache"}
    with loader(list(both), **options) as stream:
        first = content(stream)
    assert len([path for path in (tmp_path / "cache").iterdir() if path.is_dir()]) == 2
    with loader(list(both), **options) as stream:
        assert content(stream) == first
        counters = stream.stats()["counters"]
    assert counters["cache.hits"] > 0
    assert counters.get("cache.misses", 0) == 0


def test_data_sets_of_a_mixture_do_not_drive_each_other_out_of_a_small_cache(both, tmp_path):
    cache = tmp_path / "cache"
    with loader(list(both), cache_dir=cache, cache_limit=60_000) as stream:
        list(stream)
        kept = {path.name for path in cache.rglob("*.block")}
        for _ in range(2):
            list(stream)
        assert {path.name for path in cache.rglob("*.block")} >= kept
        assert stream.stats()["counters"]["cache.hits"] > 0
    assert kept


def test_too_little_memory_is_refused_with_what_would_do(both):
    with pytest.raises(ConfigError, match="memory_limit=50,000 bytes is too small"):
        mixed(both, memory_limit=50_000)


def test_the_user_s_own_code_is_told_the_data_set(both):
    with mixed(both, map=double_label) as stream:
        for batch in stream:
            assert batch["twice"].tolist() == [2 * index for index in batch["index"].tolist()]
            assert set(batch["source"].tolist()) <= {0, 1}


def test_many_data_sets_of_few_samples_mix(tmp_path):
    paths = []
    for number in range(12):
        data = io.BytesIO()
        Image.new("RGB", (32, 32), (number * 20, 0, 0)).save(data, "PNG")
        path = tmp_path / str(number)
        with DatasetWriter(path, {"image": "picture", "label": "int64"}) as writer:
            for _ in range(number + 1):
                writer.write({"image": data.getvalue(), "label": number})
        paths.append(str(path))
    with loader(dict.fromkeys(paths, 1), epoch_size=240) as stream:
        pairs = []
        for batch in stream:
            assert batch["label"].tolist() == batch["source"].tolist()
            assert (batch["image"][:, 0, 0, 0] == 20 * batch["source"]).all()
            pairs += drawn([batch])
    assert np.bincount([source for source, _ in pairs]).tolist() == [20] * 12


@pytest.mark.s3
def test_a_bucket_and_a_folder_mix_under_one_set_of_options(s3_bucket, both):
    remote = f"{s3_bucket.url}/small"
    options = {"storage_options": s3_bucket.storage_options}
    write_pictures(remote, SIZES[1], **options)
    data = {both[0]: 0.7, remote: 0.3}
    with loader(data, **options) as stream, mixed(both) as local:
        assert stream.state_dict() == local.state_dict()
        assert content(stream) == content(local)
    own = [Source(both[0], 0.7), Source(remote, 0.3, storage_options=s3_bucket.storage_options)]
    with loader(own, feed="process") as stream, mixed(both) as local:
        assert content(stream) == content(local)
