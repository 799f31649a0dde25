"""What the dashboards ask of JupyterHub beside who somebody is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from urllib.parse import quote

from forebay_service.identity import TENANT_GROUP, billing_role, group_of, owner_role
from pydantic import TypeAdapter

from forebay_dashboards.rows import Group, GroupPage, HubUser
from forebay_dashboards.upstream.client import Upstream

_GROUP = TypeAdapter(Group)
_GROUPS = TypeAdapter(GroupPage)
_USER = TypeAdapter(HubUser)

PAGINATED = {"Accept": "application/jupyterhub-pagination+json"}
"""https://jupyterhub.readthedocs.io/en/stable/reference/rest.html"""
GROUPS_ASKED = 200
GROUPS_MAX = 100_000
TENANTS_SECONDS = 30.0
"""A new tenant is listed after so long at most."""
ASKED_AT_A_TIME = 8


class Hub:
    """JupyterHub's REST API, with the service's own token. Each method raises UpstreamUnavailable and UpstreamRefused."""

    def __init__(self, upstream: Upstream, token: str) -> None:
        self._upstream = upstream
        self._token = token
        self._tenants: tuple[float, frozenset[str]] = (0.0, frozenset())
        self._bound = asyncio.Semaphore(ASKED_AT_A_TIME)

    async def members(self, tenant: str) -> tuple[str, ...]:
        """The people of a tenant, by name. Refused with 404 where there is no such tenant."""
        group = await self._upstream.read(_GROUP, self._token, f"groups/{quote(group_of(tenant), safe='')}")
        return tuple(sorted(group.users))

    async def tenants(self) -> frozenset[str]:
        """The names of all tenants, TENANTS_SECONDS old at most."""
        until, known = self._tenants
        if time.monotonic() < until:
            return known
        names: list[str] = []
        offset: int | None = 0
        while offset is not None and len(names) < GROUPS_MAX:
            page = await self._upstream.read(_GROUPS, self._token, "groups", {"offset": offset, "limit": GROUPS_ASKED}, PAGINATED)
            names += (group.name for group in page.items)
            offset = None if page.place.next is None else page.place.next.offset
        found = frozenset(name.removeprefix(TENANT_GROUP) for name in names if name.startswith(TENANT_GROUP))
        self._tenants = (time.monotonic() + TENANTS_SECONDS, found)
        return found

    async def roles(self, tenant: str, people: Iterable[str]) -> dict[str, str]:
        """What each of the people is in the tenant: ``owner``, ``billing`` or ``member``."""
        names = list(people)
        return dict(zip(names, await asyncio.gather(*(self._role(tenant, name) for name in names)), strict=True))

    async def _role(self, tenant: str, name: str) -> str:
        async with self._bound:
            user = await self._upstream.read(_USER, self._token, f"users/{quote(name, safe='')}")
        if owner_role(tenant) in user.roles:
            return "owner"
        return "billing" if billing_role(tenant) in user.roles else "member"
