"""URLs and options: what is accepted, and what is refused by name."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage_backends import (
    Misconfigured,
    NotFound,
    StorageError,
    StorageOptions,
    join_url,
    open_store,
    options_of,
)

SECRETS = {
    "aws_access_key_id": "AKIAEXAMPLE",
    "aws_secret_access_key": "hush-secret",
    "aws_session_token": "hush-token",
}


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket", "s3://bucket"),
        ("S3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3://bucket/a%20b?c#d", "s3://bucket/a%20b?c#d"),
        ("/data/train/", "/data/train"),
        ("/data/../data/./train", "/data/train"),
        ("file:///data/a%20b", "/data/a b"),
        ("file://localhost/data", "/data"),
        ("/", "/"),
        (Path("/data/train"), "/data/train"),
    ],
)
def test_urls_are_normalised(given: Any, url: str) -> None:
    assert open_store(given).url == url


def test_a_relative_path_is_relative_to_the_working_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert open_store("train").url == str(tmp_path / "train")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("ftp://host/x", r"ftp:// is not supported; give s3://"),
        ("gs://buc ket/x", "not a bucket name"),
        ("https://user:hush@host/x", "must not hold a user or password"),
        ("https://host/x?y=1", "without a query"),
        ("https:///x", "not a folder of a web server"),
        ("http://host/a b", "percent-encoded"),
        ("http://host:99999/x", "not a folder of a web server"),
        ("", "empty"),
        ("s3://", "not a bucket name"),
        ("s3:///key", "not a bucket name"),
        ("s3://buc ket/x", "not a bucket name"),
        ("file://host/x", "file:///absolute"),
        ("/a\0b", "NUL"),
    ],
)
def test_urls_that_cannot_work_are_refused(given: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message) as caught:
        open_store(given)
    assert isinstance(caught.value, StorageError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "given", ["s3://AKIA:hush@bucket/x", "https://user:hush@host/x", "ftp://hush@host"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(given: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        open_store(given)
    assert "hush" not in str(caught.value) + caught.value.url


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"endpoint": "http://x"}, "endpoint_url"),
        ({"endpoint_url": "127.0.0.1:9000"}, "endpoint_url"),
        ({"endpoint_url": "http://"}, "endpoint_url"),
        ({"endpoint_url": "http://h:port"}, "endpoint_url"),
        ({"endpoint_url": 9000}, "endpoint_url"),
        ({"region": ""}, "region"),
        ({"anonymous": "yes"}, "anonymous"),
        ({"path_style": 3}, "path_style"),
        ({"max_connections": 0}, "max_connections"),
        ({"max_connections": True}, "max_connections"),
        ({"download_retry": 0}, "download_retry"),
        ({"download_timeout": 0}, "download_timeout"),
        ({"download_timeout": float("nan")}, "download_timeout"),
        ({"download_timeout": float("inf")}, "download_timeout"),
        ({"part_bytes": 2**20}, "part_bytes"),
        ({"aws_access_key_id": "A"}, "aws_secret_access_key"),
        ({"aws_session_token": "A"}, "aws_access_key_id"),
        ({"anonymous": True, **SECRETS}, "anonymous"),
        ({"profile": "p", **SECRETS}, "profile"),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(options: dict[str, Any], name: str) -> None:
    with pytest.raises(Misconfigured, match=name):
        open_store("s3://bucket", **options)


def test_options_for_s3_are_refused_for_a_local_path_by_name() -> None:
    with pytest.raises(Misconfigured, match="region"):
        open_store("/data", region="eu-central-1")
    open_store("/data", download_retry=3, download_timeout=5, region=None)


def test_sync_is_for_local_paths_only() -> None:
    assert open_store("/data").is_durable
    assert not open_store("/data", sync=False).is_durable
    with pytest.raises(Misconfigured, match="'sync' must be True or False"):
        open_store("/data", sync="no")
    for url in ("s3://bucket", "https://host/set", "gs://bucket"):
        with pytest.raises(Misconfigured, match="'sync' is for local paths only"):
            open_store(url, sync=False)


@pytest.mark.parametrize(
    ("url", "taken"),
    [
        ("s3://bucket/set", {"region", "reader", "verify_tls", "download_retry", "unknown"}),
        ("https://host/set", {"reader", "verify_tls", "download_retry", "unknown"}),
        ("gs://bucket/set", {"reader", "download_retry", "unknown"}),
        ("/data/set", {"download_retry", "sync", "unknown"}),
    ],
)
def test_of_options_for_several_stores_each_takes_its_own(url: str, taken: set[str]) -> None:
    options = {
        "region": "eu-central-1",
        "reader": "native",
        "verify_tls": True,
        "download_retry": 3,
        "sync": True,
        "unknown": 1,
    }
    assert options_of(url, options) == {name: options[name] for name in taken}


@pytest.mark.parametrize("url", ["s3://bucket", "/data"])
def test_secrets_are_in_no_representation_and_no_error(url: str) -> None:
    shown = [repr(StorageOptions(**SECRETS)), repr(open_store("s3://bucket", **SECRETS))]
    for bad in ({"max_connections": -1}, {"nonsense": 1}, {"endpoint_url": "http://hush@h"}):
        with pytest.raises(Misconfigured) as caught:
            open_store(url, **SECRETS, **bad)
        shown.append(str(caught.value))
    assert not [text for text in shown if "hush" in text]


@pytest.mark.parametrize(
    ("base", "keys", "url"),
    [
        ("s3://bucket", ("a", "b/c"), "s3://bucket/a/b/c"),
        ("s3://bucket/x/", ("a%20b#",), "s3://bucket/x/a%20b#"),
        ("s3://bucket/x", (), "s3://bucket/x"),
        ("s3://bucket/x", ("",), "s3://bucket/x"),
        ("/data/", ("a b",), "/data/a b"),
        ("/", ("data",), "/data"),
        ("file:///data", ("a b", "c#d"), "file:///data/a%20b/c%23d"),
    ],
)
def test_joined_urls_name_what_is_below(base: str, keys: tuple[str, ...], url: str) -> None:
    assert join_url(base, *keys) == url


def test_errors_survive_pickling() -> None:
    error = NotFound("there is no x", url="s3://b/x", code="NoSuchKey", status=404)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is NotFound
    assert (str(copy), copy.url, copy.code, copy.status) == (
        "there is no x",
        "s3://b/x",
        "NoSuchKey",
        404,
    )


def test_neither_backend_is_imported_before_it_is_used() -> None:
    program = (
        "import sys, storage_backends\n"
        "storage_backends.open_store('/data')\n"
        "print([m for m in ('botocore', 'aiobotocore', 'aiohttp') if m in sys.modules])"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert shown.stdout == "[]\n"
