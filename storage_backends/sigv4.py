"""Signatures of GET and HEAD requests to S3 (AWS Signature Version 4, header form).

Range and If-Match are not signed, so one signature serves every range of an object, for as long
as it is valid. Signed are the host, the date, the hash of the empty body and a session token,
which is also what botocore signs.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass, field
from urllib.parse import quote

_EMPTY_BODY = hashlib.sha256(b"").hexdigest()
#: A signature is valid for 15 minutes; a young one leaves that to clocks that differ.
_REUSE_S = 60.0
_MAX_KEPT = 4096


@dataclass(frozen=True, slots=True)
class Credentials:
    """What requests are signed with; ValueError if it could not stand in a header."""

    key_id: str
    secret: str = field(repr=False)
    token: str | None = field(default=None, repr=False)

    def as_tuple(self) -> tuple[str, str, str | None]:
        return self.key_id, self.secret, self.token

    def __post_init__(self) -> None:
        if not all(text.isprintable() for text in (self.key_id, self.secret, self.token or "")):
            raise ValueError("credentials must not hold control characters")


def quote_path(path: str) -> str:
    """A path as it stands on the request line: every byte encoded once, slashes kept."""
    return quote(path, safe="/~")


class Signer:
    """Makes the header lines that sign a request, and keeps them for a minute.

    Args:
        credentials: None leaves requests unsigned.
        region: of the bucket.
        authority: value of the Host header.
    """

    def __init__(self, credentials: Credentials | None, region: str, authority: str) -> None:
        self._credentials = credentials
        self._region = region
        self._authority = authority
        self._day = ""
        self._key = b""
        self._kept: dict[tuple[str, str], str] = {}
        self._kept_until = 0.0
        self.skew_s = 0.0

    def correct_clock(self, skew_s: float) -> None:
        """Signs with the server's time, which is ``skew_s`` ahead of this machine's."""
        self.skew_s = skew_s
        self._kept.clear()

    def lines(self, method: str, path: str) -> str:
        """Header lines, Host first, for a request of an encoded ``path``."""
        if self._credentials is None:
            return f"Host: {self._authority}\r\n"
        now = time.time()
        if now >= self._kept_until or len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
            self._kept_until = now + _REUSE_S
        lines = self._kept.get((method, path))
        if lines is None:
            lines = self._kept[method, path] = self.sign(method, path, now + self.skew_s)
        return lines

    def sign(self, method: str, path: str, at: float) -> str:
        """The header lines at one time, in seconds since 1970."""
        credentials = self._credentials
        assert credentials is not None
        stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(at))
        day = stamp[:8]
        signed = {
            "host": self._authority,
            "x-amz-content-sha256": _EMPTY_BODY,
            "x-amz-date": stamp,
        }
        if credentials.token is not None:
            signed["x-amz-security-token"] = credentials.token
        names = ";".join(signed)
        headers = "".join(f"{name}:{value}\n" for name, value in signed.items())
        request = f"{method}\n{path}\n\n{headers}\n{names}\n{_EMPTY_BODY}"
        scope = f"{day}/{self._region}/s3/aws4_request"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{digest}"
        signature = hmac.digest(self._signing_key(day), text.encode(), "sha256").hex()
        lines = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
        return (
            f"{lines}Authorization: AWS4-HMAC-SHA256 Credential={credentials.key_id}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}\r\n"
        )

    def _signing_key(self, day: str) -> bytes:
        """Depends on the day, the region and the secret only."""
        assert self._credentials is not None
        if day != self._day:
            key = f"AWS4{self._credentials.secret}".encode()
            for part in (day, self._region, "s3", "aws4_request"):
                key = hmac.digest(key, part.encode(), "sha256")
            self._day, self._key = day, key
        return self._key
