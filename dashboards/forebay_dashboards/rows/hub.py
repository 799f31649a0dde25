"""What JupyterHub, and what ``forebay_hub`` adds to it, answer: tenants, their people, invitations."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from forebay_dashboards.rows.bases import Count, Row


class Group(Row):
    """A group of JupyterHub."""

    name: str = ""


class GroupsNext(Row):
    """Where the next page of groups begins."""

    offset: Count
    limit: Count


class GroupsPlace(Row):
    """Which page of groups it is."""

    next: GroupsNext | None = None


class GroupPage(Row):
    """A page of JupyterHub's groups."""

    items: tuple[Group, ...]
    place: GroupsPlace = Field(alias="_pagination")


class Member(Row):
    """Somebody of a tenant, and as what."""

    name: str
    role: Literal["owner", "billing", "member"]


class Members(Row):
    """Everybody of a tenant, by name."""

    members: tuple[Member, ...]


class Invitation(Row):
    """A link with which one person may join a tenant, while it holds."""

    id: Count
    role: Literal["owner", "billing", "member"]
    address: str | None
    made_by: str
    expires_at_ns: Count


class Invitations(Row):
    """Those of a tenant that hold, the newest first."""

    invitations: tuple[Invitation, ...]


class MadeInvitation(Invitation):
    """A new one, with the path of its link on the hub, which is told once."""

    path: str
