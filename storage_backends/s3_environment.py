"""What the AWS environment and configuration files say of S3, where the engine does not ask itself.

Options of ``open_store`` come first, then the environment, then the configuration files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage_backends.errors import Misconfigured

_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")
_STYLES = ("auto", "path", "virtual")


@dataclass(frozen=True, slots=True)
class S3Environment:
    """What is configured outside of the options.

    Attributes:
        endpoint_url: from ``AWS_ENDPOINT_URL_S3``, ``AWS_ENDPOINT_URL`` or the profile.
        region: from ``AWS_REGION``, which the engine does not read; ``AWS_DEFAULT_REGION`` and the
            profile's region are its own business.
        anonymous: ``AWS_NO_SIGN_REQUEST``, named after the option of the AWS command line.
        addressing_style: ``AWS_S3_ADDRESSING_STYLE``, or ``addressing_style`` of the profile's
            ``s3`` settings; None if neither is set.
    """

    endpoint_url: str | None
    region: str | None
    anonymous: bool
    addressing_style: str | None


def read_environment(
    config: Mapping[str, Any], profile: Mapping[str, Any], environment: Mapping[str, str]
) -> S3Environment:
    """Picks it out.

    Args:
        config: the configuration files, as the engine parses them.
        profile: the settings of the profile in use.
        environment: environment variables.

    Raises:
        Misconfigured: a variable with a value that it cannot have.
    """
    # A settings block that is no block (``s3 = x``) is parsed as text.
    settings = profile.get("s3")
    configured = settings.get("addressing_style") if isinstance(settings, Mapping) else None
    style = environment.get("AWS_S3_ADDRESSING_STYLE") or configured
    return S3Environment(
        endpoint_url=_endpoint(config, profile, environment),
        region=environment.get("AWS_REGION") or None,
        anonymous=_flag(environment, "AWS_NO_SIGN_REQUEST"),
        addressing_style=_style(style) if style else None,
    )


def _endpoint(
    config: Mapping[str, Any], profile: Mapping[str, Any], environment: Mapping[str, str]
) -> str | None:
    """The endpoint for S3, if any is named.

    The engine finds it too, but only after it was told how to address buckets, which depends on
    it. The order is that of the AWS SDK reference, "Service-specific endpoints".
    """
    ignore = environment.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    ignore = ignore or profile.get("ignore_configured_endpoint_urls") or ""
    if str(ignore).lower() == "true":
        return None
    services = config.get("services", {}).get(profile.get("services"), {})
    found = (
        environment.get("AWS_ENDPOINT_URL_S3")
        or environment.get("AWS_ENDPOINT_URL")
        or services.get("s3", {}).get("endpoint_url")
        or profile.get("endpoint_url")
    )
    return str(found) if found else None


def _flag(environment: Mapping[str, str], name: str) -> bool:
    value = environment.get(name, "").strip().lower()
    if value not in _YES + _NO:
        raise Misconfigured(
            f"the environment variable {name} must be true or false, got {value!r}", url=""
        )
    return value in _YES


def _style(value: object) -> str:
    style = str(value).strip().lower()
    if style not in _STYLES:
        raise Misconfigured(
            f"the addressing style of S3 must be one of {', '.join(_STYLES)}, got {value!r}; "
            "correct AWS_S3_ADDRESSING_STYLE or the AWS configuration file",
            url="",
        )
    return style
