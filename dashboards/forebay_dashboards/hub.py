"""What the dashboards ask of JupyterHub beside who somebody is."""

from __future__ import annotations

from urllib.parse import quote

from forebay_hub.identity import group_of
from pydantic import TypeAdapter

from forebay_dashboards.rows import Group
from forebay_dashboards.upstream import Upstream

_GROUP = TypeAdapter(Group)


class Hub:
    """JupyterHub's REST API, with the service's own token. Each method raises UpstreamUnavailable and UpstreamRefused."""

    def __init__(self, upstream: Upstream, token: str) -> None:
        self._upstream = upstream
        self._token = token

    async def members(self, tenant: str) -> tuple[str, ...]:
        """The people of a tenant, by name."""
        group = await self._upstream.read(_GROUP, self._token, f"groups/{quote(group_of(tenant), safe='')}")
        return tuple(sorted(group.users))
