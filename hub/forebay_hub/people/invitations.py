"""Invitations: a link with which one person joins one tenant in one role, once, until it expires or is revoked.

The token in the link has 256 bits of chance, and only its SHA-256 is kept: who reads the database can join nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from forebay_service.errors import Conflict, Fault, NotFound, TooLarge
from forebay_service.languages import Text
from sqlalchemy import Connection, func, insert, select, update

from forebay_hub.people.tables import INVITATIONS, append_audit
from forebay_hub.tenants import Role

TOKEN_BYTES = 32
DAY_NS = 86_400 * 10**9
HOUR_NS = 3600 * 10**9
DAYS_MAX = 30
OPEN_MAX = 50
"""Of a tenant, at a time."""
HOURLY_MAX = 30
"""Of a tenant, made within an hour; each may be a mail."""
DAILY_MAX = 100
"""The same, within a day."""


@dataclass(frozen=True)
class Invitation:
    """One that may still be taken."""

    id: int
    tenant: str
    role: Role
    address: str | None
    made_at_ns: int
    made_by: str
    expires_at_ns: int

    @property
    def subject(self) -> str:
        """What the audit calls it."""
        return f"{self.tenant}/#{self.id}"


def make(
    connection: Connection, tenant: str, role: Role, address: str | None, days: int, who: str, now_ns: int
) -> tuple[Invitation, str]:
    """A new one, and its token, which is told here alone. Raises TooLarge where there are too many."""
    if len(open_of(connection, tenant, now_ns)) >= OPEN_MAX:
        raise TooLarge(
            f"The tenant {tenant} has {OPEN_MAX} open invitations; revoke one first.", Fault("invitations_open", values={"most": OPEN_MAX})
        )
    if _made_since(connection, tenant, now_ns - HOUR_NS) >= HOURLY_MAX:
        raise TooLarge(
            f"The tenant {tenant} made {HOURLY_MAX} invitations within an hour; go on in an hour.",
            Fault("invitations_hourly", values={"most": HOURLY_MAX}),
        )
    if _made_since(connection, tenant, now_ns - DAY_NS) >= DAILY_MAX:
        raise TooLarge(
            f"The tenant {tenant} made {DAILY_MAX} invitations within a day; go on tomorrow.",
            Fault("invitations_daily", values={"most": DAILY_MAX}),
        )
    token = secrets.token_urlsafe(TOKEN_BYTES)
    facts = {"tenant": tenant, "role": role, "address": address, "made_at_ns": now_ns, "made_by": who}
    facts["expires_at_ns"] = now_ns + days * DAY_NS
    number = connection.execute(insert(INVITATIONS).values(digest=_digest(token), **facts)).inserted_primary_key
    made = Invitation(number[0] if number else 0, **facts)  # type: ignore[arg-type] # the values are those of the fields
    after = {"role": role, "address": address, "expires_at_ns": made.expires_at_ns}
    append_audit(connection, now_ns, who, "invitation.make", made.subject, None, after)
    return made, token


def _made_since(connection: Connection, tenant: str, since_ns: int) -> int:
    query = select(func.count()).where(INVITATIONS.c.tenant == tenant, INVITATIONS.c.made_at_ns > since_ns)
    return int(connection.execute(query).scalar_one())


def open_of(connection: Connection, tenant: str, now_ns: int) -> list[Invitation]:
    """Those of a tenant that may still be taken, the newest first."""
    query = select(INVITATIONS).where(INVITATIONS.c.tenant == tenant, *_open(now_ns)).order_by(INVITATIONS.c.id.desc())
    return [_invitation(row) for row in connection.execute(query)]


def find(connection: Connection, token: str, now_ns: int) -> Invitation:
    """The invitation of a token. Raises NotFound where it may not be taken: which of the reasons holds is for nobody to learn by trying."""
    row = connection.execute(select(INVITATIONS).where(INVITATIONS.c.digest == _digest(token), *_open(now_ns))).one_or_none()
    if row is None:
        raise NotFound(Text("This invitation is not valid: it was used, revoked, or has expired. Ask who invited you for another."))
    return _invitation(row)


def take(connection: Connection, invitation: Invitation, login: str, now_ns: int) -> None:
    """Uses it up. Raises Conflict where somebody else has meanwhile."""
    query = update(INVITATIONS).where(INVITATIONS.c.id == invitation.id, *_open(now_ns))
    if connection.execute(query.values(taken_at_ns=now_ns, taken_by=login)).rowcount != 1:
        raise Conflict(Text("This invitation was used meanwhile. Ask who invited you for another."))
    append_audit(connection, now_ns, login, "invitation.take", invitation.subject, {"made_by": invitation.made_by}, {"taken_by": login})


def revoke(connection: Connection, tenant: str, id: int, who: str, now_ns: int) -> None:
    """Its link is of no more use. Raises NotFound where the tenant has none of this number that is open."""
    query = update(INVITATIONS).where(INVITATIONS.c.id == id, INVITATIONS.c.tenant == tenant, *_open(now_ns))
    if connection.execute(query.values(revoked_at_ns=now_ns)).rowcount != 1:
        raise NotFound(f"The tenant {tenant} has no open invitation {id}.", Fault("no_invitation"))
    append_audit(connection, now_ns, who, "invitation.revoke", f"{tenant}/#{id}", None, {"removed": True})


def revoke_of(connection: Connection, tenant: str, maker: str, who: str, now_ns: int) -> int:
    """Ends all open invitations to the tenant that somebody made who may invite nobody any more; returns how many."""
    mine = [one.id for one in open_of(connection, tenant, now_ns) if one.made_by == maker]
    for id in mine:
        revoke(connection, tenant, id, who, now_ns)
    return len(mine)


def _open(now_ns: int) -> tuple[Any, ...]:
    of = INVITATIONS.c
    return of.taken_at_ns.is_(None), of.revoked_at_ns.is_(None), of.expires_at_ns > now_ns


def _digest(token: str) -> str:
    return sha256(token.encode()).hexdigest()


def _invitation(row: Any) -> Invitation:
    return Invitation(row.id, row.tenant, row.role, row.address, row.made_at_ns, row.made_by, row.expires_at_ns)
