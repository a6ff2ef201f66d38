"""One place per backend, and a counter that tests can look into."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage_backends import Store, open_store
from streamloader.cli.s3_server import SeaweedServer


@dataclass(frozen=True, slots=True)
class Place:
    """A place that is still empty, and the options that open it."""

    url: str
    options: dict[str, Any]


class Counts:
    """Counters that remember."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.times: dict[str, list[float]] = {}

    def add(self, name: str, value: int = 1) -> None:
        self.totals[name] += value

    def observe(self, name: str, seconds: float) -> None:
        self.times.setdefault(name, []).append(seconds)


@pytest.fixture(autouse=True)
def no_aws_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the machine's AWS configuration is, tests do not see it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "aws-config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "aws-credentials"))


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture(scope="session")
def shared_bucket(s3_server: SeaweedServer) -> str:
    """One bucket for many tests, each below a prefix of its own: a new one takes half a second."""
    name = f"shared-{secrets.token_hex(4)}"
    s3_server.create_bucket(name)
    return name


@pytest.fixture
def s3_place(s3_server: SeaweedServer, shared_bucket: str) -> Place:
    options = dict(s3_server.storage_options)
    return Place(f"s3://{shared_bucket}/{secrets.token_hex(6)}/x", options)


@pytest.fixture(
    params=[
        "local",
        pytest.param("s3", marks=pytest.mark.s3),
        pytest.param("s3 through aiobotocore", marks=pytest.mark.s3),
        pytest.param("s3 through obstore", marks=pytest.mark.s3),
        pytest.param("cloud by obstore", marks=pytest.mark.s3),
    ]
)
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend that must keep the contract."""
    name: str = request.param
    return name


def cloud_place(request: pytest.FixtureRequest) -> Place:
    """A place of the store for Google Cloud and Azure, whose objects are on SeaweedFS."""
    store_of = pytest.importorskip("obstore.store", reason="extra 'cloud'")
    from storage_backends.cloud_store import CloudStore
    from storage_backends.obstore_reader import CLIENT, RETRY

    found: Place = request.getfixturevalue("s3_place")

    def make(self: CloudStore) -> Any:
        return store_of.S3Store(
            self._location.bucket,
            endpoint=found.options["endpoint_url"],
            region="us-east-1",
            access_key_id=found.options["aws_access_key_id"],
            secret_access_key=found.options["aws_secret_access_key"],
            client_options=CLIENT,
            retry_config=RETRY,
        )

    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setattr(CloudStore, "_client_of_scheme", make)
    return Place(found.url.replace("s3://", "gs://"), {"download_retry": 3})


@pytest.fixture
def place(backend: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if backend.startswith("cloud"):
        return cloud_place(request)
    if backend.startswith("s3"):
        found: Place = request.getfixturevalue("s3_place")
        _, _, reader = backend.partition(" through ")
        if reader == "obstore":
            pytest.importorskip("obstore", reason="extra 'cloud'")
        if reader:
            found.options["reader"] = reader
        return found
    folder = tmp_path / "objects"
    folder.mkdir()
    return Place(str(folder), {})


@pytest.fixture
async def store(place: Place, counts: Counts) -> AsyncIterator[Store]:
    async with open_store(place.url, counts, **place.options) as opened:
        yield opened
