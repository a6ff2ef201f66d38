"""Reads for which options and environment say everything do without the engine."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage_backends import AccessDenied, open_store
from storage_backends.options import StorageOptions
from storage_backends.s3_direct import Direct, read_direct
from storage_backends.urls import S3Location
from tests.storage_backends.fault_proxy import Answer, FaultProxy

REPOSITORY = Path(__file__).parents[2]
BUCKET = S3Location("bucket", "")
ENDPOINT = "http://127.0.0.1:9"
KEYS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
#: No configuration files, wherever the tests run.
BARE = dict.fromkeys(
    ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "BOTO_CONFIG"), "/nowhere/at/all"
)
READ = """
import asyncio, json, sys
from storage_backends import open_store

async def read():
    async with open_store(sys.argv[1], **json.loads(sys.argv[2])) as store:
        await store.read_into("a", 0, bytearray(5))
        return await store.read("a")

assert asyncio.run(read()) == b"hello"
print([name for name in ("aiobotocore", "botocore", "aiohttp") if name in sys.modules])
"""


def direct(environment: dict[str, str], **options: Any) -> Direct | None:
    return read_direct(BUCKET, StorageOptions(**options), {**BARE, **environment})


@pytest.mark.s3
@pytest.mark.parametrize("by", ["options", "environment"])
async def test_a_read_at_a_known_endpoint_with_known_keys_imports_no_engine(
    by: str, s3_place: Any
) -> None:
    async with open_store(s3_place.url, **s3_place.options) as store:
        await store.put("a", b"hello")
    options = dict(s3_place.options)
    environment = {**os.environ, **BARE, "PYTHONPATH": str(REPOSITORY)}
    if by == "environment":
        environment["AWS_ENDPOINT_URL"] = options.pop("endpoint_url")
        for name in ("aws_access_key_id", "aws_secret_access_key"):
            environment[name.upper()] = options.pop(name)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", READ, s3_place.url, json.dumps(options)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        (KEYS, {}),
        ({}, {"endpoint_url": ENDPOINT}),
        ({**KEYS, "AWS_PROFILE": "train"}, {"endpoint_url": ENDPOINT}),
        (KEYS, {"endpoint_url": ENDPOINT, "profile": "train"}),
        ({**KEYS, "AWS_CREDENTIAL_EXPIRATION": "2030-01-01T00:00:00Z"}, {"endpoint_url": ENDPOINT}),
        ({**KEYS, "AWS_CONFIG_FILE": __file__}, {"endpoint_url": ENDPOINT}),
        (KEYS, {"endpoint_url": ENDPOINT, "path_style": False}),
        ({**KEYS, "AWS_S3_ADDRESSING_STYLE": "auto"}, {"endpoint_url": ENDPOINT}),
        ({**KEYS, "AWS_ACCESS_KEY_ID": "a\nb"}, {"endpoint_url": ENDPOINT}),
    ],
    ids=["no endpoint", "no keys", "profile", "option", "end", "file", "host", "auto", "newline"],
)
def test_what_has_to_be_looked_up_is_left_to_the_engine(
    environment: dict[str, str], options: dict[str, Any]
) -> None:
    assert direct(environment, **options) is None


def test_options_go_before_the_environment() -> None:
    found = direct(
        {**KEYS, "AWS_REGION": "eu-west-1", "AWS_ENDPOINT_URL": "http://127.0.0.1:8"},
        endpoint_url=ENDPOINT,
        region="eu-west-2",
        aws_access_key_id="mine",
        aws_secret_access_key="hush",
    )
    assert found is not None
    assert found.credentials is not None
    assert (found.credentials.key_id, found.region) == ("mine", "eu-west-2")
    assert found.bucket_url == f"{ENDPOINT}/bucket"
    assert "hush" not in repr(found)


@pytest.mark.s3
async def test_keys_that_were_exchanged_in_the_environment_are_read_anew_once(
    s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = dict(s3_place.options)
    async with open_store(s3_place.url, **options) as store:
        await store.put("a", b"hello")
    for name, path in BARE.items():
        monkeypatch.setenv(name, path)
    good = options.pop("aws_access_key_id"), options.pop("aws_secret_access_key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "old")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "old")
    async with FaultProxy(options["endpoint_url"]) as proxy:
        options["endpoint_url"] = proxy.url
        async with open_store(s3_place.url, **options) as store:
            proxy.plan([Answer(403, "ExpiredToken")] * 2)
            with pytest.raises(AccessDenied, match="have expired"):
                await store.read("a")
            monkeypatch.setenv("AWS_ACCESS_KEY_ID", good[0])
            monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", good[1])
            proxy.plan([Answer(403, "ExpiredToken")])
            assert await store.read("a") == b"hello"
