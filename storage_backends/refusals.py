"""What a server's answers mean: statuses and codes said in this package's errors."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage_backends._retry import Fault
from storage_backends.errors import (
    AccessDenied,
    Changed,
    Misconfigured,
    NotFound,
    StorageError,
    Throttled,
    Truncated,
    Unavailable,
)

_TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})
_TRANSIENT_CODES = frozenset(
    {
        "InternalError",
        "SlowDown",
        "RequestTimeout",
        "OperationAborted",
        "ConditionalRequestConflict",
    }
)
_THROTTLE_CODES = frozenset(
    {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}
)
#: Codes of credentials whose time is over.
EXPIRED_CODES = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"})
_EXPIRED_REQUEST = "the presigned request has expired; have a new one signed"
_DENIED_ADVICE = {
    "InvalidAccessKeyId": "the server does not know the access key id; check it",
    "SignatureDoesNotMatch": "the secret key does not fit the access key id; check it",
    "InvalidToken": "the session token is not valid; renew the credentials",
    "RequestTimeTooSkewed": (
        "the clocks of this machine and of the server are too far apart; set this machine's clock"
    ),
    "RequestExpired": _EXPIRED_REQUEST,
    **dict.fromkeys(EXPIRED_CODES, "the credentials have expired; renew them"),
}
#: What to do where there are no credentials.
NO_CREDENTIALS = (
    "no credentials were found; give aws_access_key_id and aws_secret_access_key or a profile, set "
    "the AWS environment variables, or anonymous=True for public data"
)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation happens, for messages.

    Attributes:
        url: full URL of the object or bucket.
        bucket: name of the bucket.
        endpoint: where the requests go, for example ``http://127.0.0.1:9000`` or ``AWS``.
        identity: whose credentials are used, never the credentials themselves.
        writing: the operation changes something.
        key: full key of the object in its bucket; empty for the bucket itself.
    """

    url: str
    bucket: str
    endpoint: str
    identity: str
    writing: bool = False
    key: str = ""

    def __str__(self) -> str:
        return f"{self.url} at {self.endpoint}"


def broken_body(place: Place, done: int, wanted: int) -> Fault:
    """The fault of a body that ended early, although the object goes on."""
    message = f"{place}: the body ended after {done} of {wanted} bytes; try again"
    return Fault(Truncated(message, url=place.url, code="IncompleteBody"), transient=True)


def wrong_answer(place: Place, what: str, status: int) -> Fault:
    """The fault of an answer that is not what was asked for."""
    message = f"{place}: the server answered {what}; check that it supports ranged reads"
    error = Unavailable(message, url=place.url, code="WrongAnswer", status=status)
    return Fault(error, transient=True)


def too_short(place: Place, end: int, size: int | None, status: int) -> Fault:
    """The fault of a range that reaches beyond the object."""
    length = "is shorter" if size is None else f"has only {size} bytes"
    message = (
        f"{place} {length}, but bytes up to {end} were asked for; is it complete? "
        f"({place.identity})"
    )
    error = Truncated(message, url=place.url, code="InvalidRange", status=status)
    return Fault(error, transient=False)


def changed(place: Place, status: int) -> Fault:
    """The fault of an object that is not the one whose etag was asked for."""
    message = f"{place} was overwritten since it was first seen; open the data set again"
    error = Changed(message, url=place.url, code="PreconditionFailed", status=status)
    return Fault(error, transient=False)


def answer_fault(
    status: int | None, code: str, said: str, headers: Mapping[str, Any], place: Place
) -> Fault:
    """The fault of an answer that refuses.

    Args:
        status: HTTP status.
        code: the server's own code; its status as text if it has none.
        said: the server's own words, which are looked at and never shown.
        headers: by lower-case name.
        place: where.
    """
    if code == "404":
        # The answer to a HEAD request has no code; what else it may be has been asked for already.
        code = "NoSuchKey"
    transient = status in _TRANSIENT_STATUS or code in _TRANSIENT_CODES
    kind, advice = _classify(code, status, said, place)
    message = advice if kind is NotFound else f"{place}: {advice}"
    known = kind(message, url=place.url, code=code, status=status)
    return Fault(known, transient=transient, retry_after_s=_retry_after_s(headers))


def _classify(
    code: str, status: int | None, said: str, place: Place
) -> tuple[type[StorageError], str]:
    if code == "NoSuchBucket":
        what = f"there is no bucket {place.bucket!r} at {place.endpoint}"
        return NotFound, f"{what}; check its name ({place.identity})"
    if status == 404:
        return NotFound, f"there is no object {place}; check bucket and key ({place.identity})"
    if status in (401, 403) or code in _DENIED_ADVICE:
        return AccessDenied, f"{_denied_advice(code, said, place)} ({code}, {place.identity})"
    if status == 412:
        return Changed, "the object was overwritten since it was first seen; open it again"
    if status == 416:
        return Truncated, "the object is shorter than what was asked for; is it complete?"
    if status in (429, 503) or code in _THROTTLE_CODES:
        return Throttled, f"the server asks to slow down ({code}); use fewer readers or try later"
    if status in _TRANSIENT_STATUS or code in _TRANSIENT_CODES:
        return Unavailable, f"the server failed ({status} {code}); try again or ask its operator"
    if status in (301, 307, 400) and ("Redirect" in code or code == "AuthorizationHeaderMalformed"):
        return Misconfigured, f"the bucket is in another region ({code}); give its region"
    return StorageError, f"the server refused the request ({status} {code}); check the options"


def _denied_advice(code: str, said: str, place: Place) -> str:
    if code in _DENIED_ADVICE:
        return _DENIED_ADVICE[code]
    if said.casefold().startswith("request has expired"):
        # S3 has no code of its own for it.
        return _EXPIRED_REQUEST
    doing = "write" if place.writing else "read"
    return f"no permission to {doing}; ask for it or use other credentials"


def _retry_after_s(headers: Mapping[str, Any]) -> float | None:
    """The Retry-After header, seconds or a date (RFC 9110, 10.2.3), as seconds from now."""
    text = str(headers.get("retry-after", "")).strip()
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
