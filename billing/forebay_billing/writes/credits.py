"""What changes credits: grants, refunds of prepaid ones, expiry. Every function runs in the writer's transaction.

A grant is credited to the tenant's account ``credit:TENANT``, and debited to ``credits:paid`` or ``credits:promotional``. Invoices use
it up.
"""

from __future__ import annotations

from typing import Any

from forebay_service.errors import Fault
from sqlalchemy import Connection, Table, func, insert, select

from forebay_billing.errors import InvalidCredit, NotNow
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.postings import balanced, credit_of, credit_source, transfer
from forebay_billing.model.money import decimals_of, grains_of_minor, minor_text
from forebay_billing.model.months import Month
from forebay_billing.model.types import Kind
from forebay_billing.reads.invoices import Credit, credit, credits_of, open_months
from forebay_billing.rules.credits import Balance, Grant, GrantKind, expired
from forebay_billing.tables.invoices import credit_grants, credit_moves
from forebay_billing.writes import payment_orders, payment_outbox

AMOUNT_MINOR_MAX = 10**15
PRIORITY_MAX = 100
TIME_NS_MAX = 2**63 - 1


def grant(
    books: Books, tenant: str, kind: GrantKind, name: str, currency: str, amount_minor: int, priority: int, effective_at_ns: int | None,
    expires_at_ns: int | None, who: str, now_ns: int, exported: bool,
) -> Credit:  # fmt: skip
    """Gives a tenant credit from ``effective_at_ns`` (None: from the month's start) until before ``expires_at_ns``.

    Raises InvalidCredit, InvalidPrice for an unknown currency.
    """
    decimals_of(currency)
    effective = Month.of(now_ns).start_ns if effective_at_ns is None else effective_at_ns
    if not 0 < amount_minor <= AMOUNT_MINOR_MAX:
        sentence = f"amount_minor: a credit is from 1 to {AMOUNT_MINOR_MAX} minor units; {amount_minor} was given."
        raise InvalidCredit(sentence, Fault("amount_range", "amount_minor", {"given": amount_minor, "most": AMOUNT_MINOR_MAX}))
    if not 0 <= priority <= PRIORITY_MAX:
        sentence = f"priority: from 0 (used first) to {PRIORITY_MAX}; {priority} was given."
        raise InvalidCredit(sentence, Fault("priority_range", "priority", {"given": priority, "most": PRIORITY_MAX}))
    if expires_at_ns is not None and not max(now_ns, effective) < expires_at_ns <= TIME_NS_MAX:
        raise InvalidCredit("expires_at_ns: a credit expires after now, and after it begins.", Fault("expires_early", "expires_at_ns"))
    if not 0 <= effective <= TIME_NS_MAX:
        raise InvalidCredit(f"effective_at_ns: {effective} is no time.")
    amount_grains = grains_of_minor(amount_minor, currency)
    transaction_id = books.append(
        balanced("credit", transfer(credit_source(kind), credit_of(tenant), Month.of(now_ns), currency, amount_grains)), now_ns
    )
    made = Grant(next_id(books.connection, credit_grants), kind, currency, amount_minor, priority, effective, expires_at_ns)
    return _write(books, made, tenant, name, who, now_ns, transaction_id, exported)


def carry(
    books: Books, tenant: str, currency: str, amount_minor: int, invoice: str, transaction_id: int, now_ns: int, exported: bool
) -> None:
    """Turns what an invoice owes to its tenant into prepaid credit; the invoice's own transaction posts it."""
    made = Grant(next_id(books.connection, credit_grants), "prepaid", currency, amount_minor, 0, 0, None)
    _write(books, made, tenant, f"Carried over from {invoice}", "billing", now_ns, transaction_id, exported)


