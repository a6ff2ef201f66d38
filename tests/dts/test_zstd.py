"""Compressed values: what is stored, what comes back, what is refused before it takes memory."""

from __future__ import annotations

import builtins
import threading
import tracemalloc

import numpy as np
import pytest
import zstandard

from streamloader.dts import (
    Dictionary,
    Field,
    Limits,
    Schema,
    ShardIndex,
    ShardWriter,
    decode_stored,
    decompress,
    decompress_into,
)
from streamloader.dts.layout import SectionKind
from streamloader.dts.tail import SectionContent
from streamloader.errors import ConfigError, ShardError

TEXT = Field("text", "utf8", codec="zstd")
WORDS = ("the", "shard", "holds", "samples", "and", "its", "tail", "says", "where", "they", "lie")


def _sentence(number: int, words: int = 60) -> str:
    return " ".join(WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(words))


def _frame(raw: bytes, **options) -> bytes:
    return zstandard.ZstdCompressor(**options).compress(raw)


@pytest.fixture(scope="module")
def dictionary() -> bytes:
    samples = [_sentence(n, 20 + n % 50).encode() for n in range(500)]
    return zstandard.train_dictionary(2048, samples, dict_id=77_000).as_bytes()


@pytest.fixture(scope="module")
def text_shard(workshop) -> bytes:
    return workshop.write(Schema((TEXT,)), [{"text": _sentence(n)} for n in range(4)])[0]


def test_values_that_shrink_are_stored_compressed_and_read_back(workshop, text_shard):
    index = workshop.check_all(text_shard)
    raw = [len(_sentence(n)) for n in range(4)]
    assert index.raw_lengths("text").tolist() == raw
    assert (index.lengths("text") < index.raw_lengths("text") * 0.7).all()
    for sample in range(4):
        assert index.read_record(sample, text_shard, 0) == {"text": _sentence(sample)}


def test_values_that_do_not_shrink_are_stored_raw(workshop):
    noise = np.random.default_rng(1).bytes(5000)
    almost = noise + bytes(200)
    schema = Schema((Field("d", "bytes", codec="zstd"),))
    records = [{"d": noise}, {"d": b""}, {"d": b"xyz"}, {"d": almost}]
    data, _ = workshop.write(schema, records)
    index = workshop.check_all(data)
    assert index.lengths("d").tolist() == index.raw_lengths("d").tolist() == [5000, 0, 3, 5200]
    assert [index.read_record(i, data, 0) for i in range(4)] == records


def test_values_that_shrink_beyond_what_readers_accept_are_stored_raw(workshop):
    mask = np.zeros((1024, 1024), np.uint8)
    assert mask.size / len(_frame(mask.tobytes())) > 10_000
    schema = Schema((Field("mask", "u1", (1024, 1024), "zstd"),))
    data, _ = workshop.write(schema, [{"mask": mask}])
    index = workshop.check_all(data)
    assert index.lengths("mask").tolist() == index.raw_lengths("mask").tolist() == [2**20]
    assert not index.read_record(0, data, 0)["mask"].any()


def test_masks_just_inside_the_ratio_are_stored_compressed(workshop):
    mask = np.zeros((512, 512), np.uint8)
    mask[::8, ::8] = np.random.default_rng(2).integers(0, 255, (64, 64))
    schema = Schema((Field("mask", "u1", (512, 512), "zstd"), Field("text", "utf8")))
    data, _ = workshop.write(schema, [{"mask": mask, "text": "a"}] * 2)
    index = workshop.check_all(data)
    assert (index.lengths("mask") < 2**18 / 10).all()
    assert index.lengths("text").tolist() == [1, 1]
    np.testing.assert_array_equal(index.read_record(1, data, 0)["mask"], mask)


def test_hashes_guard_the_stored_bytes(workshop, text_shard):
    index = workshop.check_all(text_shard)
    offsets, lengths = index.field_ranges("text", 1, 1)
    for at in (int(offsets[0]), int(offsets[0] + lengths[0]) - 1):
        damaged = bytearray(text_shard)
        damaged[at] ^= 1
        (fault,) = index.verify_records(0, 4, damaged, 0)
        assert (fault.sample_in_shard, fault.field) == (1, "text")


