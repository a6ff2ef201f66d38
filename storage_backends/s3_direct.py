"""Address and credentials of a bucket where options and environment say all of it.

Importing the engine and making a client takes most of a second, which a read of a bucket at a
known endpoint with known keys does not need. Whatever has to be looked up, in a file, at a server
or in the rules of AWS's own endpoints, is left to the engine.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass

from storage_backends.errors import Misconfigured
from storage_backends.options import StorageOptions, check_endpoint
from storage_backends.s3_access import (
    ANONYMOUS,
    DEFAULT_REGION,
    FROM_OPTIONS,
    S3Access,
    bucket_url,
)
from storage_backends.s3_environment import read_environment
from storage_backends.sigv4 import Credentials
from storage_backends.urls import S3Location

#: Variables that name a profile, or credentials with an end.
_ASKS_ENGINE = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CREDENTIAL_EXPIRATION")
_FILES = {
    "AWS_CONFIG_FILE": "~/.aws/config",
    "AWS_SHARED_CREDENTIALS_FILE": "~/.aws/credentials",
    "BOTO_CONFIG": "~/.boto",
}


@dataclass(frozen=True, slots=True, eq=False)
class Direct:
    """What is known without the engine; one object is another one even if it says the same.

    Attributes:
        endpoint_url: where requests go.
        bucket_url: what the keys of the bucket are below.
        region: what requests are signed for.
        credentials: None leaves them unsigned.
        identity: whose credentials these are, for messages.
        authorities: file or folder of trusted authorities, if one is configured.
    """

    endpoint_url: str
    bucket_url: str
    region: str
    credentials: Credentials | None
    identity: str
    authorities: str | None

    @property
    def endpoint(self) -> str:
        """For messages."""
        return f"{self.endpoint_url} ({self.region})"

    def access(self) -> S3Access:
        return S3Access(
            self.bucket_url,
            self.region,
            self.credentials,
            self.authorities or _usual_authorities(),
            self.authorities is not None,
            self,
        )


def read_direct(
    location: S3Location, options: StorageOptions, environment: Mapping[str, str]
) -> Direct | None:
    """Reads options and environment; None if that is not all that would have to be read.

    Raises:
        Misconfigured: a variable with a value that it cannot have.
    """
    if options.profile is not None or any(environment.get(name) for name in _ASKS_ENGINE):
        return None
    if any(os.path.exists(_path(name, usual, environment)) for name, usual in _FILES.items()):
        return None
    found = read_environment({}, {}, environment)
    check_endpoint(found.endpoint_url)
    endpoint = options.endpoint_url or found.endpoint_url
    by_path = options.path_style
    if by_path is None:
        by_path = found.addressing_style in (None, "path")
    if endpoint is None or not by_path:
        return None
    credentials, identity = _credentials(options, environment, anonymous=found.anonymous)
    if identity is None:
        return None
    region = options.region or found.region or environment.get("AWS_DEFAULT_REGION")
    return Direct(
        endpoint,
        bucket_url(endpoint, location.bucket, "path"),
        region or DEFAULT_REGION,
        credentials,
        identity,
        environment.get("AWS_CA_BUNDLE") or None,
    )


def _credentials(
    options: StorageOptions, environment: Mapping[str, str], *, anonymous: bool
) -> tuple[Credentials | None, str | None]:
    """Credentials and whose they are; nobody's if the engine has to find them, or to refuse."""
    chosen = options.aws_access_key_id is not None
    if options.anonymous or (options.anonymous is None and anonymous and not chosen):
        return None, ANONYMOUS
    if chosen:
        keys = (
            options.aws_access_key_id,
            options.aws_secret_access_key,
            options.aws_session_token,
        )
        identity = FROM_OPTIONS
    else:
        keys = (
            environment.get("AWS_ACCESS_KEY_ID"),
            environment.get("AWS_SECRET_ACCESS_KEY"),
            environment.get("AWS_SESSION_TOKEN") or environment.get("AWS_SECURITY_TOKEN"),
        )
        identity = "credentials from env"
    if not keys[0] or not keys[1]:
        return None, None
    try:
        return Credentials(keys[0], keys[1], keys[2] or None), identity
    except ValueError:
        return None, None


def _path(name: str, usual: str, environment: Mapping[str, str]) -> str:
    return os.path.expanduser(environment.get(name) or usual)


def _usual_authorities() -> str:
    """The file that the engine takes, found without importing it."""
    for package in ("certifi", "botocore"):
        found = importlib.util.find_spec(package)
        if found is not None and found.origin is not None:
            path = os.path.join(os.path.dirname(found.origin), "cacert.pem")
            if os.path.isfile(path):
                return path
    raise Misconfigured(
        "the authorities that botocore brings are not installed; name a file of them in "
        "AWS_CA_BUNDLE",
        url="",
    )
