"""URLs of stores: how they are read, normalised and joined.

``s3://bucket/prefix`` is taken literally, like every tool for S3 does: no percent-decoding, ``?``
and ``#`` are part of the prefix. ``http(s)://host/folder`` stays percent-encoded, and
``file:///path`` is percent-decoded. Anything without a scheme is
a local path. A bytes name that is not UTF-8 travels as surrogates (``os.fsdecode``).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes, urlsplit

from storage_backends.errors import Misconfigured

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_VISIBLE = re.compile(r"[!-~]+")
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
_SUPPORTED = (
    "s3://bucket/prefix, gs://bucket/prefix, az://container/prefix, http(s)://host/folder, "
    "file:///folder or a plain path"
)


@dataclass(frozen=True, slots=True)
class S3Location:
    """A bucket and a key prefix without a trailing slash, possibly empty."""

    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """The normalised URL."""
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"


@dataclass(frozen=True, slots=True)
class CloudLocation:
    """A bucket of Google Cloud (``gs``) or a container of Azure (``az``), and a key prefix."""

    scheme: str
    bucket: str
    prefix: str

    @property
    def url(self) -> str:
        """The normalised URL."""
        base = f"{self.scheme}://{self.bucket}"
        return f"{base}/{self.prefix}" if self.prefix else base


@dataclass(frozen=True, slots=True)
class HttpLocation:
    """A folder of a web server; the URL is percent-encoded and has no trailing slash."""

    url: str


@dataclass(frozen=True, slots=True)
class LocalLocation:
    """An absolute folder."""

    path: str

    @property
    def url(self) -> str:
        """The normalised URL: the absolute path itself."""
        return self.path


Location = S3Location | CloudLocation | HttpLocation | LocalLocation


def parse_url(
    url: str | os.PathLike[str],
) -> S3Location | CloudLocation | HttpLocation | LocalLocation:
    """Where ``url`` points. Raises Misconfigured if it is of no supported form."""
    text = os.fspath(url)
    if not isinstance(text, str) or not text:
        raise Misconfigured(f"empty storage URL; give {_SUPPORTED}", url="")
    if "\0" in text:
        raise Misconfigured("the storage URL has a NUL character; remove it", url="")
    match = _SCHEME.match(text)
    if match is None:
        return LocalLocation(os.path.abspath(text))
    scheme, rest = match[1].lower(), text[match.end() :]
    if scheme == "s3":
        bucket, prefix = _parse_bucket("s3", rest)
        return S3Location(bucket, prefix)
    if scheme in ("gs", "az"):
        return CloudLocation(scheme, *_parse_bucket(scheme, rest))
    if scheme in ("http", "https"):
        return _parse_http(scheme, rest)
    if scheme == "file":
        return _parse_file(rest)
    # Not the URL itself: what follows the scheme may hold a password.
    raise Misconfigured(f"{scheme}:// is not supported; give {_SUPPORTED}", url=f"{scheme}://")


def join_url(url: str, *keys: str) -> str:
    """The URL of ``keys`` below ``url``, each joined by one slash.

    >>> join_url("s3://bucket/train/", "shards", "0.dts")
    's3://bucket/train/shards/0.dts'
    """
    match = _SCHEME.match(url)
    if match is not None and match[1].lower() == "file":
        keys = tuple(quote(os.fsencode(key)) for key in keys)
    if match is not None and match[1].lower() in ("http", "https"):
        keys = tuple(quote(key, safe="/~") for key in keys)
    # "s3://" and "/" end in slashes that are not separators.
    base = url if match is not None and match.end() == len(url) else url.rstrip("/")
    return "/".join([base, *(key for key in keys if key)])


def _parse_bucket(scheme: str, rest: str) -> tuple[str, str]:
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or ":" in bucket:
        raise Misconfigured(
            f"an {scheme}:// URL has a bucket and a prefix only; give credentials, region and "
            "endpoint as options",
            url=f"{scheme}://",
        )
    if not _BUCKET.fullmatch(bucket):
        raise Misconfigured(
            f"{bucket!r} is not a bucket name; give {scheme}://bucket/prefix",
            url=f"{scheme}://{bucket}",
        )
    return bucket, prefix.rstrip("/")


def _parse_http(scheme: str, rest: str) -> HttpLocation:
    if "@" in rest.partition("/")[0]:
        raise Misconfigured(
            f"an {scheme}:// URL must not hold a user or password; use a server that gives the "
            "files without",
            url=f"{scheme}://",
        )
    url = f"{scheme}://{rest}".rstrip("/")
    try:
        parts = urlsplit(url)
        valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        valid = False
    if not valid or "?" in rest or "#" in rest or not _VISIBLE.fullmatch(rest):
        raise Misconfigured(
            f"{url!r} is not a folder of a web server; give {scheme}://host/folder, "
            "percent-encoded and without a query",
            url=f"{scheme}://",
        )
    return HttpLocation(url)


def _parse_file(rest: str) -> LocalLocation:
    host, slash, path = rest.partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise Misconfigured(
            f"file://{rest} names a host or a relative path; give file:///absolute/folder",
            url=f"file://{rest}",
        )
    decoded = os.fsdecode(unquote_to_bytes(os.fsencode(path)))
    if "\0" in decoded:
        raise Misconfigured("the storage URL has a NUL character; remove it", url="file://")
    return LocalLocation(os.path.abspath("/" + decoded))