def test_compressed_pictures_have_the_columns_of_the_picture(workshop, picture):
    padded = picture + bytes(4000)
    schema = Schema((Field("image", "picture", codec="zstd"), Field("mask", "picture")))
    data, _ = workshop.write(schema, [{"image": padded, "mask": picture}])
    index = workshop.check_all(data)
    assert index.lengths("image")[0] < index.raw_lengths("image")[0] == len(padded)
    assert index.column("image.width").tolist() == index.column("mask.width").tolist() == [48]
    assert index.read_record(0, data, 0) == {"image": padded, "mask": picture}


def test_a_dictionary_travels_with_the_shard_and_serves_small_values(workshop, dictionary):
    records = [{"text": _sentence(n, 25)} for n in range(20)]
    plain, _ = workshop.write(Schema((TEXT,)), records)
    data, _ = workshop.write(Schema((TEXT,)), records, dictionaries={"text": dictionary})
    index, without = workshop.check_all(data), workshop.check_all(plain)
    assert index.lengths("text").sum() < 0.7 * without.lengths("text").sum()
    assert index.dictionary("text") == Dictionary(dictionary)
    assert index.dictionary("text").id == 77_000
    assert without.dictionary("text") is None
    assert [index.read_record(i, data, 0) for i in range(20)] == records


def test_a_value_decompresses_without_its_index(workshop, dictionary):
    data, _ = workshop.write(
        Schema((TEXT,)), [{"text": _sentence(3)}], dictionaries={"text": dictionary}
    )
    index = workshop.check_all(data)
    (offset,), (length,) = index.field_ranges("text", 0, 1)
    stored = np.frombuffer(data, np.uint8)[offset : offset + length]
    raw_bytes, trained = int(index.raw_lengths("text")[0]), index.dictionary("text")
    assert bytes(decompress(TEXT, stored, raw_bytes, dictionary=trained)) == _sentence(3).encode()
    assert decode_stored(TEXT, stored, raw_bytes, dictionary=trained) == _sentence(3)
    out = bytearray(raw_bytes)
    decompress_into(TEXT, stored, out, dictionary=trained)
    assert out.decode() == _sentence(3)


def test_values_stored_raw_are_given_without_a_copy():
    stored = memoryview(b"as it is")
    assert decompress(TEXT, stored, 8) is stored
    out = np.zeros((2, 4), np.uint8)
    decompress_into(TEXT, stored, out)
    assert out.tobytes() == b"as it is"


@pytest.mark.parametrize("out", [b"12345678", np.zeros(16, np.uint8)[::2]])
def test_memory_that_cannot_be_filled_is_refused(out):
    with pytest.raises(ConfigError, match="writable, contiguous"):
        decompress_into(TEXT, b"as it is", out)


def test_threads_decompress_side_by_side(dictionary):
    trained = Dictionary(dictionary)
    compress = zstandard.ZstdCompressor(
        dict_data=zstandard.ZstdCompressionDict(dictionary)
    ).compress
    values = [_sentence(n, 400).encode() for n in range(50)]
    frames = [(compress(v), v) for v in values]
    wrong = []

    def work():
        for stored, value in frames * 5:
            if decompress(TEXT, stored, len(value), dictionary=trained) != value:
                wrong.append(value)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_more_dictionaries_than_are_kept_ready_all_work():
    samples = [_sentence(n, 20 + n % 50).encode() for n in range(500)]
    for dict_id in list(range(1, 8)) * 2:
        loaded = zstandard.train_dictionary(1024, samples, dict_id=dict_id)
        frame = zstandard.ZstdCompressor(dict_data=loaded).compress(samples[9])
        trained = Dictionary(loaded.as_bytes())
        assert decompress(TEXT, frame, len(samples[9]), dictionary=trained) == samples[9]


RAW = _sentence(0, 200).encode()


