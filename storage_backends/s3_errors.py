"""What the S3 engine raises, said in this package's errors."""

from __future__ import annotations

import asyncio
import errno

import aiohttp
from botocore import exceptions as boto

from storage_backends._retry import Fault
from storage_backends.errors import AccessDenied, Misconfigured, Unavailable
from storage_backends.refusals import NO_CREDENTIALS, Place, answer_fault

#: Everything that a call of the engine may raise when storage, network or credentials fail.
ENGINE_ERRORS = (
    boto.BotoCoreError,
    boto.ClientError,
    aiohttp.ClientError,
    asyncio.TimeoutError,
    OSError,
)


def fault_of(error: Exception, place: Place) -> Fault:
    """The fault of one attempt that ended in ``error``, one of ``ENGINE_ERRORS``."""
    if isinstance(error, boto.ClientError):
        return _of_answer(error, place)
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError):
        return _denied(f"{place}: {NO_CREDENTIALS}", place, type(error).__name__)
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


def _of_answer(error: boto.ClientError, place: Place) -> Fault:
    response = error.response
    meta = response.get("ResponseMetadata", {})
    status = meta.get("HTTPStatusCode")
    code = str(response.get("Error", {}).get("Code", status))
    said = str(response.get("Error", {}).get("Message", ""))
    if status is None and code.isdigit():
        status = int(code)
    return answer_fault(status, code, said, meta.get("HTTPHeaders", {}), place)


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
