"""Credentials that a container's endpoint gives for seconds only, over a long run."""

from __future__ import annotations

import asyncio
import datetime
import json
import os
import time
from typing import Any

import pytest
from loopback_server import END, LoopbackServer
from scripted_server import ScriptedServer, ranged

from storage_backends import open_store
from tests.storage_backends.fault_proxy import Answer, Fault, FaultProxy, Seen

CONTENT = os.urandom(20_000)
#: Minutes that the long run takes: ``STREAMLOADER_TOKEN_MINUTES=5`` is the full length.
MINUTES = float(os.environ.get("STREAMLOADER_TOKEN_MINUTES", "0.2"))


LISTING = (
    b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name>'
    b"<IsTruncated>false</IsTruncated><Contents><Key>a</Key><Size>20000</Size>"
    b"<LastModified>2026-11-30T00:00:00.000Z</LastModified></Contents></ListBucketResult>"
)


def answer(head: bytes) -> bytes:
    """A bucket with one object; a real server would have to know the tokens."""
    if b"list-type=2" in head:
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(LISTING), LISTING)
    return ranged(CONTENT)(head)


class TokenEndpoint(LoopbackServer):
    """Gives credentials with a token that is good for ``valid_s``; use inside ``async with``.

    Args:
        keys: key id and secret, which stay the same.
        valid_s: what is announced, and what ``is_good`` holds to.
    """

    def __init__(self, keys: tuple[str, str], valid_s: float) -> None:
        super().__init__()
        self._keys = keys
        self._valid_s = valid_s
        self._good_until: dict[str, float] = {}

    @property
    def given(self) -> int:
        """How many tokens were asked for."""
        return len(self._good_until)

    def is_good(self, token: str | None) -> bool:
        return time.time() < self._good_until.get(token or "", 0.0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(END)
        token, until = f"token-{self.given}", time.time() + self._valid_s
        self._good_until[token] = until
        body = json.dumps(
            {
                "AccessKeyId": self._keys[0],
                "SecretAccessKey": self._keys[1],
                "Token": token,
                "Expiration": datetime.datetime.fromtimestamp(until, datetime.UTC).isoformat(),
            }
        ).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(body))
        writer.write(b"Connection: close\r\n\r\n" + body)
        await writer.drain()


@pytest.mark.parametrize(
    ("valid_s", "minutes"),
    [(0.5, 0.05), pytest.param(20.0, MINUTES, marks=[pytest.mark.slow, pytest.mark.timeout(600)])],
    ids=["seconds", "minutes"],
)
async def test_tokens_that_run_out_all_the_time_are_no_error_for_the_user(
    valid_s: float, minutes: float, counts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        TokenEndpoint(("id", "secret"), valid_s) as endpoint,
        ScriptedServer([answer]) as server,
        FaultProxy(server.url) as proxy,
    ):

        def refuse_the_old(seen: Seen) -> Fault | None:
            good = endpoint.is_good(seen.headers.get("x-amz-security-token"))
            return None if good else Answer(403, "ExpiredToken")

        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{endpoint.url}/token")
        proxy.plan_by(refuse_the_old)
        async with open_store("s3://bucket", counts, endpoint_url=proxy.url) as store:
            # The engine is imported by now, which is no part of the time.
            await store.read_into("a", 0, bytearray(10))
            end = time.monotonic() + 60 * minutes
            reads = 0

            async def work(number: int) -> None:
                nonlocal reads
                buffer = bytearray(1_000)
                while time.monotonic() < end:
                    at = (reads * 37 + number) % (len(CONTENT) - len(buffer))
                    await store.read_into("a", at, buffer)
                    assert buffer == CONTENT[at : at + len(buffer)]
                    reads += 1
                    if reads % 500 == 0:
                        # What goes through the engine lives on tokens as well.
                        assert [info.key async for info in store.list()] == ["a"]

            await asyncio.gather(*(work(number) for number in range(4)))
    assert reads > 50
    assert endpoint.given >= 60 * minutes / valid_s / 2