def refund(books: Books, grant_id: int, amount_minor: int | None, reason: str, who: str, now_ns: int) -> Credit:
    """Gives what is left of a prepaid credit back as money, or a part of it. Raises UnknownInvoice, InvalidCredit, NotNow."""
    found = credit(books.connection, grant_id, None)
    if found.grant.kind != "prepaid":
        raise NotNow(f"The credit {grant_id} is promotional: nobody paid for it, so nothing can be refunded.")
    if found.grant.expires_at_ns is not None and found.grant.expires_at_ns <= now_ns:
        raise NotNow(f"The credit {grant_id} has expired.")
    if open_months(books.connection, found.tenant, Month.of(now_ns).previous):
        raise NotNow(f"A month of the tenant {found.tenant} is over and not finalised; it may need the credit. Finalise it first.")
    amount = found.left_minor if amount_minor is None else amount_minor
    if not 0 < amount <= found.left_minor:
        raise InvalidCredit(f"amount_minor: of the credit {grant_id}, {minor_text(found.left_minor, found.grant.currency)} is left.")
    _spend(books, found, "refund", amount, reason, who, now_ns)
    after = {"amount_minor": amount, "reason": reason}
    books.append_audit(now_ns, who, "credit.refund", f"{found.tenant}/{grant_id}", {"left_minor": found.left_minor}, after)
    return credit(books.connection, grant_id, None)


def expire(books: Books, until_ns: int, now_ns: int) -> int:
    """Writes off what is left of the credits that expired by ``until_ns`` and that no open month can use; gives their number."""
    credits = {found.grant.id: found for found in credits_of(books.connection, None)}
    gone = expired((Balance(found.grant, found.left_minor) for found in credits.values()), until_ns)
    over = [credits[balance.grant.id] for balance in gone]
    over = [found for found in over if not open_months(books.connection, found.tenant, Month.of(until_ns - 1))]
    for found in over:
        _spend(books, found, "expire", found.left_minor, "expired", "billing", now_ns)
    return len(over)


def _write(
    books: Books, made: Grant, tenant: str, name: str, who: str, now_ns: int, transaction_id: int, exported: bool
) -> Credit:
    row = {
        "id": made.id, "tenant": tenant, "kind": made.kind, "name": name, "currency": made.currency, "amount_minor": made.amount_minor,
        "priority": made.priority, "effective_at_ns": made.effective_at_ns, "expires_at_ns": made.expires_at_ns, "granted_at_ns": now_ns,
        "granted_by": who, "transaction_id": transaction_id,
    }  # fmt: skip
    books.connection.execute(insert(credit_grants).values(**row))
    books.append_audit(now_ns, who, "credit.grant", f"{tenant}/{made.id}", None, row)
    found = credit(books.connection, made.id, tenant)
    if exported:
        payment_outbox.put(books.connection, order_of(found), now_ns)
    return found


def _spend(books: Books, found: Credit, kind: Kind, amount_minor: int, reason: str, who: str, now_ns: int) -> None:
    given, amount_grains = found.grant, grains_of_minor(amount_minor, found.grant.currency)
    back = transfer(credit_of(found.tenant), credit_source(given.kind), Month.of(now_ns), given.currency, amount_grains)
    row: dict[str, Any] = {
        "id": next_id(books.connection, credit_moves), "grant_id": given.id, "kind": kind, "amount_minor": amount_minor, "invoice_id": None,
        "reason": reason, "moved_at_ns": now_ns, "moved_by": who, "transaction_id": books.append(balanced(kind, back), now_ns),
    }  # fmt: skip
    books.connection.execute(insert(credit_moves).values(**row))


def order_of(found: Credit) -> payment_orders.CreditGrant:
    """The grant as payments send it."""
    given = found.grant
    return payment_orders.CreditGrant(
        f"CR-{given.id:06d}", found.tenant, found.name, "paid" if given.kind == "prepaid" else "promotional", given.currency,
        given.amount_minor, given.priority, given.effective_at_ns, given.expires_at_ns,
    )  # fmt: skip


def next_id(connection: Connection, table: Table) -> int:
    """Ids grow by one, as there is one writer."""
    largest: int | None = connection.execute(select(func.max(table.c.id))).scalar_one()
    return 1 if largest is None else largest + 1
