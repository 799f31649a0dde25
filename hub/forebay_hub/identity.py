"""Who a token belongs to: the one piece of JupyterHub that pool, billing and dashboards share."""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

COMPUTE = "custom:forebay:compute"
TENANT = "custom:forebay:tenant"
OPERATE = "custom:forebay:operate"
SERVICE = "custom:forebay:service"

CACHE_SECONDS = 10.0
"""A revoked token keeps working this long at most."""
CACHE_ENTRIES_MAX = 10_000


@dataclass(frozen=True)
class Identity:
    """The bearer of a token. ``scopes`` holds Forebay's own scopes, without their filters."""

    name: str
    kind: Literal["user", "service"]
    tenant: str | None
    scopes: frozenset[str]

    def may(self, scope: str) -> bool:
        """Whether the bearer holds ``scope``."""
        return scope in self.scopes


class IdentityUnavailable(Exception):
    """The hub cannot be asked right now who a token belongs to; try again."""


class Authenticator(Protocol):
    """Turns tokens into identities."""

    async def identify(self, token: str) -> Identity | None:
        """The bearer, or None for a token that is unknown, expired or revoked. Raises IdentityUnavailable."""


class TokenAuthenticator:
    """A fixed table of tokens: the embedded pool, and tests."""

    def __init__(self, identities: Mapping[str, Identity]) -> None:
        self._identities = dict(identities)

    async def identify(self, token: str) -> Identity | None:
        found = None
        for known, identity in self._identities.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                found = identity
        return found


class HubAuthenticator:
    """Asks JupyterHub (``GET user``) and remembers the answer for CACHE_SECONDS.

    https://jupyterhub.readthedocs.io/en/stable/reference/rest-api.html
    """

    def __init__(self, api_url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = api_url.rstrip("/") + "/user"
        self._clock = clock
        self._cache: dict[str, tuple[float, Identity | None]] = {}

    async def identify(self, token: str) -> Identity | None:
        now = self._clock()
        cached = self._cache.get(token)
        if cached is not None and now < cached[0]:
            return cached[1]
        identity = await self._ask(token)
        if len(self._cache) >= CACHE_ENTRIES_MAX:
            self._cache.clear()
        self._cache[token] = (now + CACHE_SECONDS, identity)
        return identity

    async def _ask(self, token: str) -> Identity | None:
        request = HTTPRequest(self._url, headers={"Authorization": f"token {token}"}, connect_timeout=5, request_timeout=10)
        try:
            response = await AsyncHTTPClient().fetch(request)
        except HTTPClientError as error:
            if error.code in (401, 403):
                return None
            raise IdentityUnavailable(f"JupyterHub answered {error.code} when asked about a token; try again") from None
        except OSError as error:
            raise IdentityUnavailable(f"JupyterHub cannot be reached ({error}); try again") from None
        try:
            return identity_of(json.loads(response.body))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise IdentityUnavailable("JupyterHub's answer about a token cannot be understood; is its address right?") from None


def identity_of(model: Mapping[str, Any]) -> Identity:
    """The identity in JupyterHub's user or service model. The tenant is the user's first group that names one."""
    scopes = frozenset(scope.split("!", 1)[0] for scope in model.get("scopes", ()) if scope.startswith("custom:forebay:"))
    kind: Literal["user", "service"] = "service" if model.get("kind") == "service" else "user"
    groups = sorted(model.get("groups") or ())
    return Identity(name=model["name"], kind=kind, tenant=groups[0] if groups else None, scopes=scopes)
