"""What the dashboards ask of JupyterHub beside who somebody is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from forebay_service.people.names import TENANT_GROUP
from pydantic import TypeAdapter

from forebay_dashboards.rows.hub import GroupPage, Invitation, Invitations, MadeInvitation, Member, Members
from forebay_dashboards.rows.pool import AuditPage
from forebay_dashboards.upstream.client import Query, Upstream

_GROUPS = TypeAdapter(GroupPage)
_MEMBERS = TypeAdapter(Members)
_INVITATIONS = TypeAdapter(Invitations)
_MADE = TypeAdapter(MadeInvitation)
_AUDIT = TypeAdapter(AuditPage)
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)

PAGINATED = {"Accept": "application/jupyterhub-pagination+json"}
"""https://jupyterhub.readthedocs.io/en/stable/reference/rest.html"""
GROUPS_ASKED = 200
GROUPS_MAX = 100_000
TENANTS_SECONDS = 30.0
"""A new tenant is listed after so long at most."""


class Hub:
    """JupyterHub's REST API, and what ``forebay_hub`` adds to it. Each method raises UpstreamUnavailable and UpstreamRefused."""

    def __init__(self, upstream: Upstream, token: str) -> None:
        self._upstream = upstream
        self._token = token
        """The service's own; all else is asked with the visitor's."""
        self._tenants: tuple[float, frozenset[str]] = (0.0, frozenset())

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

    async def members(self, token: str, tenant: str) -> tuple[Member, ...]:
        """The people of a tenant, by name. Refused with 404 where there is no such tenant."""
        return (await self._upstream.read(_MEMBERS, token, f"{_of(tenant)}/members")).members

    async def set_role(self, token: str, tenant: str, name: str, role: str) -> None:
        """What somebody of the tenant is in it from now on."""
        await self._upstream.write(_ANYTHING, token, f"{_of(tenant)}/members/{quote(name, safe='')}", {"role": role})

    async def remove_member(self, token: str, tenant: str, name: str) -> None:
        """Somebody belongs to it no more; their servers stop."""
        await self._upstream.delete(token, f"{_of(tenant)}/members/{quote(name, safe='')}")

    async def invitations(self, token: str, tenant: str) -> tuple[Invitation, ...]:
        """Those that hold, the newest first."""
        return (await self._upstream.read(_INVITATIONS, token, f"{_of(tenant)}/invitations")).invitations

    async def invite(self, token: str, tenant: str, body: Mapping[str, Any]) -> MadeInvitation:
        """Another one."""
        return await self._upstream.write(_MADE, token, f"{_of(tenant)}/invitations", body, "POST")

    async def revoke_invitation(self, token: str, tenant: str, number: int) -> None:
        """Its link is of no more use."""
        await self._upstream.delete(token, f"{_of(tenant)}/invitations/{number}")

    async def audit(self, token: str, asked: Query) -> AuditPage:
        """Who changed what of members and invitations, newest first."""
        return await self._upstream.read(_AUDIT, token, "forebay/audit", asked)


def _of(tenant: str) -> str:
    return f"forebay/tenants/{quote(tenant, safe='')}"
