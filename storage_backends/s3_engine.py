"""The engine's client: made once per store, and again when its credentials have expired."""

from __future__ import annotations

import asyncio
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any

from aiobotocore.config import AioConfig
from aiobotocore.credentials import AioCredentials
from aiobotocore.httpsession import AIOHTTPSession
from aiobotocore.session import AioSession
from botocore import UNSIGNED
from botocore import exceptions as boto
from botocore.httpsession import get_cert_path
from botocore.loaders import Loader, create_loader

from storage_backends.errors import AccessDenied, Misconfigured, StorageError
from storage_backends.options import StorageOptions, check_endpoint
from storage_backends.refusals import Place
from storage_backends.s3_access import (
    ANONYMOUS,
    DEFAULT_REGION,
    FROM_OPTIONS,
    S3Access,
    bucket_url,
)
from storage_backends.s3_clock import Clock, sign_by
from storage_backends.s3_environment import S3Environment, read_environment
from storage_backends.s3_errors import ENGINE_ERRORS, fault_of
from storage_backends.sigv4 import Credentials
from storage_backends.urls import S3Location

_CONNECT_TIMEOUT_S = 3.0
#: Longest silence within a body or before its head, after which the request is made again.
_READ_TIMEOUT_S = 10.0
_ENGINE_DATA = ("_retry", "endpoints", "partitions", "sdk-default-configuration")


