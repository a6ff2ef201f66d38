"""Signatures are those of the AWS SDK, for every key that people have."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import botocore.auth
import botocore.awsrequest
import botocore.credentials
import pytest

from storage_backends.sigv4 import Credentials, Signer, quote_path

KEYS = [
    entry["key"]
    for entry in json.loads((Path(__file__).parents[1] / "hostile/s3_keys.json").read_text())
]
WHEN = datetime.datetime(2026, 11, 29, 23, 59, 58, tzinfo=datetime.UTC)
HOST = "bucket.s3.eu-central-1.amazonaws.com"


def theirs(
    method: str, key: str, credentials: Credentials, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """Headers of the same request as botocore signs it."""
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda: WHEN)
    request = botocore.awsrequest.AWSRequest(method, f"https://{HOST}/{quote_path(key)}")
    keys = botocore.credentials.Credentials(
        credentials.key_id, credentials.secret, credentials.token
    )
    botocore.auth.S3SigV4Auth(keys, "s3", "eu-central-1").add_auth(request)
    return {name.lower(): value for name, value in request.headers.items()}


def ours(method: str, key: str, credentials: Credentials) -> dict[str, str]:
    signer = Signer(credentials, "eu-central-1", HOST)
    text = signer.sign(method, "/" + quote_path(key), WHEN.timestamp())
    pairs = (line.split(": ", 1) for line in text.removesuffix("\r\n").split("\r\n"))
    return {name.lower(): value for name, value in pairs}


@pytest.mark.parametrize("key", KEYS, ids=lambda key: repr(key[:24]))
@pytest.mark.parametrize("token", [None, "FwoGZXIvYXdzE/=="], ids=["keys", "session"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_signatures_equal_those_of_the_sdk(
    method: str, token: str | None, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", token)
    mine = ours(method, key, credentials)
    assert mine.pop("host") == HOST
    assert mine == theirs(method, key, credentials, monkeypatch)


def test_one_signature_serves_a_minute_of_ranges_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = WHEN.timestamp()
    monkeypatch.setattr("time.time", lambda: now)
    signer = Signer(Credentials("ID", "secret"), "us-east-1", HOST)
    first = signer.lines("GET", "/a")
    now += 59
    assert signer.lines("GET", "/a") == first
    assert signer.lines("GET", "/b") != first
    now += 2
    later = signer.lines("GET", "/a")
    assert "20261130/us-east-1/s3" in later
    signer.correct_clock(-3600.0)
    assert "20261129T23" in signer.lines("GET", "/a")


def test_unsigned_requests_carry_the_host_only() -> None:
    assert Signer(None, "us-east-1", HOST).lines("GET", "/a") == f"Host: {HOST}\r\n"


@pytest.mark.parametrize("field", ["key_id", "secret", "token"])
def test_credentials_that_would_break_out_of_their_header_are_refused(field: str) -> None:
    values = {"key_id": "ID", "secret": "s", "token": "t", field: "x\r\nX-Evil: 1"}
    with pytest.raises(ValueError, match="control"):
        Credentials(**values)


def test_secrets_are_not_shown() -> None:
    assert "hush" not in repr(Credentials("ID", "hush", "hush"))
