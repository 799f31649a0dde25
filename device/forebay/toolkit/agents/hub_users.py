"""Whose tokens are, as JupyterHub says."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

from forebay.errors import ForebayError

BELIEVED_SECONDS = 30.0
"""For so long an answer counts; a token that is revoked is good for so long."""
KNOWN_MAX = 256
ASKED_MAX = 4
"""Questions at a time: whoever comes without a token must not keep the hub busy."""
ANSWER_SECONDS_MAX = 10.0


class HubUsers:
    """Asks the hub, and remembers for a while."""

    def __init__(self, api_url: str, now: Callable[[], float] = time.monotonic) -> None:
        self._url = api_url.rstrip("/") + "/user"
        self._now = now
        self._known: dict[bytes, tuple[float, str | None]] = {}
        """By a hash of the token: until when it is believed, and whose it is."""
        self._asked = asyncio.Semaphore(ASKED_MAX)

    async def name_of(self, token: str) -> str | None:
        """The login whose token it is; None where it is nobody's. Raises ForebayError where the hub does not say."""
        key = hashlib.sha256(token.encode()).digest()
        async with self._asked:
            until, name = self._known.get(key, (float("-inf"), None))
            if self._now() >= until:
                name = await self._ask(token)
                self._known[key] = self._now() + BELIEVED_SECONDS, name
                while len(self._known) > KNOWN_MAX:
                    del self._known[next(iter(self._known))]
            return name

    async def _ask(self, token: str) -> str | None:
        request = HTTPRequest(self._url, headers={"Authorization": f"token {token}"}, request_timeout=ANSWER_SECONDS_MAX)
        try:
            answer = await AsyncHTTPClient().fetch(request, raise_error=False)
            told = json.loads(answer.body) if answer.code == 200 else None
        except (OSError, ValueError):
            raise ForebayError("The hub does not answer.") from None
        if answer.code not in (200, 401, 403):
            raise ForebayError(f"The hub does not say whose token it is (HTTP {answer.code}).")
        return str(told["name"]) if isinstance(told, dict) and told.get("kind", "user") == "user" and "name" in told else None
