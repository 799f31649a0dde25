"""Who may see and do what: the only place that decides it. Each condition stands on its own line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from forebay_service.identity import OPERATE, SERVICE, Identity
from forebay_service.languages import Text

from forebay_dashboards.errors import AccessRefused

View = Literal["usage", "tenant", "operator"]
"""A page, and the stream of changes that keeps it live."""


@dataclass(frozen=True)
class Owner:
    """Whose fact something is. A device belongs to nobody, so only operators see it."""

    tenant: str | None
    user: str | None


def may_open(view: View, visitor: Identity) -> bool:
    """Whether the page is the visitor's to open; the navigation shows exactly these."""
    if visitor.kind != "user":
        return False
    if view == "usage":
        return True
    if view == "tenant":
        return visitor.sees_tenant
    return visitor.may(OPERATE)


def may_see(view: View, visitor: Identity, owner: Owner) -> bool:
    """Whether a fact of ``owner`` belongs on this page of the visitor."""
    if not may_open(view, visitor):
        return False
    if view == "operator":
        return True
    if visitor.tenant != owner.tenant:
        return False
    if view == "tenant":
        return True
    return visitor.name == owner.user


def may_read_statement(visitor: Identity, tenant: str) -> bool:
    """A statement lists every user of the tenant: its owners, who pays for it, and operators read it."""
    if visitor.may(OPERATE):
        return True
    if not visitor.sees_tenant:
        return False
    return visitor.tenant == tenant


def sees_all(bearer: Identity | None) -> bool:
    """Whether a token is that of an operator or a service, who may read what metrics tell of all tenants."""
    return bearer is not None and (bearer.may(OPERATE) or bearer.may(SERVICE))


def require(view: View, visitor: Identity) -> None:
    """Raises AccessRefused unless the visitor may open the page."""
    if may_open(view, visitor):
        return
    if visitor.kind != "user":
        raise AccessRefused(Text("These pages are for people; a service reads the pool's and billing's own interfaces."))
    if view == "tenant":
        raise AccessRefused(Text("This page is for the administrators of a tenant. Ask your tenant's administrator to be made one."))
    raise AccessRefused(Text("This page is for operators of this installation."))
