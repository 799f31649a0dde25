"""Whom reports are mailed to, and the mailings that are owed: written when a month is over, delivered after, each settled by its holder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from forebay_service.claims import Claims
from sqlalchemy import Connection, Row, func, insert, select, update

from forebay_billing.errors import TooLarge, UnknownRecipient
from forebay_billing.ledger.books import Books
from forebay_billing.model.months import Month
from forebay_billing.tables.reports import mailings, recipients

CLAIMS = Claims(mailings, claim_seconds=120, note_characters_max=500)
RECIPIENTS_PER_TENANT_MAX = 20
CLAIMED_MAX = 8


@dataclass(frozen=True)
class Recipient:
    """An address that gets a tenant's reports."""

    id: int
    tenant: str
    target: str
    set_at_ns: int
    set_by: str
    kind: ClassVar[str] = "email"
    secret: ClassVar[str | None] = None


@dataclass(frozen=True)
class Mailing:
    """A month's report on its way. ``attempt`` is the token: whoever claims it again has a higher one."""

    recipient: Recipient
    month: Month
    attempt: int
    created_at_ns: int

    @property
    def row(self) -> dict[str, object]:
        """The columns of its primary key."""
        return {"recipient_id": self.recipient.id, "month": str(self.month)}

    @property
    def destination(self) -> Recipient:
        return self.recipient

    @property
    def reader(self) -> str:
        """Whoever has reports sent there."""
        return self.recipient.set_by


@dataclass(frozen=True)
class Latest:
    """How the newest mailing of a recipient stands."""

    month: Month
    state: str
    note: str | None


def recipients_of(connection: Connection, tenant: str | None) -> list[Recipient]:
    """The recipients of a tenant, or of all (None)."""
    query = select(recipients).where(recipients.c.removed_at_ns.is_(None)).order_by(recipients.c.id)
    if tenant is not None:
        query = query.where(recipients.c.tenant == tenant)
    return [_recipient_of(row) for row in connection.execute(query)]


def latest_of(connection: Connection, recipient_id: int) -> Latest | None:
    """None before the first month was over."""
    query = select(mailings).where(mailings.c.recipient_id == recipient_id).order_by(mailings.c.month.desc()).limit(1)
    row = connection.execute(query).one_or_none()
    return None if row is None else Latest(Month.parse(row.month), row.state, row.note)


def add_recipient(books: Books, tenant: str, target: str, who: str, now_ns: int) -> Recipient:
    """A new one, whose first report is that of the present month. Raises TooLarge."""
    connection = books.connection
    if len(recipients_of(connection, tenant)) >= RECIPIENTS_PER_TENANT_MAX:
        raise TooLarge(f"There are {RECIPIENTS_PER_TENANT_MAX} recipients already; remove one first.")
    largest: int | None = connection.execute(select(func.max(recipients.c.id))).scalar_one()
    added = Recipient((largest or 0) + 1, tenant, target, now_ns, who)
    connection.execute(insert(recipients).values(vars(added)))
    books.append_audit(now_ns, who, "reports.recipient.add", f"{tenant}#{added.id}", None, {"target": target})
    return added


def remove_recipient(books: Books, id: int, tenant: str | None, who: str, now_ns: int) -> Recipient:
    """The recipient gets no more reports; ``tenant`` None removes anybody's. Raises UnknownRecipient."""
    row = books.connection.execute(select(recipients).where(recipients.c.id == id, recipients.c.removed_at_ns.is_(None))).one_or_none()
    if row is None or tenant not in (None, row.tenant):
        raise UnknownRecipient(f"There is no recipient {id}; list them with GET api/reports/recipients.")
    books.connection.execute(update(recipients).where(recipients.c.id == id).values(removed_at_ns=now_ns))
    CLAIMS.give_up_all(books.connection, mailings.c.recipient_id == id, now_ns, "the recipient was removed")
    found = _recipient_of(row)
    books.append_audit(now_ns, who, "reports.recipient.remove", f"{found.tenant}#{id}", {"target": found.target}, {"removed": True})
    return found


def owed(connection: Connection, last: Month) -> list[Recipient]:
    """The recipients without a mailing of the month ``last`` who were there before it ended."""
    mailed = select(mailings.c.recipient_id).where(mailings.c.recipient_id == recipients.c.id, mailings.c.month == str(last)).exists()
    query = select(recipients).where(recipients.c.removed_at_ns.is_(None), recipients.c.set_at_ns < last.end_ns, ~mailed)
    return [_recipient_of(row) for row in connection.execute(query)]


def write(books: Books, last: Month, now_ns: int) -> int:
    """Writes the mailings of ``last`` that are still missing; returns how many."""
    fresh = owed(books.connection, last)
    for recipient in fresh:
        row = {"recipient_id": recipient.id, "month": str(last), "state": "waiting", "attempts": 0}
        books.connection.execute(insert(mailings).values(**row, created_at_ns=now_ns, next_at_ns=now_ns))
    return len(fresh)


def claim(connection: Connection, now_ns: int) -> list[Mailing]:
    """Mailings that are due, oldest first; each is the caller's for ``CLAIMS.claim_ns``."""
    query = (
        select(recipients, mailings.c.month, mailings.c.attempts, mailings.c.created_at_ns)
        .join(mailings, mailings.c.recipient_id == recipients.c.id)
        .where(CLAIMS.due(now_ns))
        .order_by(mailings.c.next_at_ns, recipients.c.id)
        .limit(CLAIMED_MAX)
    )
    claimed = []
    for row in connection.execute(query).all():
        mailing = Mailing(_recipient_of(row), Month.parse(row.month), row.attempts + 1, row.created_at_ns)
        if CLAIMS.claim(connection, mailing, now_ns):
            claimed.append(mailing)
    return claimed


def _recipient_of(row: Row[Any]) -> Recipient:
    return Recipient(row.id, row.tenant, row.target, row.set_at_ns, row.set_by)
