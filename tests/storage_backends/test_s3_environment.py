"""Where endpoint, region, profile, signing and addressing come from, as a real server sees it."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from storage_backends import AccessDenied, Misconfigured, NotFound, Store, open_store
from tests.storage_backends.failing_calls import failures
from tests.storage_backends.fault_proxy import Answer, FaultProxy, Seen

pytestmark = pytest.mark.s3

SCOPE = re.compile(r"Credential=([^/]+)/\d{8}/([^/]+)/s3/aws4_request")


@pytest.fixture
async def proxy(s3_server: Any) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(s3_server.endpoint_url) as opened:
        yield opened


def signed_by(seen: Seen) -> tuple[str, str]:
    """Key id and region of a request's signature."""
    match = SCOPE.search(seen.headers["authorization"])
    assert match is not None
    return match[1], match[2]


async def put_and_read(store: Store) -> None:
    await store.put("a", b"x")
    assert await store.read("a") == b"x"


def write_profile(tmp_path: Path, options: dict[str, Any], **more: str) -> None:
    lines = {name: options[name] for name in ("aws_access_key_id", "aws_secret_access_key")}
    text = "\n".join(f"{name} = {value}" for name, value in (lines | more).items())
    (tmp_path / "aws-credentials").write_text(f"[train]\n{text}\n")


def write_config(tmp_path: Path, text: str) -> None:
    (tmp_path / "aws-config").write_text(text)


async def test_a_missing_profile_is_a_wrong_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    error = (await failures("s3://bucket", {"profile": "nobody"}, ["read"]))["read"]
    assert type(error) is Misconfigured
    assert "nobody" in str(error)
    monkeypatch.setenv("AWS_PROFILE", "somebody")
    error = (await failures("s3://bucket", {}, ["read"]))["read"]
    assert type(error) is Misconfigured
    assert "somebody" in str(error)


