"""What changes invoices: finalising a month, credit notes, payments, refunds, voids. Every function runs in the writer's transaction.

An invoice's postings stand in its tenant's receivable account under its period and currency: usage at list price is there already, and
finalising adds the rounding, the plan, credits and tax. So the account's balance there is what is still open of the invoice, at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Table, func, insert, select

from forebay_billing.errors import InvalidCredit, LedgerError, NotNow
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.postings import DISCOUNT, PAYMENTS, REVENUE, ROUNDING, TAX, balanced, credit_of, receivable, transfer
from forebay_billing.model.money import grains_of_minor, halves, minor_text
from forebay_billing.model.months import Month
from forebay_billing.model.types import Kind, Posting
from forebay_billing.reads.invoices import CreditNote, Invoice, Issuer, drafts, invoice, invoices_of, open_months
from forebay_billing.reads.usage import posted
from forebay_billing.rules.invoices import PLAN_KINDS, USAGE_KINDS, Draft, InvoiceLine, tax_part
from forebay_billing.tables.invoices import credit_moves, credit_notes, invoice_lines, invoices, settlements
from forebay_billing.writes import credits as credits_writes
from forebay_billing.writes import payment_orders, payment_outbox

DAY_NS = 86_400 * 10**9


@dataclass(frozen=True)
class Conditions:
    """How invoices are made. ``exported``: each change goes to payments in the transaction that makes it."""

    issuer: Issuer
    series: str = "INV"
    note_series: str = "CN"
    days_until_due: int = 30
    exported: bool = False


def finalise(books: Books, tenant: str, month: Month, conditions: Conditions, who: str, now_ns: int) -> list[Invoice]:
    """Closes the month and gives its invoices, one a currency; the same ones where it was closed before. All of it or nothing.

    A month in which nothing stands stays open, and has none. Raises NotNow, LedgerError.
    """
    connection = books.connection
    if month in books.finalised(tenant):
        return invoices_of(connection, tenant, month)
    if now_ns < month.end_ns:
        raise NotNow(f"{month} is not over; its invoice can be finalised from {month.next}-01 on (UTC).")
    waiting = [earlier for earlier in open_months(connection, tenant, month) if earlier < month]
    if waiting:
        raise NotNow(f"{waiting[0]} of the tenant {tenant} is open; finalise it first.")
    made = [_write(books, one, conditions, now_ns) for one in drafts(connection, tenant, month)]
    if made:
        books.finalise(tenant, month, now_ns)
        books.append_audit(now_ns, who, "invoice.finalise", f"{tenant}/{month}", None, {"invoices": made})
    return [invoice(connection, name, tenant) for name in made]


def _write(books: Books, made: Draft, conditions: Conditions, now_ns: int) -> str:
    """Numbers, posts and hands over one invoice; returns its number."""
    connection, tenant, currency = books.connection, made.profile.tenant, made.currency
    exact = sum(line.cost_grains for line in made.lines if line.kind in USAGE_KINDS)
    stands = posted(connection, receivable(tenant), made.month).get(currency, 0)
    if exact != stands:
        raise LedgerError(
            f"The usage of {tenant} in {made.month} sums to {exact} grains of {currency}, the ledger to {stands}; "
            "the month stays open until an operator has found the difference."
        )
    transaction_id = books.append(balanced("adjustment", _postings(made)), now_ns)
    invoice_id, number, name = _next(connection, invoices, conditions.series)
    connection.execute(
        insert(invoices).values(
            id=invoice_id, series=conditions.series, number=number, name=name, tenant=tenant, period=str(made.month), currency=currency,
            issued_at_ns=now_ns, due_at_ns=now_ns + conditions.days_until_due * DAY_NS, net_minor=made.net_minor,
            credit_minor=made.credit_minor, tax_minor=made.tax_minor, total_minor=made.total_minor,
            profile=json.dumps(asdict(made.profile), sort_keys=True), issuer=json.dumps(asdict(conditions.issuer), sort_keys=True),
            transaction_id=transaction_id,
        )
    )  # fmt: skip
    prices = books.prices()
    rows = [_line_row(invoice_id, position, line, prices) for position, line in enumerate(made.lines)]
    connection.execute(insert(invoice_lines), rows)
    for line in made.lines:
        if line.grant_id is not None:
            _use(connection, line, invoice_id, name, transaction_id, now_ns)
        if line.kind == "carried":
            credits_writes.carry(books, tenant, currency, line.amount_minor, name, transaction_id, now_ns, conditions.exported)
    if conditions.exported:
        payment_outbox.put(connection, order_of(invoice(connection, name, tenant)), now_ns)
    return name


def _postings(made: Draft) -> Iterator[Posting]:
    """What turns the usage at list price, which was posted as it came, into what the invoice asks for."""
    tenant, period, currency = made.profile.tenant, made.month, made.currency
    against = {"tax": TAX, "promotional": credit_of(tenant), "prepaid": credit_of(tenant), "carried": credit_of(tenant)}
    for line in made.lines:
        amount_grains = grains_of_minor(line.amount_minor, currency)
        if line.kind in USAGE_KINDS:
            yield from transfer(receivable(tenant), ROUNDING, period, currency, amount_grains - line.cost_grains)
        elif line.kind in PLAN_KINDS:
            yield from transfer(receivable(tenant), REVENUE if line.kind == "commitment" else DISCOUNT, period, currency, amount_grains)
        else:
            yield from transfer(receivable(tenant), against[line.kind], period, currency, amount_grains)


def _line_row(invoice_id: int, position: int, line: InvoiceLine, prices: Any) -> dict[str, Any]:
    milli, grains = halves(line.cost_grains)
    total = line.usage
    seconds, nanoseconds = (None, None) if total is None else divmod(total.duration_ns, 10**9)
    return {
        "invoice_id": invoice_id,
        "position": position,
        "key": line.key,
        "kind": line.kind,
        "label": line.label,
        "milli": milli,
        "grains": grains,
        "amount_minor": line.amount_minor,
        "started_at_ns": line.started_at_ns,
        "ended_at_ns": line.ended_at_ns,
        "grant_id": line.grant_id,
        "user_name": None if total is None else total.user,
        "price_id": None if total is None else prices[total.price],
        "surcharge_nano_per_hour": None if total is None else total.surcharge_nano_per_hour,
        "late": None if total is None else total.late,
        "leases": None if total is None else total.leases,
        "seconds": seconds,
        "nanoseconds": nanoseconds,
    }


def _use(connection: Connection, line: InvoiceLine, invoice_id: int, name: str, transaction_id: int, now_ns: int) -> None:
    values = {"grant_id": line.grant_id, "kind": "use", "amount_minor": -line.amount_minor, "invoice_id": invoice_id, "reason": name}
    row = values | {"moved_at_ns": now_ns, "moved_by": "billing", "transaction_id": transaction_id}
    connection.execute(insert(credit_moves).values(id=credits_writes.next_id(connection, credit_moves), **row))


def _next(connection: Connection, table: Table, series: str) -> tuple[int, int, str]:
    """Id, number and name of the next row. There is one writer, and a row that is taken back gives its number back."""
    largest = connection.execute(select(func.max(table.c.number)).where(table.c.series == series)).scalar_one()
    number = 1 if largest is None else largest + 1
    return credits_writes.next_id(connection, table), number, f"{series}-{number:06d}"


def take_back(books: Books, name: str, amount_minor: int, reason: str, conditions: Conditions, who: str, now_ns: int) -> CreditNote:
    """A credit note against an invoice: less is asked for, or what was paid is owed to the tenant.

    An invoice has at most as much taken back as it asked for; what credits had paid of it is given back as a new credit. The note has
    the tax of as much of the supply, whoever paid for it. Raises UnknownInvoice, InvalidCredit, NotNow.
    """
    connection = books.connection
    about = invoice(connection, name, None)
    if about.state == "void":
        raise NotNow(f"The invoice {name} is void: nothing of it is asked for.")
    rest = about.draft.total_minor - about.credited_minor
    if not 0 < amount_minor <= rest:
        raise InvalidCredit(f"amount_minor: of {name}, {minor_text(rest, about.draft.currency)} can be taken back at most.")
    tax = _tax_of(about, amount_minor)
    transaction_id = _reverse(books, "credit", about, amount_minor, tax, now_ns)
    note_id, number, note_name = _next(connection, credit_notes, conditions.note_series)
    connection.execute(
        insert(credit_notes).values(
            id=note_id, series=conditions.note_series, number=number, name=note_name, invoice_id=about.id, amount_minor=amount_minor,
            tax_minor=tax, reason=reason, issued_at_ns=now_ns, issued_by=who, transaction_id=transaction_id,
        )
    )  # fmt: skip
    after = {"number": note_name, "amount_minor": amount_minor, "reason": reason}
    books.append_audit(now_ns, who, "invoice.credit_note", name, None, after)
    note = CreditNote(note_name, amount_minor, tax, reason, now_ns)
    if conditions.exported:
        payment_outbox.put(connection, note_order(about, note), now_ns)
    return note


def _tax_of(about: Invoice, amount_minor: int) -> int:
    """The tax in what is taken back now. All that was taken back so far is rounded together with it, so no coin of tax is left over."""
    before_minor = about.credited_minor
    return tax_part(before_minor + amount_minor, about.draft) - tax_part(before_minor, about.draft)


def _reverse(books: Books, kind: Kind, about: Invoice, amount_minor: int, tax_minor: int, now_ns: int) -> int:
    made = about.draft
    account = receivable(about.tenant)
    net_grains, tax_grains = grains_of_minor(amount_minor - tax_minor, made.currency), grains_of_minor(tax_minor, made.currency)
    parts = ((REVENUE, net_grains), (TAX, tax_grains))
    back = [one for source, grains in parts for one in transfer(source, account, made.month, made.currency, grains)]
    return books.append(balanced(kind, back), now_ns)


def pay(
    books: Books, name: str, amount_minor: int, method: str, reference: str, who: str, now_ns: int, noted_since: bool = False
) -> Invoice:
    """Money came in for an invoice, at most as much as is open. Raises UnknownInvoice, InvalidCredit.

    With ``noted_since`` it may have been asked for before credit notes took it back: then that much is owed to the tenant.
    """
    about = invoice(books.connection, name, None)
    if not 0 < amount_minor <= about.open_minor + (about.credited_minor if noted_since else 0):
        raise InvalidCredit(f"amount_minor: of {name}, {minor_text(max(0, about.open_minor), about.draft.currency)} is open.")
    return _settle(books, about, "payment", amount_minor, method, reference, who, now_ns)


def refund(books: Books, name: str, amount_minor: int, method: str, reference: str, who: str, now_ns: int) -> Invoice:
    """Money went back that a credit note left owed to the tenant. Raises UnknownInvoice, InvalidCredit."""
    about = invoice(books.connection, name, None)
    if not 0 < amount_minor <= -about.open_minor:
        owed = minor_text(max(0, -about.open_minor), about.draft.currency)
        raise InvalidCredit(f"amount_minor: of {name}, {owed} is owed to the tenant.")
    return _settle(books, about, "refund", amount_minor, method, reference, who, now_ns)


def void(books: Books, name: str, reason: str, who: str, now_ns: int) -> Invoice:
    """What is open of an invoice is no longer asked for. Its number stays. Raises UnknownInvoice, NotNow."""
    about = invoice(books.connection, name, None)
    if about.state != "open":
        raise NotNow(f"The invoice {name} is {about.state}; only an open one can be made void.")
    return _settle(books, about, "void", about.open_minor, "", reason, who, now_ns)


def _settle(books: Books, about: Invoice, kind: Kind, amount_minor: int, method: str, reference: str, who: str, now_ns: int) -> Invoice:
    connection, made, known = books.connection, about.draft, settlements.c
    again = select(known.id).where(known.invoice_id == about.id, known.kind == kind, known.reference == reference)
    if connection.execute(again).first() is not None:
        raise NotNow(f"The {kind} {reference!r:.80} of {about.name} is written down already.")
    account, amount_grains = receivable(about.tenant), grains_of_minor(amount_minor, made.currency)
    if kind == "void":
        tax = _tax_of(about, amount_minor)
        transaction_id = _reverse(books, kind, about, amount_minor, tax, now_ns)
    else:
        accounts = (PAYMENTS, account) if kind == "payment" else (account, PAYMENTS)
        transaction_id = books.append(balanced(kind, transfer(*accounts, made.month, made.currency, amount_grains)), now_ns)
    values = {"invoice_id": about.id, "kind": kind, "amount_minor": amount_minor, "method": method, "reference": reference}
    row = values | {"settled_at_ns": now_ns, "settled_by": who, "transaction_id": transaction_id}
    connection.execute(insert(settlements).values(id=credits_writes.next_id(connection, settlements), **row))
    after = {"amount_minor": amount_minor, "method": method, "reference": reference}
    books.append_audit(now_ns, who, f"invoice.{kind}", about.name, {"open_minor": about.open_minor}, after)
    return invoice(connection, about.name, None)


def order_of(about: Invoice) -> payment_orders.Invoice:
    """The invoice as payments send it."""
    return payment_orders.Invoice(about.name, about.tenant, about.draft.currency, tuple(map(_order_line, about.draft.lines)))


def _order_line(line: InvoiceLine) -> payment_orders.InvoiceLine:
    credits = ("promotional", "prepaid", "carried")
    return payment_orders.InvoiceLine(
        line.key, line.label, line.amount_minor,
        "usage" if line.kind in USAGE_KINDS else "credit" if line.kind in credits else "other", line.started_at_ns, line.ended_at_ns,
    )  # fmt: skip


def note_order(about: Invoice, note: CreditNote) -> payment_orders.CreditNote:
    """A credit note as payments send it."""
    return payment_orders.CreditNote(note.name, about.tenant, about.name, about.draft.currency, note.amount_minor, note.reason)


