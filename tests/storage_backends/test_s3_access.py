"""Who may do what on a real S3 server: wrong keys, wrong clocks, readers, strangers, secrets."""

from __future__ import annotations

import datetime
import http.client
import logging
from typing import Any
from urllib.parse import parse_qs, urlsplit

import botocore.auth
import botocore.config
import botocore.exceptions
import botocore.parsers
import botocore.session
import pytest

from storage_backends import AccessDenied, NotFound, StorageError, open_store
from storage_backends.s3_errors import Place, fault_of
from tests.storage_backends.failing_calls import CALLS, READS, WRITES, failures, listing
from tests.storage_backends.fault_proxy import Answer, FaultProxy

pytestmark = pytest.mark.s3


async def test_a_missing_bucket_is_named_by_every_call(s3_server: Any) -> None:
    errors = await failures("s3://no-such-bucket/x", s3_server.storage_options)
    assert errors.keys() == CALLS.keys()
    for error in errors.values():
        assert type(error) is NotFound
        assert (error.code, error.status) == ("NoSuchBucket", 404)
        assert "no bucket 'no-such-bucket'" in str(error)
        assert s3_server.endpoint_url in str(error)


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        ({"aws_access_key_id": "NOBODY"}, "InvalidAccessKeyId", "does not know the access key id"),
        ({"aws_secret_access_key": "wrong!"}, "SignatureDoesNotMatch", "secret key does not fit"),
    ],
    ids=["key id", "secret"],
)
async def test_wrong_keys_are_told_apart(
    wrong: dict[str, str], code: str, message: str, s3_place: Any
) -> None:
    errors = await failures(s3_place.url, {**s3_place.options, **wrong})
    for error in errors.values():
        assert type(error) is AccessDenied
        assert (error.code, error.status) == (code, 403)
        assert message in str(error)
        assert "credentials from the storage options" in str(error)


async def test_a_reader_reads_and_may_not_write(s3_server: Any, s3_place: Any) -> None:
    async with open_store(s3_place.url, **s3_place.options) as store:
        await store.put("a", b"x")
    errors = await failures(s3_place.url, s3_server.readonly_storage_options, WRITES)
    for error in errors.values():
        assert type(error) is AccessDenied
        assert error.status == 403
        assert "no permission to write" in str(error)
    async with open_store(s3_place.url, **s3_server.readonly_storage_options) as store:
        for call in READS.values():
            await call(store)
        assert [info.key for info in await listing(store)] == ["a"]


async def test_anonymous_access_to_what_is_not_public_is_denied(s3_place: Any) -> None:
    options = {"endpoint_url": s3_place.options["endpoint_url"], "anonymous": True}
    errors = await failures(s3_place.url, options)
    for call, error in errors.items():
        assert type(error) is AccessDenied
        assert "anonymous" in str(error)
        assert ("write" if call in WRITES else "read") in str(error)


async def test_without_credentials_the_message_says_how_to_give_them(s3_place: Any) -> None:
    options = {"endpoint_url": s3_place.options["endpoint_url"]}
    error = (await failures(s3_place.url, options, ["read"]))["read"]
    assert type(error) is AccessDenied
    assert "aws_access_key_id" in str(error)
    assert "anonymous=True" in str(error)


def move_clock(monkeypatch: pytest.MonkeyPatch, by: datetime.timedelta) -> None:
    """Lets the engine sign as if the machine's clock were off."""
    right = botocore.auth.get_current_datetime

    def wrong(*args: Any, **kwargs: Any) -> datetime.datetime:
        moved: datetime.datetime = right(*args, **kwargs) + by
        return moved

    monkeypatch.setattr(botocore.auth, "get_current_datetime", wrong)


