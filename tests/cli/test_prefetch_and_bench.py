"""``streamloader prefetch`` and ``streamloader bench``: figures, faults, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from streamloader.convert import convert

RunCli = Callable[..., Result]
BOTH = pytest.mark.parametrize(
    "verb", [("prefetch",), ("bench", "--device", "cpu", "--size", "16")], ids=lambda v: v[0]
)


@pytest.fixture
def dataset(pictures: Path, tmp_path: Path) -> Path:
    convert(pictures, tmp_path / "out", shard_bytes="4kb", block_samples=2)
    return tmp_path / "out"


def fails_with_one_sentence(result: Result, exit_code: int, *words: str) -> None:
    assert result.exit_code == exit_code
    lines = result.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    for word in words:
        assert word in lines[0]
    assert "Traceback" not in result.output


def test_prefetch_reads_every_sample_and_says_what_the_storage_gave(
    dataset: Path, run_cli: RunCli
) -> None:
    result = run_cli("prefetch", dataset, "--batch-size", 4, "--epochs", 2, "--json")
    assert result.exit_code == 0
    values = json.loads(result.stdout)
    assert values["samples"] == 24
    assert values["bytes"] > 24 * 500
    assert values["retries"] == values["cache_hits"] == 0
    assert values["requests"] > 0
    assert 0 < values["first_block_s"] <= values["first_batch_s"] <= values["seconds"]
    assert values["mb_per_s"] == pytest.approx(values["bytes"] / 1e6 / values["seconds"])
    assert values["samples_per_s"] == pytest.approx(24 / values["seconds"])
    assert values["latency_ms"]["p50"] <= values["latency_ms"]["max"]
    assert values["errors"] == []


def test_prefetch_of_one_rank_reads_its_part(dataset: Path, run_cli: RunCli) -> None:
    samples = []
    for rank in range(3):
        result = run_cli(
            "prefetch", dataset, "--batch-size", 2, "--world-size", 3, "--rank", rank, "--json"
        )
        samples.append(json.loads(result.stdout)["samples"])
    assert sum(samples) == 12
    assert max(samples) == 4


def test_prefetch_names_a_damaged_sample_and_ends_with_one(dataset: Path, run_cli: RunCli) -> None:
    shard = dataset / "00000.dts"
    data = bytearray(shard.read_bytes())
    data[300] ^= 1
    shard.write_bytes(data)
    result = run_cli("prefetch", dataset, "--json")
    assert result.exit_code == 1
    (error,) = json.loads(result.stdout)["errors"]
    assert error["shard"] == "00000.dts"
    assert error["sample"] == 0
    assert run_cli("prefetch", dataset, "--no-verify").exit_code == 0


def test_bench_counts_valid_samples_and_times_every_stage(dataset: Path, run_cli: RunCli) -> None:
    result = run_cli(
        "bench",
        dataset,
        "--device",
        "cpu",
        "--batch-size",
        5,
        "--size",
        16,
        "--epochs",
        2,
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    values = json.loads(result.stdout)
    assert values["samples"] == 24
    assert values["samples_per_s"] == pytest.approx(24 / values["seconds"])
    assert 0 < values["first_batch_s"] <= values["seconds"]
    assert values["cpu_s_per_1k"] > 0
    for stage in ("fetch", "decode", "transfer", "wait"):
        times = values["stages"][stage]
        assert 0 < times["p50"] <= times["p95"] <= times["p99"] <= times["max"]


@BOTH
def test_a_place_without_a_data_set_ends_with_two(
    verb: tuple[str, ...], tmp_path: Path, run_cli: RunCli
) -> None:
    fails_with_one_sentence(
        run_cli(*verb, tmp_path), 2, str(tmp_path), "no data set", "streamloader convert"
    )


@BOTH
def test_a_missing_shard_ends_with_one_and_its_name(
    verb: tuple[str, ...], dataset: Path, run_cli: RunCli
) -> None:
    (dataset / "00001.dts").unlink()
    fails_with_one_sentence(run_cli(*verb, dataset), 1, "00001.dts")


@BOTH
def test_a_truncated_shard_ends_with_one_and_its_name(
    verb: tuple[str, ...], dataset: Path, run_cli: RunCli
) -> None:
    shard = dataset / "00001.dts"
    shard.write_bytes(shard.read_bytes()[:-100])
    fails_with_one_sentence(run_cli(*verb, dataset), 1, "00001.dts")


@BOTH
def test_a_damaged_manifest_ends_with_one(
    verb: tuple[str, ...], dataset: Path, run_cli: RunCli
) -> None:
    manifest = dataset / "manifest-000001.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"rev":1', b'"rev":2'))
    fails_with_one_sentence(run_cli(*verb, dataset), 1, "manifest-000001.json", "SHA-256")


@BOTH
def test_too_little_memory_ends_with_two_and_says_how_much_is_needed(
    verb: tuple[str, ...], dataset: Path, run_cli: RunCli
) -> None:
    fails_with_one_sentence(
        run_cli(*verb, dataset, "--memory-limit", "1kb"), 2, "memory_limit", "at least"
    )


def test_bench_stops_at_a_picture_that_is_none(tmp_path: Path, run_cli: RunCli) -> None:
    from streamloader import DatasetWriter

    whole = (Path(__file__).parents[1] / "hostile/images/other/truncated.png").read_bytes()
    with DatasetWriter(tmp_path / "set", {"image": "picture"}) as writer:
        writer.write({"image": whole}, key="half.png")
    result = run_cli("bench", tmp_path / "set", "--device", "cpu", "--size", "16")
    fails_with_one_sentence(result, 1, "half.png", "00000.dts")


@pytest.mark.s3
@BOTH
def test_a_bucket_that_cannot_be_read_ends_with_two_and_a_reason(
    verb: tuple[str, ...],
    s3_bucket: object,
    s3_server: object,
    run_cli: RunCli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    endpoint = ("--endpoint-url", s3_server.endpoint_url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    url = f"{s3_bucket.url}/set"
    fails_with_one_sentence(run_cli(*verb, url, *endpoint), 2, "no data set", url)
    fails_with_one_sentence(
        run_cli(*verb, "s3://no-such-bucket-here/set", *endpoint), 2, "no-such-bucket-here"
    )
    dead = ("--endpoint-url", "http://127.0.0.1:9", "--storage-option", "download_retry=1")
    fails_with_one_sentence(run_cli(*verb, url, *dead), 2, "127.0.0.1:9")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-in-a-test")
    result = run_cli(*verb, url, *endpoint)
    fails_with_one_sentence(result, 2, s3_bucket.name)
    assert "wrong-secret" not in result.output
