"""Fixtures that several rooms share: a real S3 server on loopback and a fresh bucket per test."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from streamloader.cli.s3_server import SeaweedServer, find_weed
from streamloader.errors import ConfigError


@pytest.fixture(scope="session", autouse=True)
def ctrl_c_works() -> None:
    """A shell starts background jobs with SIGINT ignored, and children inherit that."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True, slots=True)
class S3Bucket:
    """An empty bucket: its URL and the options that open it with ``open_store``."""

    name: str
    url: str
    storage_options: dict[str, Any]


@pytest.fixture(scope="session")
def s3_server() -> Iterator[SeaweedServer]:
    try:
        find_weed()
    except ConfigError as missing:
        pytest.skip(str(missing))
    with SeaweedServer() as server:
        yield server


@pytest.fixture
def s3_bucket(s3_server: SeaweedServer) -> Iterator[S3Bucket]:
    name = f"test-{secrets.token_hex(6)}"
    s3_server.create_bucket(name)
    yield S3Bucket(name, f"s3://{name}", s3_server.storage_options)
    s3_server.delete_bucket(name)
