"""What a request to a bucket needs, whoever has found it out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from storage_backends.sigv4 import Credentials

DEFAULT_REGION = "us-east-1"
ANONYMOUS = "anonymous"
FROM_OPTIONS = "credentials from the storage options"
#: Names of buckets that can be part of a host name, with a certificate that has one wildcard.
_HOST_NAME = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")


@dataclass(frozen=True, slots=True)
class S3Access:
    """Address and credentials.

    Attributes:
        bucket_url: what the keys of the bucket are below.
        region: what requests are signed for.
        credentials: what they are signed with; None leaves them unsigned.
        authorities: file or folder of the trusted authorities.
        own_authorities: they are configured, not those that everybody trusts.
        basis: what all this is from; another one once it has changed.
    """

    bucket_url: str
    region: str
    credentials: Credentials | None
    authorities: str
    own_authorities: bool
    basis: Any


def bucket_url(endpoint: str, bucket: str, addressing: str) -> str:
    """What the keys of a bucket are below: ``bucket.endpoint`` or ``endpoint/bucket``."""
    parts = urlsplit(endpoint)
    if addressing == "virtual" or (addressing == "auto" and _HOST_NAME.fullmatch(bucket)):
        return f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path.rstrip('/')}"
    return f"{endpoint.rstrip('/')}/{bucket}"