@pytest.mark.parametrize("hours", [-1, 1], ids=["slow", "fast"])
async def test_a_wrong_clock_is_named_by_every_call(
    hours: int, s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_clock(monkeypatch, datetime.timedelta(hours=hours))
    errors = await failures(s3_place.url, {**s3_place.options, "reader": "aiobotocore"})
    for error in errors.values():
        assert type(error) is AccessDenied
        assert (error.code, error.status) == ("RequestTimeTooSkewed", 403)
        assert "set this machine's clock" in str(error)
        assert s3_place.options["endpoint_url"] in str(error)


def presigned(s3_place: Any, key: str) -> str:
    """A link to an object that is valid for a second."""
    client = botocore.session.get_session().create_client(
        "s3",
        region_name=s3_place.options["region"],
        config=botocore.config.Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        **{name: value for name, value in s3_place.options.items() if name != "region"},
    )
    bucket, _, prefix = s3_place.url.removeprefix("s3://").partition("/")
    link: str = client.generate_presigned_url(
        "get_object", Params={"Bucket": bucket, "Key": f"{prefix}/{key}"}, ExpiresIn=1
    )
    client.close()
    return link


def ask(link: str) -> botocore.exceptions.ClientError:
    """The server's own answer to a link, as the engine would raise it."""
    parts = urlsplit(link)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    try:
        connection.request("GET", f"{parts.path}?{parts.query}")
        answer = connection.getresponse()
        raw = {
            "status_code": answer.status,
            "headers": {name.lower(): value for name, value in answer.getheaders()},
            "body": answer.read(),
        }
    finally:
        connection.close()
    assert answer.status >= 400
    parsed = botocore.parsers.create_parser("rest-xml").parse(raw, None)
    return botocore.exceptions.ClientError(parsed, "GetObject")


async def test_an_expired_presigned_request_is_told_from_a_missing_permission(
    s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_store(s3_place.url, **s3_place.options) as store:
        await store.put("a", b"x")
    with monkeypatch.context() as patch:
        move_clock(patch, datetime.timedelta(minutes=-5))
        link = presigned(s3_place, "a")
    place = Place(f"{s3_place.url}/a", "bucket", s3_place.options["endpoint_url"], "anonymous")
    fault = fault_of(ask(link), place)
    assert not fault.transient
    assert type(fault.error) is AccessDenied
    assert (fault.error.code, fault.error.status) == ("AccessDenied", 403)
    shown = str(fault.error)
    assert "presigned request has expired; have a new one signed" in shown
    assert place.url in shown
    for name in ("X-Amz-Signature", "X-Amz-Credential"):
        (value,) = parse_qs(urlsplit(link).query)[name]
        assert value not in shown
    assert s3_place.options["aws_secret_access_key"] not in shown
    unsigned = fault_of(ask(link.partition("?")[0]), place)
    assert "no permission to read" in str(unsigned.error)


async def test_no_log_holds_a_secret_and_ours_hold_no_signature(
    s3_place: Any, caplog: pytest.LogCaptureFixture
) -> None:
    secret = s3_place.options["aws_secret_access_key"]
    with caplog.at_level(logging.DEBUG):
        async with FaultProxy(s3_place.options["endpoint_url"]) as proxy:
            options = {**s3_place.options, "endpoint_url": proxy.url}
            async with open_store(s3_place.url, **options) as store:
                proxy.plan([Answer(503, "SlowDown")])
                await store.put("a", b"x")
            options["aws_session_token"] = "hush-token"
            async with open_store(s3_place.url, **options) as store:
                proxy.plan([Answer(503, "SlowDown"), Answer(400, "ExpiredToken")])
                with pytest.raises(StorageError):
                    await store.put("a", b"x")
            signatures = [seen.headers["authorization"][-64:] for seen in proxy.seen]
    assert len(signatures) == 2
    assert not [record for record in caplog.records if secret in record.getMessage()]
    own = [r.getMessage() for r in caplog.records if r.name.startswith("storage_backends")]
    assert len(own) == 2
    assert not [text for text in own for part in ("hush", *signatures) if part in text]
