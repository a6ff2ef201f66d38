"""URLs of stores: how they are read, normalised and joined.

``s3://bucket/prefix`` is taken literally, like every tool for S3 does: no percent-decoding, ``?``
and ``#`` are part of the prefix. ``file:///path`` is percent-decoded. Anything without a scheme is
a local path. A bytes name that is not UTF-8 travels as surrogates (``os.fsdecode``).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import quote, unquote_to_bytes

from storage_backends.errors import Misconfigured

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
_SUPPORTED = "s3://bucket/prefix, file:///folder or a plain path"


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
class LocalLocation:
    """An absolute folder."""

    path: str

    @property
    def url(self) -> str:
        """The normalised URL: the absolute path itself."""
        return self.path


def parse_url(url: str | os.PathLike[str]) -> S3Location | LocalLocation:
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
        return _parse_s3(rest)
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
    # "s3://" and "/" end in slashes that are not separators.
    base = url if match is not None and match.end() == len(url) else url.rstrip("/")
    return "/".join([base, *(key for key in keys if key)])


def _parse_s3(rest: str) -> S3Location:
    bucket, _, prefix = rest.partition("/")
    if "@" in bucket or ":" in bucket:
        raise Misconfigured(
            "an s3:// URL has a bucket and a prefix only; give credentials, region and endpoint as "
            "options",
            url="s3://",
        )
    if not _BUCKET.fullmatch(bucket):
        raise Misconfigured(
            f"{bucket!r} is not a bucket name; give s3://bucket/prefix", url=f"s3://{bucket}"
        )
    return S3Location(bucket, prefix.rstrip("/"))


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
