"""Who belongs to which tenant, and as what, as the hub knows it: what services need to end what a person left behind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from tornado.httpclient import AsyncHTTPClient, HTTPClientError, HTTPRequest

CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 30.0
PACE_SECONDS = 15.0
"""How often services ask: so long at most what somebody left behind goes on."""


@dataclass(frozen=True)
class Membership:
    """What somebody is in a tenant."""

    name: str
    tenant: str
    role: Literal["owner", "billing", "member"]


class PeopleUnknown(Exception):
    """The hub cannot be asked who belongs where; nothing ends for that."""


class People(Protocol):
    """Tells who belongs to which tenant."""

    async def everybody(self) -> Memberships:
        """Raises PeopleUnknown."""


class Memberships:
    """Everybody's place at one moment."""

    def __init__(self, memberships: Iterable[Membership], operators: Iterable[str]) -> None:
        self._roles = {(one.tenant, one.name): one.role for one in memberships}
        self._operators = frozenset(operators)

    def belongs(self, tenant: str, name: str) -> bool:
        """Whether the login belongs to the tenant."""
        return (tenant, name) in self._roles

    def administers(self, tenant: str | None, name: str) -> bool:
        """Whether the login owns the tenant, or pays for it, or operates the installation, which all tenants (None) are for."""
        return name in self._operators or (tenant is not None and self._roles.get((tenant, name)) in ("owner", "billing"))


class HubPeople:
    """Asks the hub, with a service's token."""

    def __init__(self, api_url: str, token: str) -> None:
        self._url = f"{api_url.rstrip('/')}/forebay/people"
        self._headers = {"Authorization": f"token {token}"}

    async def everybody(self) -> Memberships:
        """Raises PeopleUnknown."""
        bounds: dict[str, Any] = {"connect_timeout": CONNECT_SECONDS, "request_timeout": REQUEST_SECONDS}
        try:
            response = await AsyncHTTPClient().fetch(HTTPRequest(self._url, headers=self._headers, **bounds))
            answer = json.loads(response.body)
            people = [Membership(**one) for one in answer["people"]]
            return Memberships(people, answer["operators"])
        except (HTTPClientError, OSError, ValueError, KeyError, TypeError) as error:
            raise PeopleUnknown(f"JupyterHub does not say who belongs to which tenant ({error})") from None
