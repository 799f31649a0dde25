"""Who a token belongs to: the one piece of JupyterHub that pool, billing and dashboards share."""

from __future__ import annotations

import hmac
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

COMPUTE = "custom:forebay:compute"
TENANT = "custom:forebay:tenant"
BILLING = "custom:forebay:billing"
OPERATE = "custom:forebay:operate"
SERVICE = "custom:forebay:service"

OPERATOR_ROLE = "forebay-operator"
"""The role of JupyterHub that operators hold."""
TENANT_GROUP = "tenant-"
"""What the name of a group begins with that stands for a tenant; other groups mean nothing here."""

LOGIN_CHARS_MAX = 128
"""Longest name of a login that pool and billing serve, although JupyterHub keeps longer ones."""
TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
"""Names of tenants, for pool and billing alike: no two of them look the same, and none needs quoting in an address, a role or a table."""

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

    @property
    def sees_tenant(self) -> bool:
        """Whether all of the tenant's usage and bills are the bearer's to see: as its owner, or as who pays for it."""
        return self.tenant is not None and (self.may(TENANT) or self.may(BILLING))


class IdentityUnavailable(Exception):
    """The hub cannot be asked right now who a token belongs to; try again."""


class IdentityRefused(Exception):
    """The bearer is known, and cannot be served; the message says what an operator must mend."""


class SeveralTenants(IdentityRefused):
    """Nobody can say which of these tenants pays."""

    def __init__(self, name: str, tenants: Sequence[str]) -> None:
        super().__init__(f"{name} is in the groups of the tenants {' and '.join(tenants)}; an operator must leave it in one of them.")
        self.name = name
        self.tenants = tuple(tenants)


class UnfitLogin(IdentityRefused):
    """No usage could be written down under this name."""

    def __init__(self, name: str) -> None:
        self.shown = ascii(name[:LOGIN_CHARS_MAX])
        super().__init__(
            f"The login {self.shown} cannot be named in bills; an operator must give it a name of at most {LOGIN_CHARS_MAX} "
            "printable characters."
        )


class UnfitTenant(IdentityRefused):
    """No bill could be written for this name, or it looks like another's."""

    def __init__(self, name: str, tenant: str) -> None:
        self.name = name
        self.shown = ascii(tenant[:LOGIN_CHARS_MAX])
        super().__init__(
            f"{name} is in the group of the tenant {self.shown}; an operator must name it with 1 to 63 letters of ASCII, digits, "
            "'.', '_', '-'."
        )


class Authenticator(Protocol):
    """Turns tokens into identities."""

    async def identify(self, token: str) -> Identity | None:
        """The bearer, or None for a token that is unknown, expired or revoked. Raises IdentityUnavailable, IdentityRefused."""


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


def group_of(tenant: str) -> str:
    """The name of the group that stands for ``tenant``."""
    return TENANT_GROUP + tenant


def owner_role(tenant: str) -> str:
    """The name of the role that the owners of ``tenant`` hold."""
    return f"forebay-owner-{tenant}"


def billing_role(tenant: str) -> str:
    """The name of the role that who pays for ``tenant`` holds."""
    return f"forebay-billing-{tenant}"


def identity_of(model: Mapping[str, Any]) -> Identity:
    """The identity in JupyterHub's user or service model. Raises IdentityRefused for a login that cannot be served.

    A scope that is narrowed to a group counts for the login's own tenant alone: who moved keeps nothing of where it was.
    """
    name = model["name"]
    if not (0 < len(name) <= LOGIN_CHARS_MAX and name.isprintable()):
        raise UnfitLogin(name)
    tenant = tenant_of(name, model.get("groups") or ())
    scopes = frozenset(scope for scope, filters in _ours(model.get("scopes", ())) if _counts(filters, tenant))
    kind: Literal["user", "service"] = "service" if model.get("kind") == "service" else "user"
    return Identity(name=name, kind=kind, tenant=tenant, scopes=scopes)


def tenant_of(name: str, groups: Iterable[str]) -> str | None:
    """The tenant of a login in these groups. Raises IdentityRefused where there are two, or its name is none."""
    tenants = sorted(group.removeprefix(TENANT_GROUP) for group in groups if group.startswith(TENANT_GROUP))
    if len(tenants) > 1:
        raise SeveralTenants(name, tenants)
    if tenants and TENANT_NAME.fullmatch(tenants[0]) is None:
        raise UnfitTenant(name, tenants[0])
    return tenants[0] if tenants else None


def _ours(scopes: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Forebay's scopes, each with its filter, which is empty where it has none."""
    for text in scopes:
        scope, _, narrowed = text.partition("!")
        if scope.startswith("custom:forebay:"):
            yield scope, narrowed


def _counts(narrowed: str, tenant: str | None) -> bool:
    if not narrowed.startswith("group="):
        return True
    return tenant is not None and narrowed == f"group={group_of(tenant)}"