@pytest.mark.parametrize(
    ("stored", "raw_bytes", "reason"),
    [
        (_frame(RAW), len(RAW) - 1, "not of the .* bytes that the index states"),
        (_frame(RAW), len(RAW) + 1, "not of the .* bytes that the index states"),
        (_frame(RAW)[:-1], len(RAW), "does not decompress"),
        (_frame(RAW)[:9], len(RAW), "does not decompress"),
        (_frame(RAW)[:5], len(RAW), "no zstd frame header|not of the"),
        (_frame(RAW) + b"\0", len(RAW), "does not decompress"),
        (_frame(RAW) + _frame(RAW), len(RAW), "does not decompress"),
        (_frame(RAW) + _frame(RAW), 2 * len(RAW), "not of the"),
        (_frame(RAW, write_content_size=False), len(RAW), "frame of no length"),
        (b"\x50\x2a\x4d\x18\x10\0\0\0" + bytes(16), 16 + 12, "does not start as a zstd frame"),
        (b"x" * 20, 40, "does not start as a zstd frame"),
        (b"", 5, "states 5 bytes from 0 stored"),
        (_frame(RAW), 10, "states 10 bytes from"),
        (_frame(bytes(10**6)), 10**6, "states 1000000 bytes from"),
        (_frame(RAW), 2**31 + 1, "states 2147483649 bytes from"),
    ],
)
def test_bytes_that_are_not_one_frame_of_the_stated_length_are_shard_errors(
    stored, raw_bytes, reason
):
    with pytest.raises(ShardError, match=reason) as caught:
        decompress(TEXT, stored, raw_bytes, shard="a.dts", offset=640)
    assert (caught.value.shard, caught.value.offset) == ("a.dts", 640)


def test_a_frame_that_promises_more_than_the_index_takes_no_memory():
    # The header of a one-segment frame of 2 GiB: magic, descriptor, 4 bytes of content size.
    bomb = b"\x28\xb5\x2f\xfd\xa0" + (2**31).to_bytes(4, "little") + bytes(200_000)
    tracemalloc.start()
    try:
        with pytest.raises(ShardError, match="2147483648 bytes, not of the 300000"):
            decompress(TEXT, bomb, 300_000)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def test_a_limit_below_the_formats_holds():
    frame = _frame(RAW)
    with pytest.raises(ShardError, match="states"):
        decompress(TEXT, frame, len(RAW), limits=Limits(raw_bytes=len(RAW) - 1))
    with pytest.raises(ShardError, match="states"):
        decompress(TEXT, frame, len(RAW), limits=Limits(raw_ratio=1))


def test_a_length_that_a_field_without_codec_does_not_have_is_a_shard_error():
    with pytest.raises(ShardError, match="has 5 bytes, not 6"):
        decompress(Field("d", "bytes"), b"12345", 6)


def test_frames_of_another_dictionary_are_refused_by_its_id(dictionary):
    loaded = zstandard.ZstdCompressionDict(dictionary)
    frame = zstandard.ZstdCompressor(dict_data=loaded).compress(RAW)
    with pytest.raises(ShardError, match="needs the zstd dictionary 77000, the shard has none"):
        decompress(TEXT, frame, len(RAW))
    other = Dictionary(dictionary[:4] + (78_000).to_bytes(4, "little") + dictionary[8:])
    with pytest.raises(ShardError, match="77000, the shard has 78000"):
        decompress(TEXT, frame, len(RAW), dictionary=other)


