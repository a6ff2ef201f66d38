"""The administrator of the S3 server on loopback: its identities, and its buckets."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from streamloader.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Identity:
    """Who may do what.

    Args:
        name: for the server's own use.
        access_key, secret_key: its credentials.
        actions: what it may do, as SeaweedFS calls it.
    """

    name: str
    access_key: str
    secret_key: str = field(repr=False)
    actions: tuple[str, ...]

    @classmethod
    def new(cls, name: str, *actions: str) -> Identity:
        """An identity with random keys."""
        key = f"{name.upper()}{secrets.token_hex(8).upper()}"
        return cls(name, key, secrets.token_hex(20), actions)

    def to_json(self) -> dict[str, Any]:
        """What SeaweedFS reads of it."""
        credentials = [{"accessKey": self.access_key, "secretKey": self.secret_key}]
        return {"name": self.name, "credentials": credentials, "actions": list(self.actions)}


class Administrator:
    """Makes and removes buckets; use ``close``.

    Args:
        endpoint_url: of the server, which answers.
        region: of its buckets.
        identity: that may do everything.
    """

    def __init__(self, endpoint_url: str, region: str, identity: Identity) -> None:
        # Slow to import, and needed only where a server runs.
        import botocore.config
        import botocore.session

        self._endpoint_url = endpoint_url
        self._client = botocore.session.get_session().create_client(
            "s3",
            region_name=region,
            endpoint_url=endpoint_url,
            aws_access_key_id=identity.access_key,
            aws_secret_access_key=identity.secret_key,
            config=botocore.config.Config(
                s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}
            ),
        )

    def takes_objects(self, bucket: str) -> bool:
        """Whether the server accepts an object in this bucket, which is made."""
        import botocore.exceptions

        try:
            self._client.create_bucket(Bucket=bucket)
            self._client.put_object(Bucket=bucket, Key="ready", Body=b"ready")
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError):
            return False
        return True

    def run(self, operation: str, bucket: str) -> None:
        """``create_bucket`` or ``delete_bucket``; ConfigError if the server refuses."""
        import botocore.exceptions

        try:
            getattr(self._client, operation)(Bucket=bucket)
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
            raise ConfigError(
                f"{operation} {bucket!r} failed at {self._endpoint_url}: {error}"
            ) from error

    def close(self) -> None:
        """Closes its connections."""
        self._client.close()