@pytest.mark.parametrize("by", ["option", "environment"])
async def test_keys_endpoint_and_region_of_a_profile_are_used(
    by: str, s3_place: Any, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profile(tmp_path, s3_place.options)
    write_config(
        tmp_path,
        f"[profile train]\nregion = eu-north-1\nservices = here\n"
        f"[services here]\ns3 =\n  endpoint_url = {proxy.url}\n",
    )
    options = {"profile": "train"} if by == "option" else {}
    if not options:
        monkeypatch.setenv("AWS_PROFILE", "train")
    async with open_store(s3_place.url, **options) as store:
        await put_and_read(store)
        with pytest.raises(NotFound, match=proxy.url):
            await store.read("b")
        proxy.plan([Answer(403, "AccessDenied")])
        with pytest.raises(AccessDenied, match="credentials of profile 'train' from shared-cred"):
            await store.read("a")
    assert signed_by(proxy.seen[0]) == (s3_place.options["aws_access_key_id"], "eu-north-1")


@pytest.mark.parametrize(
    ("names", "used"),
    [
        (["AWS_ENDPOINT_URL"], True),
        (["AWS_ENDPOINT_URL_S3"], True),
        (["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"], True),
        ([], False),
    ],
    ids=str,
)
async def test_keys_and_endpoint_of_the_environment_are_used(
    names: list[str],
    used: bool,
    s3_place: Any,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = s3_place.options
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["aws_access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["aws_secret_access_key"])
    for name, endpoint in zip(names, [proxy.url, "http://127.0.0.1:9"], strict=False):
        monkeypatch.setenv(name, endpoint)
    given = {} if used else {"endpoint_url": proxy.url}
    async with open_store(s3_place.url, **given) as store:
        await put_and_read(store)
        proxy.plan([Answer(403, "AccessDenied")])
        with pytest.raises(AccessDenied, match="credentials from env"):
            await store.read("a")
    assert len(proxy.seen) == 1


async def test_an_endpoint_among_the_options_goes_before_the_environment(
    s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    async with open_store(s3_place.url, **s3_place.options) as store:
        await put_and_read(store)


async def test_a_password_in_the_endpoint_of_the_environment_is_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://user:hush@127.0.0.1:9")
    error = (await failures("s3://bucket", {"anonymous": True}, ["read"]))["read"]
    assert type(error) is Misconfigured
    assert "hush" not in str(error)


@pytest.mark.parametrize(
    ("option", "environment", "region"),
    [
        ("eu-west-1", {"AWS_REGION": "eu-west-2", "AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-1"),
        (None, {"AWS_REGION": "eu-west-2", "AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-2"),
        (None, {"AWS_DEFAULT_REGION": "eu-west-3"}, "eu-west-3"),
        (None, {}, "us-east-1"),
    ],
)
async def test_the_region_comes_from_option_environment_and_default_in_this_order(
    option: str | None,
    environment: dict[str, str],
    region: str,
    s3_place: Any,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = {**s3_place.options, "endpoint_url": proxy.url, "region": option}
    async with open_store(s3_place.url, **options) as store:
        await put_and_read(store)
    assert {signed_by(seen)[1] for seen in proxy.seen} == {region}


async def test_a_public_bucket_is_read_without_keys(
    s3_bucket: Any, s3_server: Any, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(s3_bucket.url, **s3_bucket.storage_options) as store:
        await store.put("a", b"x")
    arn = f"arn:aws:s3:::{s3_bucket.name}"
    statement = {
        "Effect": "Allow",
        "Principal": "*",
        "Action": ["s3:GetObject", "s3:ListBucket"],
        "Resource": [arn, f"{arn}/*"],
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    s3_server._admin._client.put_bucket_policy(Bucket=s3_bucket.name, Policy=policy)
    async with open_store(s3_bucket.url, endpoint_url=proxy.url, anonymous=True) as store:
        assert await store.read("a") == b"x"
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "yes")
    async with open_store(s3_bucket.url, endpoint_url=proxy.url) as store:
        assert [info.key async for info in store.list()] == ["a"]
        with pytest.raises(AccessDenied, match="no permission to write.*anonymous"):
            await store.put("a", b"y")
    assert not [seen for seen in proxy.seen if "authorization" in seen.headers]


@pytest.mark.parametrize("option", ["keys", "anonymous"])
async def test_an_option_that_asks_for_signing_goes_before_the_environment(
    option: str, s3_place: Any, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_NO_SIGN_REQUEST", "true")
    options = {**s3_place.options, "endpoint_url": proxy.url}
    if option == "anonymous":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", options.pop("aws_access_key_id"))
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options.pop("aws_secret_access_key"))
        options["anonymous"] = False
    async with open_store(s3_place.url, **options) as store:
        await put_and_read(store)


def resolve_localhost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names below localhost are this machine (RFC 6761), which not every resolver knows."""
    resolve = socket.getaddrinfo

    def own(host: Any, *args: Any, **kwargs: Any) -> Any:
        return resolve("127.0.0.1" if str(host).endswith(".localhost") else host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", own)


@pytest.mark.parametrize(
    ("option", "environment", "setting", "virtual"),
    [
        (None, None, None, False),
        (False, None, None, True),
        (None, "virtual", None, True),
        (None, "path", "virtual", False),
        (None, None, "virtual", True),
        (True, "virtual", "virtual", False),
        (False, "path", "path", True),
    ],
)
async def test_the_bucket_is_in_the_path_or_in_the_host_as_configured(
    option: bool | None,
    environment: str | None,
    setting: str | None,
    virtual: bool,
    s3_place: Any,
    proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    resolve_localhost(monkeypatch)
    if environment is not None:
        monkeypatch.setenv("AWS_S3_ADDRESSING_STYLE", environment)
    if setting is not None:
        write_config(tmp_path, f"[default]\ns3 =\n  addressing_style = {setting}\n")
    endpoint = proxy.url.replace("127.0.0.1", "localhost")
    options = {**s3_place.options, "endpoint_url": endpoint, "path_style": option}
    async with open_store(s3_place.url, **options) as store:
        await put_and_read(store)
        assert [info.key async for info in store.list()] == ["a"]
    bucket = s3_place.url.split("/")[2]
    host = endpoint.removeprefix("http://")
    assert {seen.headers["host"] for seen in proxy.seen} == {
        f"{bucket}.{host}" if virtual else host
    }
    assert all(seen.target.startswith(f"/{bucket}") is not virtual for seen in proxy.seen)


@pytest.mark.parametrize(
    ("name", "value"), [("AWS_NO_SIGN_REQUEST", "perhaps"), ("AWS_S3_ADDRESSING_STYLE", "host")]
)
async def test_a_variable_that_cannot_be_understood_is_named(
    name: str, value: str, s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    error = (await failures(s3_place.url, s3_place.options, ["read"]))["read"]
    assert type(error) is Misconfigured
    assert name in str(error)
    assert value in str(error)


async def test_rewritten_credentials_are_read_anew_when_the_old_ones_have_expired(
    s3_place: Any, proxy: FaultProxy, tmp_path: Path, counts: Any
) -> None:
    write_profile(tmp_path, {"aws_access_key_id": "OLD", "aws_secret_access_key": "old"})
    async with open_store(s3_place.url, counts, profile="train", endpoint_url=proxy.url) as store:
        expired = Answer(400, "ExpiredToken")
        proxy.plan([expired] * 5)
        with pytest.raises(AccessDenied, match="have expired"):
            await store.put("a", b"x")
        assert len(proxy.seen) == 1
        write_profile(tmp_path, s3_place.options)
        proxy.plan([expired] * 3)
        await asyncio.gather(*(store.put(f"a{number}", b"x") for number in range(3)))
        assert counts.totals["storage.retries"] == 3