def test_a_dictionary_that_is_damaged_inside_is_a_shard_error(dictionary):
    loaded = zstandard.ZstdCompressionDict(dictionary)
    frame = zstandard.ZstdCompressor(dict_data=loaded).compress(RAW)
    damaged = Dictionary(dictionary[:8] + b"\xff" * 100 + dictionary[108:])
    with pytest.raises(ShardError, match="does not decompress"):
        decompress(TEXT, frame, len(RAW), dictionary=damaged)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"just text",
        b"\x37\xa4\x30\xec",
        b"\x37\xa4\x30\xec\0\0\0\0" + bytes(100),
        b"\x37\xa4\x30\xec\1\0\0\0" + bytes(2**20),
    ],
)
def test_bytes_that_are_no_dictionary_are_refused_by_writer_and_reader(workshop, text_shard, data):
    with pytest.raises(ConfigError, match="field 'text': dictionary"):
        ShardWriter(
            Schema((TEXT,)), uuid=bytes(16), sink=lambda _: None, dictionaries={"text": data}
        )
    contents = [SectionContent(SectionKind.ZDICT, 0, data), *workshop.sections(text_shard)]
    with pytest.raises(ShardError, match="dictionary"):
        workshop.check_all(workshop.with_sections(text_shard, contents))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"zstd_level": 0}, "zstd_level must be an integer of 1 to 22, got 0"),
        ({"zstd_level": 23}, "zstd_level"),
        ({"zstd_level": True}, "zstd_level"),
        ({"dictionaries": {"text": b"\x37\xa4\x30\xec" + b"\x01" * 60}}, "is unusable"),
        ({"dictionaries": {"other": b""}}, "no field 'other'"),
        ({"dictionaries": {"plain": b""}}, "not of codec 'zstd'"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    schema = Schema((TEXT, Field("plain", "utf8")))
    with pytest.raises(ConfigError, match=message):
        ShardWriter(schema, uuid=bytes(16), sink=lambda _: None, **options)


def test_the_level_decides_how_small_values_become(workshop):
    order = np.random.default_rng(4).integers(0, len(WORDS), 20_000)
    record = {"text": " ".join(WORDS[place] for place in order)}
    sizes = [
        workshop.write(Schema((TEXT,)), [record], zstd_level=level)[1].max_record_bytes
        for level in (1, 19)
    ]
    assert sizes[1] < sizes[0]


def _replace_raw_length(workshop, shard, value):
    def edit(raw):
        raw[:4] = value.to_bytes(4, "little")

    return workshop.replace_section(shard, SectionKind.RAWLENS, 0, edit)


def test_raw_lengths_that_no_writer_states_are_refused_at_open(workshop, text_shard):
    stored = int(workshop.check_all(text_shard).lengths("text")[0])
    for value in (0, stored - 1, 1000 * stored + 1, 2**31 + 1, 2**32 - 1):
        with pytest.raises(ShardError, match=f"states {value} bytes of field 'text'"):
            workshop.check_all(_replace_raw_length(workshop, text_shard, value))


def test_a_raw_length_that_the_frame_does_not_have_is_an_error_at_the_record(workshop, text_shard):
    raw = len(_sentence(0))
    for value in (raw - 1, raw + 1, 1000 * (raw // 10)):
        damaged = _replace_raw_length(workshop, text_shard, value)
        index = workshop.check_all(damaged)
        with pytest.raises(ShardError, match="field 'text'") as caught:
            index.read_record(0, damaged, 0)
        assert caught.value.offset == index.data_offset
        assert index.read_record(1, damaged, 0) == {"text": _sentence(1)}


def test_a_fixed_field_has_the_length_of_its_shape(workshop):
    schema = Schema((Field("a", "u2", (100,), "zstd"),))
    data, _ = workshop.write(schema, [{"a": np.arange(100) // 10}])
    with pytest.raises(ShardError, match="states 202 bytes of field 'a'"):
        workshop.check_all(_replace_raw_length(workshop, data, 202))


def test_bytes_that_are_not_of_their_type_after_decompression_name_the_record(workshop):
    frame = _frame(b"\xff" * 500)
    with pytest.raises(ShardError, match="not UTF-8") as caught:
        decode_stored(TEXT, frame, 500, shard="a.dts", offset=64)
    assert caught.value.offset == 64


def test_values_beyond_the_index_range_stay_raw_and_open(workshop, text_shard):
    index = workshop.check_all(text_shard)
    limits = Limits(raw_bytes=int(index.raw_lengths("text").max()) - 1)
    with pytest.raises(ShardError, match="states"):
        ShardIndex.parse(text_shard, name="x", file_bytes=len(text_shard), limits=limits)
    raw, _ = workshop.write(Schema((TEXT,)), [{"text": "abc"}])
    ShardIndex.parse(raw, name="x", file_bytes=len(raw), limits=Limits(raw_bytes=1))


@pytest.fixture
def without_zstandard(monkeypatch):
    real_import = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "zstandard":
            raise ImportError("No module named 'zstandard'")
        return real_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("without_zstandard")
def test_without_the_package_the_extra_is_named_where_it_is_needed(workshop, text_shard):
    with pytest.raises(ConfigError, match=r"field 'text'.*pip install 'streamloader\[zstd\]'"):
        ShardWriter(Schema((TEXT,)), uuid=bytes(16), sink=lambda _: None)
    index = workshop.check_all(text_shard)
    with pytest.raises(ConfigError, match=r"pip install 'streamloader\[zstd\]'"):
        index.read_record(0, text_shard, 0)
    assert decode_stored(TEXT, b"raw", 3) == "raw"


@pytest.mark.slow
def test_values_longer_than_zstds_default_window_limit_come_back(workshop):
    # 160 MiB: more than the 128 MiB of history that streaming readers accept.
    block = np.random.default_rng(3).bytes(2**20)
    value = b"".join(block[i:] + block[:i] for i in range(0, 160 * 7, 7))
    schema = Schema((Field("d", "bytes", codec="zstd"),))
    data, _ = workshop.write(schema, [{"d": value}], zstd_level=19)
    index = workshop.check_all(data)
    assert index.lengths("d")[0] < 2**23
    assert index.read_record(0, data, 0)["d"] == value
