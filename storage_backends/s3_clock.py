"""The server's time, where this machine's clock is so far off that signatures are refused."""

from __future__ import annotations

import datetime
import email.utils
import time
from typing import Any

#: A clock that is this close to the server's is not the reason of a refusal.
_LEAST_SKEW_S = 60.0
_STAMP = "%Y%m%dT%H%M%SZ"


class Clock:
    """What all requests of a store are dated by.

    Attributes:
        skew_s: how far the server is ahead of this machine.
    """

    def __init__(self) -> None:
        self.skew_s = 0.0

    def correct(self, date: str | None) -> bool:
        """Takes over a server's ``Date`` header; False if that is the time already."""
        try:
            parsed = email.utils.parsedate_to_datetime(date or "")
        except ValueError:
            return False
        skew_s = parsed.timestamp() - time.time()
        if abs(skew_s - self.skew_s) < _LEAST_SKEW_S:
            return False
        self.skew_s = skew_s
        return True


def sign_by(clock: Clock, client: Any) -> None:
    """Makes a client of the engine sign by ``clock``.

    The engine has no switch for it. Its signer dates a request, lets a method put the date among
    the headers, and signs; here the date is corrected at the beginning of that method.
    """
    signer = client._request_signer  # noqa: SLF001 - see above
    make_auth = signer.get_auth_instance

    async def make_dated_auth(*args: Any, **kwargs: Any) -> Any:
        auth = await make_auth(*args, **kwargs)
        modify = getattr(auth, "_modify_request_before_signing", None)
        if modify is not None:

            def correct_date(request: Any) -> None:
                if clock.skew_s:
                    at = datetime.datetime.fromtimestamp(time.time() + clock.skew_s, datetime.UTC)
                    request.context["timestamp"] = at.strftime(_STAMP)
                modify(request)

            auth._modify_request_before_signing = correct_date  # noqa: SLF001 - see above
        return auth

    signer.get_auth_instance = make_dated_auth