class _OneAttemptSession(AIOHTTPSession):  # type: ignore[misc]  # the engine is not typed
    """An HTTP client that sends every request once.

    By default aiohttp repeats a GET or PUT whose connection ends before the answer. The repeats
    would be hidden from the retry policy, and a conditional PUT would be refused by the object
    that its own first attempt had made. aiohttp has no public switch for it.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False  # noqa: SLF001 - see above
        return session


class S3Engine:
    """Makes and owns the client.

    Args:
        location: the bucket.
        options: of the store.
        clock: what requests are dated by.
        region: what an answer of the server has named, if one has.

    Attributes:
        endpoint: where requests go, for messages; known once there is a client.
        identity: whose credentials sign them, for messages; known once there is a client.
        custom_endpoint: requests go to another server than AWS itself.
    """

    def __init__(
        self,
        location: S3Location,
        options: StorageOptions,
        clock: Clock,
        region: str | None = None,
    ) -> None:
        self._location = location
        self._options = options
        self._clock = clock
        self._lock = asyncio.Lock()
        self._clients = AsyncExitStack()
        self._client: Any = None
        self._credentials: tuple[Any, ...] | None = None
        self._provider: Any = None
        self._region = region
        self._addressing = "auto"
        self._authorities: str | None = None
        self.endpoint = options.endpoint_url or "AWS"
        self.identity = ""
        self.custom_endpoint = options.endpoint_url is not None

    async def client(self) -> Any:
        """The client; concurrent first calls make one."""
        if self._client is None:
            async with self._lock:
                if self._client is None:
                    session, found = await self._open_session()
                    self._client = await self._make_client(session, found)
        return self._client

    async def renew(self, expired: Any, used: Credentials | None) -> bool:
        """Reads the credentials anew after ``expired``, a client, was refused; True if they differ.

        The engine refreshes credentials by their announced end only, and would never look again
        at a file or a variable that was rewritten.
        """
        if self._credentials is None:
            return False
        if used is not None and expired is self._client:
            # What has an announced end has been refreshed by now; that costs no new client.
            fresh = await self._provider.get_frozen_credentials()
            if (fresh.access_key, fresh.secret_key, fresh.token) != used.as_tuple():
                return True
        async with self._lock:
            if self._client is not expired:
                return True
            known = self._credentials
            session, found = await self._open_session()
            if self._credentials == known:
                return False
            self._client = await self._make_client(session, found)
            return True

    async def move(self, misled: Any, region: str) -> bool:
        """Makes a client for ``region``, which an answer to ``misled``, a client, has named."""
        async with self._lock:
            if self._client is misled:
                self._region = region
                session, found = await self._open_session()
                self._client = await self._make_client(session, found)
            return True

    def is_current(self, client: Any) -> bool:
        """``client`` has not been replaced."""
        return client is not None and client is self._client

    async def access(self, place: Place) -> S3Access:
        """Address and credentials, renewed where their end is near. Raises Fault."""
        client = await self.client()
        credentials = None
        if self.identity != ANONYMOUS:
            try:
                frozen = None
                if self._provider is not None:
                    frozen = await self._provider.get_frozen_credentials()
            except ENGINE_ERRORS as error:
                raise fault_of(error, place) from error
            if frozen is None:
                missing = boto.NoCredentialsError()
                raise fault_of(missing, place) from missing
            try:
                credentials = Credentials(frozen.access_key, frozen.secret_key, frozen.token)
            except ValueError as error:
                raise self._setup_error(error) from error
        return S3Access(
            bucket_url(client.meta.endpoint_url, self._location.bucket, self._addressing),
            client.meta.region_name,
            credentials,
            self._authorities or get_cert_path(True),
            self._authorities is not None,
            client,
        )

    async def close(self) -> None:
        """Closes every connection."""
        self._client = None
        await self._clients.aclose()

    async def _open_session(self) -> tuple[AioSession, S3Environment]:
        """Reads configuration and credentials; returns the session and what was configured."""
        try:
            session = AioSession(profile=self._options.profile)
            with ThreadPoolExecutor(1, "storage-s3-setup") as thread:
                loop = asyncio.get_running_loop()
                found = await loop.run_in_executor(thread, _prepare, session)
            self._credentials = await self._find_credentials(session, found)
        except StorageError:
            raise
        except (boto.BotoCoreError, ValueError) as error:
            raise self._setup_error(error) from error
        check_endpoint(found.endpoint_url)
        return session, found

    async def _make_client(self, session: AioSession, found: S3Environment) -> Any:
        endpoint = self._options.endpoint_url or found.endpoint_url
        try:
            context = session.create_client("s3", **self._arguments(session, found, endpoint))
            client = await self._clients.enter_async_context(context)
            sign_by(self._clock, client)
        except (boto.BotoCoreError, ValueError) as error:
            raise self._setup_error(error) from error
        self.custom_endpoint = endpoint is not None
        self.endpoint = f"{endpoint or 'AWS'} ({client.meta.region_name})"
        self._addressing = self._addressing_style(found, endpoint)
        self._authorities = session.get_config_variable("ca_bundle")
        return client

    async def _find_credentials(
        self, session: AioSession, found: S3Environment
    ) -> tuple[Any, ...] | None:
        """Sets ``identity``; returns the provider chain's credentials, if it is asked."""
        if self._is_anonymous(found):
            self.identity = ANONYMOUS
            return None
        options = self._options
        if options.aws_access_key_id is not None:
            self.identity = FROM_OPTIONS
            self._provider = AioCredentials(
                options.aws_access_key_id, options.aws_secret_access_key, options.aws_session_token
            )
            return None
        name = self._options.profile or session.get_config_variable("profile")
        profile = f" of profile {name!r}" if name else ""
        self._provider = credentials = await session.get_credentials()
        if credentials is None:
            self.identity = f"no credentials{profile}"
            return None
        if credentials.method == "env":
            # Keys in the environment go before a profile that is named there.
            profile = ""
        self.identity = f"credentials{profile} from {credentials.method}"
        return tuple(await credentials.get_frozen_credentials())

    def _is_anonymous(self, found: S3Environment) -> bool:
        options = self._options
        if options.anonymous is not None:
            return options.anonymous
        chosen = options.aws_access_key_id is not None or options.profile is not None
        return found.anonymous and not chosen

    def _addressing_style(self, found: S3Environment, endpoint: str | None) -> str:
        if self._options.path_style is None:
            return found.addressing_style or ("auto" if endpoint is None else "path")
        if self._options.path_style:
            return "path"
        # "auto" is virtual at AWS where the bucket's name allows it, and path at any endpoint.
        return "auto" if endpoint is None else "virtual"

    def _arguments(
        self, session: AioSession, found: S3Environment, endpoint: str | None
    ) -> dict[str, Any]:
        options = self._options
        region = (
            self._region or options.region or found.region or session.get_config_variable("region")
        )
        if region is None and endpoint is not None:
            region = DEFAULT_REGION
        config = AioConfig(
            max_pool_connections=options.max_connections,
            connect_timeout=_CONNECT_TIMEOUT_S,
            read_timeout=_READ_TIMEOUT_S,
            tcp_keepalive=True,
            # There is one retry policy, ours.
            http_session_cls=_OneAttemptSession,
            retries={"total_max_attempts": 1, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            signature_version=UNSIGNED if self._is_anonymous(found) else None,
            s3={"addressing_style": self._addressing_style(found, endpoint)},
        )
        return {
            "region_name": region,
            "endpoint_url": endpoint,
            "aws_access_key_id": options.aws_access_key_id,
            "aws_secret_access_key": options.aws_secret_access_key,
            "aws_session_token": options.aws_session_token,
            "verify": None if options.verify_tls else False,
            "config": config,
        }

    def _setup_error(self, error: Exception) -> StorageError:
        url, code = self._location.url, type(error).__name__
        if isinstance(error, boto.PartialCredentialsError | boto.CredentialRetrievalError):
            message = f"{url}: the credentials of this machine cannot be used; check them ({error})"
            return AccessDenied(message, url=url, code=code)
        message = f"{url}: the AWS configuration or an option cannot work; correct it ({error})"
        return Misconfigured(message, url=url, code=code)


def _prepare(session: AioSession) -> S3Environment:
    """Reads what the engine would otherwise read on the loop."""
    session.register_component("data_loader", _load_data(session.get_config_variable("data_path")))
    return read_environment(session.full_config, session.get_scoped_config(), os.environ)


@functools.cache
def _load_data(search_path: str | None) -> Loader:
    """The engine's description of S3: a quarter of a second to parse, the same for every store."""
    loader = create_loader(search_path)
    for name in _ENGINE_DATA:
        loader.load_data(name)
    for kind in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("s3", kind)
    return loader
