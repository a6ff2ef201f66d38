"""Options of ``open_store``: which there are, and what each may be."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from storage_backends.errors import Misconfigured

_MIB = 2**20
#: The smallest part that S3 takes, the last of an upload excepted.
MIN_PART_BYTES = 5 * _MIB
_MAX_PART_BYTES = 5 * 2**30
_TEXTS = (
    "region",
    "profile",
    "aws_access_key_id",
    "aws_secret_access_key",
    "aws_session_token",
)
#: What every store takes, a local one included, and what one of files of a web server takes.
_SHARED = ("download_retry", "download_timeout")
#: What only a local store takes, besides.
_LOCAL = ("sync",)
_HTTP = (*_SHARED, "max_connections", "verify_tls", "reader")
#: What the stores of Google Cloud and Azure take; all else is in their environment variables.
_CLOUD = (*_SHARED, "anonymous", "part_bytes", "reader")
_READERS = ("native", "aiobotocore", "obstore")


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Validated options; a bad one raises Misconfigured with its name.

    Attributes:
        endpoint_url: http(s) URL of an S3-compatible server; if None, what the AWS configuration
            says, else AWS itself.
        region: region of the bucket; what the AWS configuration says if None.
        profile: profile of the AWS configuration files.
        anonymous: send unsigned requests; what ``AWS_NO_SIGN_REQUEST`` says if None.
        path_style: ``endpoint/bucket/key`` rather than ``bucket.endpoint/key``, which needs a
            bucket and an endpoint that together are a host name. If None, what
            ``AWS_S3_ADDRESSING_STYLE`` or the AWS configuration says, else True exactly if there
            is an endpoint.
        aws_access_key_id, aws_secret_access_key, aws_session_token: credentials; what the AWS
            provider chain finds if None.
        verify_tls: check the server's certificate.
        max_connections: bound of open connections of the store.
        download_retry: attempts per operation, the first included.
        download_timeout: seconds for one operation with all its attempts.
        part_bytes: size of the parts of a streamed upload.
        reader: what reads objects: ``native`` receives into the caller's memory, ``aiobotocore``
            and ``obstore`` (extra ``cloud``) read through these libraries.
        sync: force files of a local store, and their names, to the disk before a write ends. If
            False that is left to the system: what was written may be lost or cut, without a
            sign, when the machine fails before.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None
    anonymous: bool | None = None
    path_style: bool | None = None
    aws_access_key_id: str | None = field(default=None, repr=False)
    aws_secret_access_key: str | None = field(default=None, repr=False)
    aws_session_token: str | None = field(default=None, repr=False)
    verify_tls: bool = True
    max_connections: int = 64
    download_retry: int = 8
    download_timeout: float = 60.0
    part_bytes: int = 8 * _MIB
    reader: str = "native"
    sync: bool = True

    def __post_init__(self) -> None:
        for name in _TEXTS:
            _require_text(name, getattr(self, name))
        for name in ("anonymous", "path_style"):
            flag = getattr(self, name)
            _require(flag is None or isinstance(flag, bool), name, "True, False or None", self)
        for name in ("verify_tls", "sync"):
            _require(isinstance(getattr(self, name), bool), name, "True or False", self)
        _require_int("max_connections", self.max_connections, 1, 10_000)
        _require_int("download_retry", self.download_retry, 1, 1_000)
        _require_int("part_bytes", self.part_bytes, MIN_PART_BYTES, _MAX_PART_BYTES)
        _require(_is_positive(self.download_timeout), "download_timeout", "seconds above 0", self)
        _require(self.reader in _READERS, "reader", f"one of {', '.join(_READERS)}", self)
        check_endpoint(self.endpoint_url)
        _check_credentials(self)


def known_options(given: Mapping[str, Any], scheme: str) -> dict[str, Any]:
    """Those of ``given`` that such a store takes, and those that no store knows."""
    fitting = {"file": (*_SHARED, *_LOCAL), "http": _HTTP, "gs": _CLOUD, "az": _CLOUD}
    known = {item.name for item in fields(StorageOptions)}
    taken = known.difference(_LOCAL) if scheme == "s3" else set(fitting[scheme])
    return {name: value for name, value in given.items() if name in taken or name not in known}


def parse_options(given: Mapping[str, Any], scheme: str) -> StorageOptions:
    """Validates the keyword options of ``open_store``.

    Args:
        given: the options.
        scheme: ``s3``, ``gs``, ``az``, ``http`` or ``file``.

    Raises:
        Misconfigured: an option that does not exist, does not belong to such a store, or has a
            value that cannot work; the message names it and never shows a secret.
    """
    known = [item.name for item in fields(StorageOptions)]
    for name in given:
        if name not in known:
            raise _error(f"unknown storage option {name!r}; known are {', '.join(known)}")
        if name in _LOCAL:
            if scheme != "file" and given[name] is not None:
                raise _error(
                    f"storage option {name!r} is for local paths only; {scheme}:// has no use of it"
                )
            continue
        if scheme == "file" and name not in _SHARED and given[name] is not None:
            raise _error(
                f"storage option {name!r} is for s3:// only; a local path has no use of it"
            )
        if scheme == "http" and name not in _HTTP and given[name] is not None:
            raise _error(
                f"storage option {name!r} is for s3:// only; http(s):// takes {', '.join(_HTTP)}"
            )
        if scheme in ("gs", "az") and name not in _CLOUD and given[name] is not None:
            raise _error(
                f"storage option {name!r} is for s3:// only; {scheme}:// takes {', '.join(_CLOUD)} "
                "and reads the rest from the environment"
            )
    options = StorageOptions(**{name: v for name, v in given.items() if v is not None})
    if scheme == "http" and options.reader != "native":
        raise _error(f"http(s):// is read by reader='native' only, got {options.reader!r}")
    return options


def check_endpoint(url: str | None) -> None:
    """Misconfigured if ``url`` is no http(s) endpoint, or holds a password that would be shown."""
    if url is None:
        return
    _require_text("endpoint_url", url)
    try:
        parts = urlsplit(url)
        secret, host, _ = "@" in parts.netloc, parts.hostname, parts.port
    except ValueError as error:
        raise _error(
            "storage option 'endpoint_url' is not a URL; give http(s)://host:port"
        ) from error
    if secret:
        raise _error(
            "storage option 'endpoint_url' must not hold a user or password; "
            "give credentials as aws_access_key_id and aws_secret_access_key"
        )
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise _error(f"storage option 'endpoint_url' must be http(s)://host:port, got {url!r}")


def _check_credentials(options: StorageOptions) -> None:
    key, secret = options.aws_access_key_id, options.aws_secret_access_key
    if (key is None) != (secret is None):
        raise _error("give both aws_access_key_id and aws_secret_access_key, or neither")
    if options.aws_session_token is not None and key is None:
        raise _error("aws_session_token needs aws_access_key_id and aws_secret_access_key too")
    if options.anonymous and (key is not None or options.profile is not None):
        raise _error("anonymous=True and credentials or a profile exclude each other; give one")
    if options.profile is not None and key is not None:
        raise _error("profile and aws_access_key_id exclude each other; give one")


def _require(valid: bool, name: str, wanted: str, options: StorageOptions) -> None:
    if not valid:
        raise _error(f"storage option {name!r} must be {wanted}, got {getattr(options, name)!r}")


def _require_text(name: str, value: object) -> None:
    # The value may be a secret: it is not shown.
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise _error(f"storage option {name!r} must be a non-empty string")


def _require_int(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _error(f"storage option {name!r} must be from {least} to {most}, got {value!r}")


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0


def _error(message: str) -> Misconfigured:
    return Misconfigured(message, url="")
