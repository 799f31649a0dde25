"""Who a token belongs to: the one piece of JupyterHub that pool, billing and dashboards share."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

from forebay_service.languages import Text, as_sent
from forebay_service.people.names import LOGIN_CHARS_MAX, LOGIN_RULE, TENANT_GROUP, TENANT_RULE, is_login, is_tenant

COMPUTE = "custom:forebay:compute"
TENANT = "custom:forebay:tenant"
BILLING = "custom:forebay:billing"
OPERATE = "custom:forebay:operate"
SERVICE = "custom:forebay:service"

OPERATOR_ROLE = "forebay-operator"
"""The role of JupyterHub that operators hold."""
CACHE_SECONDS = 10.0
"""A revoked token keeps working this long at most."""
CACHE_ENTRIES_MAX = 10_000
CONFIRM_SECONDS = 60.0
"""A token that was good is bad once the hub has refused it twice, so long apart. Until then nobody is served, and nothing is ended."""


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


class RefusedOnce(IdentityUnavailable):
    """The hub refused a token that was good, and is asked again before that counts."""

    def __init__(self) -> None:
        super().__init__("JupyterHub refused a token that was good; it is asked again before that counts. Try again in a minute.")


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
            f"The login {self.shown} cannot be named in bills; an operator must give it another name: {LOGIN_RULE}, "
            "and is not called like a service."
        )


class UnfitTenant(IdentityRefused):
    """No bill could be written for this name, or it looks like another's."""

    def __init__(self, name: str, tenant: str) -> None:
        self.name = name
        self.shown = ascii(tenant[:LOGIN_CHARS_MAX])
        super().__init__(
            f"{name} is in the group of the tenant {self.shown}; an operator must name it otherwise: {TENANT_RULE}."
        )


class Authenticator(Protocol):
    """Turns tokens into identities."""

    @property
    def ill(self) -> str | None:
        """What is wrong with whoever knows the tokens, in a sentence; None: nothing."""

    async def identify(self, token: str) -> Identity | None:
        """The bearer, or None for a token that is unknown, expired or revoked. Raises IdentityUnavailable, IdentityRefused."""


class TokenAuthenticator:
    """A fixed table of tokens: the embedded pool, and tests."""

    def __init__(self, identities: Mapping[str, Identity]) -> None:
        self._identities = dict(identities)
        self.ill = None

    async def identify(self, token: str) -> Identity | None:
        found = None
        for known, identity in self._identities.items():
            if hmac.compare_digest(known.encode(), token.encode()):
                found = identity
        return found


