"""What goes wrong on the way to an HTTP server, said in this package's errors."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from dataclasses import dataclass

from storage_backends._retry import Fault
from storage_backends.errors import Unavailable
from storage_backends.http_connection import Broken
from storage_backends.http_head import ResponseHead
from storage_backends.refusals import Place, answer_fault, broken_body, wrong_answer

_TIMED_OUT = {
    "ReadTimeout": "the server stopped sending",
    "TooSlow": "the body came too slowly",
}
_XML = {
    name: re.compile(rb"<%s>([^<]{1,500})</%s>" % (name.encode(), name.encode()))
    for name in ("Code", "Message", "Region")
}


class Refused(Exception):
    """An answer that is no success, as the cause of this package's error."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is no success.

    Attributes:
        key: what was asked for.
        head: of the answer.
        text: its body, at most 64 KiB.
        fault: what to raise.
    """

    key: str
    head: ResponseHead
    text: bytes
    fault: Fault


def refusal_fault(head: ResponseHead, text: bytes, place: Place) -> Fault:
    """The fault of an answer that refuses, with the code in its XML body if it has one."""
    code = xml_value("Code", text) or str(head.status)
    fault = answer_fault(head.status, code, xml_value("Message", text) or "", head.headers, place)
    fault.__cause__ = Refused(f"HTTP status {head.status}, code {code}")
    return fault


def xml_value(name: str, text: bytes) -> str | None:
    """What one element of a refusal's body holds: ``Code``, ``Message`` or ``Region``."""
    match = _XML[name].search(text)
    return match[1].decode("utf-8", "replace").strip() if match else None


def dial_fault(error: OSError, place: Place) -> Fault:
    """The fault of a connection that did not come about."""
    if isinstance(error, ssl.SSLCertVerificationError):
        message = (
            f"{place}: the TLS certificate is not trusted; install its authority, or give "
            f"verify_tls=False ({error.verify_message})"
        )
        return Fault(Unavailable(message, url=place.url, code="SSLError"), transient=False)
    if isinstance(error, ssl.SSLError):
        message = f"{place}: TLS failed ({error.reason}); check that the server speaks https"
        untold = Unavailable(message, url=place.url, code="SSLError")
        return Fault(untold, transient=True, unreached=True)
    if isinstance(error, TimeoutError):
        code, what = "ConnectTimeout", "no connection in time"
    elif isinstance(error, socket.gaierror):
        code, what = "DNSFailure", "the host name is unknown"
    elif (number := _errno(error)) == errno.ECONNREFUSED:
        code, what = "ECONNREFUSED", "connection refused"
    else:
        code = errno.errorcode.get(number, "ConnectionFailed")
        what = f"no connection ({code})"
    message = f"{place}: {what}; check endpoint_url and that the server runs"
    return Fault(Unavailable(message, url=place.url, code=code), transient=True, unreached=True)


def broken_fault(broken: Broken, place: Place, done: int, wanted: int) -> Fault:
    """The fault of an exchange that ended without an answer, or in the midst of it."""
    if broken.code == "IncompleteBody":
        return broken_body(place, done, wanted)
    if broken.code == "WrongAnswer":
        return wrong_answer(place, str(broken), 0)
    if broken.code == "ProxyRefused":
        message = f"{place}: {broken}; check the proxy of the environment"
        return Fault(Unavailable(message, url=place.url, code=broken.code), transient=True)
    what = _TIMED_OUT.get(broken.code, "the connection broke")
    message = f"{place}: {what} ({broken.code}: {broken}); check the network and try again"
    return Fault(Unavailable(message, url=place.url, code=broken.code), transient=True)


def _errno(error: OSError) -> int:
    """The number of an error, also where asyncio has joined those of several addresses."""
    if error.errno is None:
        found = re.findall(r"\[Errno (\d+)\]", str(error))
        return int(found[-1]) if found else 0
    return error.errno
