"""What the S3 engine raises, said in this package's errors."""

from __future__ import annotations

import asyncio
import email.utils
import errno
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp
from botocore import exceptions as boto

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

#: Everything that a call of the engine may raise when storage, network or credentials fail.
ENGINE_ERRORS = (
    boto.BotoCoreError,
    boto.ClientError,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
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
_NO_CREDENTIALS = (
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
    """

    url: str
    bucket: str
    endpoint: str
    identity: str
    writing: bool = False

    def __str__(self) -> str:
        return f"{self.url} at {self.endpoint}"


def fault_of(error: Exception, place: Place) -> Fault:
    """The fault of one attempt that ended in ``error``, one of ``ENGINE_ERRORS``."""
    if isinstance(error, boto.ClientError):
        return _of_answer(error, place)
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return _denied(f"{place}: {_NO_CREDENTIALS}", place, type(error).__name__)
    if isinstance(error, boto.CredentialRetrievalError | boto.TokenRetrievalError):
        message = f"{place}: {place.identity} could not be obtained; renew them ({error})"
        return _denied(message, place, type(error).__name__)
    if isinstance(error, boto.SSLError):
        message = (
            f"{place}: the TLS certificate is not trusted; install its authority, or give "
            f"verify_tls=False ({_root(error)})"
        )
        return Fault(Unavailable(message, url=place.url, code="SSLError"), transient=False)
    if isinstance(error, boto.EndpointConnectionError | boto.ConnectTimeoutError):
        return _unreached(error, place)
    if isinstance(error, boto.ParamValidationError | boto.UnsupportedSignatureVersionError):
        message = f"{place}: the request cannot be made; check bucket, key and options ({error})"
        return Fault(
            Misconfigured(message, url=place.url, code=type(error).__name__), transient=False
        )
    return _broken(error, place)


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
    message = f"{place} {length}, but bytes up to {end} were asked for; is it complete?"
    error = Truncated(message, url=place.url, code="InvalidRange", status=status)
    return Fault(error, transient=False)


def changed(place: Place, status: int) -> Fault:
    """The fault of an object that is not the one whose etag was asked for."""
    message = f"{place} was overwritten since it was first seen; open the data set again"
    error = Changed(message, url=place.url, code="PreconditionFailed", status=status)
    return Fault(error, transient=False)


def _of_answer(error: boto.ClientError, place: Place) -> Fault:
    response = error.response
    meta = response.get("ResponseMetadata", {})
    status = meta.get("HTTPStatusCode")
    code = str(response.get("Error", {}).get("Code", status))
    said = str(response.get("Error", {}).get("Message", ""))
    if status is None and code.isdigit():
        status = int(code)
    if code == "404":
        # The answer to a HEAD request has no code; what else it may be has been asked for already.
        code = "NoSuchKey"
    transient = status in _TRANSIENT_STATUS or code in _TRANSIENT_CODES
    kind, advice = _classify(code, status, said, place)
    message = advice if kind is NotFound else f"{place}: {advice}"
    known = kind(message, url=place.url, code=code, status=status)
    return Fault(
        known, transient=transient, retry_after_s=_retry_after_s(meta.get("HTTPHeaders", {}))
    )


def _classify(
    code: str, status: int | None, said: str, place: Place
) -> tuple[type[StorageError], str]:
    if code == "NoSuchBucket":
        return NotFound, f"there is no bucket {place.bucket!r} at {place.endpoint}; check its name"
    if status == 404:
        return NotFound, f"there is no object {place}; check bucket and key"
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


def _denied(message: str, place: Place, code: str) -> Fault:
    return Fault(AccessDenied(message, url=place.url, code=code), transient=False)


def _unreached(error: boto.BotoCoreError, place: Place) -> Fault:
    root = _root(error)
    if isinstance(error, boto.ConnectTimeoutError):
        code, what = "ConnectTimeout", "no connection in time"
    elif isinstance(root, aiohttp.ClientConnectorDNSError):
        code, what = "DNSFailure", "the host name is unknown"
    else:
        number = getattr(root, "errno", None)
        code = errno.errorcode.get(number or 0, "ConnectionFailed")
        what = "connection refused" if code == "ECONNREFUSED" else f"no connection ({code})"
    message = f"{place}: {what}; check endpoint_url and that the server runs"
    unreached = not isinstance(root, aiohttp.ClientOSError) or isinstance(
        root, aiohttp.ClientConnectorError
    )
    error_ = Unavailable(message, url=place.url, code=code)
    return Fault(error_, transient=True, unreached=unreached)


def _broken(error: Exception, place: Place) -> Fault:
    timed_out = isinstance(error, TimeoutError | boto.ReadTimeoutError)
    what = "the server stopped sending" if timed_out else "the connection broke"
    code = "ReadTimeout" if timed_out else type(_root(error)).__name__
    message = f"{place}: {what} ({code}); check the network and try again"
    return Fault(Unavailable(message, url=place.url, code=code), transient=True)


def _root(error: Exception) -> BaseException:
    """The error beneath one of the engine's wrappers."""
    inner = getattr(error, "kwargs", {}).get("error")
    return inner if isinstance(inner, BaseException) else error


def _retry_after_s(headers: Mapping[str, Any]) -> float | None:
    """The Retry-After header, seconds or a date (RFC 9110, 10.2.3), as seconds from now."""
    text = str(headers.get("retry-after", "")).strip()
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