class HubAuthenticator:
    """Asks JupyterHub (``GET user``) and remembers the answer for CACHE_SECONDS.

    https://jupyterhub.readthedocs.io/en/stable/reference/rest-api.html

    A hub whose database does not answer refuses good tokens as it refuses bad ones, with 403. So a refusal counts only if the hub still
    knows ``own_token``, the token of the service that asks. A token that was good before must be refused twice, CONFIRM_SECONDS apart.
    """

    def __init__(self, api_url: str, clock: Callable[[], float] = time.monotonic, own_token: str | None = None) -> None:
        self._url = api_url.rstrip("/") + "/user"
        self._own_token = own_token
        self._clock = clock
        self._cache: dict[str, tuple[float, Identity | None]] = {}
        self._good: dict[str, None] = {}
        """Tokens that the hub knew when they were asked about last, in the order in which it came to know them."""
        self._refused: dict[str, float] = {}
        """When a good token was refused first; good again, or bad, it is none of these."""
        self._ill: str | None = None
        self._looked = float("-inf")
        self._look: asyncio.Task[None] | None = None

    @property
    def ill(self) -> str | None:
        """What is wrong with the hub, by a look that is CACHE_SECONDS old at most where this is read again and again; None: nothing."""
        if self._clock() - self._looked >= CACHE_SECONDS and (self._look is None or self._look.done()):
            self._looked = self._clock()
            self._look = asyncio.get_running_loop().create_task(self._look_at_hub())
        return self._ill

    async def identify(self, token: str) -> Identity | None:
        now = self._clock()
        cached = self._cache.get(token)
        if cached is not None and now < cached[0]:
            return cached[1]
        try:
            identity = await self._ask(token)
            if identity is None:
                await self._confirm(token)
        except RefusedOnce:
            raise
        except IdentityUnavailable as error:
            self._ill = str(error)
            raise
        self._ill = None
        self._remember(token, identity)
        return identity

    def _remember(self, token: str, identity: Identity | None) -> None:
        if len(self._cache) >= CACHE_ENTRIES_MAX:
            self._cache.clear()
        self._cache[token] = (self._clock() + CACHE_SECONDS, identity)
        self._refused.pop(token, None)
        self._good.pop(token, None)
        if identity is not None:
            self._good[token] = None
            if len(self._good) > CACHE_ENTRIES_MAX:
                self._good.pop(next(iter(self._good)))

    async def _confirm(self, token: str) -> None:
        """Whether the hub's refusal of the token is to be believed. Raises IdentityUnavailable where it is not, or not yet."""
        await self.check_hub()
        if token in self._good and self._clock() - self._refused.setdefault(token, self._clock()) < CONFIRM_SECONDS:
            raise RefusedOnce()

    async def check_hub(self) -> None:
        """Raises IdentityUnavailable where the hub refuses that too: it cannot read its database, or does not know us."""
        if self._own_token is not None and await self._ask(self._own_token) is None:
            raise IdentityUnavailable(
                "JupyterHub refuses all tokens, this service's own too: its database does not answer, or the service's token is wrong; "
                "try again"
            )

    async def _look_at_hub(self) -> None:
        try:
            await (self.check_hub() if self._own_token is not None else self._ask(""))
        except IdentityUnavailable as error:
            self._ill = str(error)
        else:
            self._ill = None

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
    kind: Literal["user", "service"] = "service" if model.get("kind") == "service" else "user"
    if not (is_login(name) if kind == "user" else 0 < len(name) <= LOGIN_CHARS_MAX and name.isprintable()):
        raise UnfitLogin(name)
    tenant = tenant_of(name, model.get("groups") or ())
    scopes = frozenset(scope for scope, filters in _ours(model.get("scopes", ())) if _counts(filters, tenant))
    return Identity(name=name, kind=kind, tenant=tenant, scopes=scopes)


def tenant_of(name: str, groups: Iterable[str]) -> str | None:
    """The tenant of a login in these groups. Raises IdentityRefused where there are two, or its name is none."""
    tenants = sorted(group.removeprefix(TENANT_GROUP) for group in groups if group.startswith(TENANT_GROUP))
    if len(tenants) > 1:
        raise SeveralTenants(name, tenants)
    if tenants and not is_tenant(tenants[0]):
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


def reason_of(refused: IdentityRefused) -> Text:
    """Why it cannot be served, and who can mend it."""
    if isinstance(refused, SeveralTenants):
        return Text(
            "%(name)s is in the groups of several tenants (%(tenants)s); an operator must leave it in one of them.",
            name=refused.name,
            tenants=", ".join(refused.tenants),
        )
    if isinstance(refused, UnfitLogin):
        return Text(
            "The login %(name)s cannot be named in bills; an operator must give it a name of small letters of ASCII, digits, '.', '_', "
            "'-', '+' and '@', at most %(most)s of them, that is no service's.",
            name=refused.shown,
            most=LOGIN_CHARS_MAX,
        )
    if isinstance(refused, UnfitTenant):
        return Text(
            "%(name)s is in the group of the tenant %(tenant)s; an operator must name it with at most 63 small letters of ASCII, digits "
            "and '-', not beginning with 'tenant-', and not as a service.",
            name=refused.name,
            tenant=refused.shown,
        )
    return as_sent(str(refused))
