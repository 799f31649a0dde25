"""Rows of payments: deliveries to Stripe, what was compared with it, and how invoices stand there."""

from __future__ import annotations

from forebay_dashboards.rows.answers import Count, Row


class OutboxRow(Row):
    """A delivery to Stripe."""

    id: Count
    tenant: str
    kind: str
    subject: str
    state: str
    attempts: Count
    created_at_ns: Count
    note: str | None = None


class OutboxPage(Row):
    """Deliveries to Stripe: how many there are by state, and some of them."""

    counts: dict[str, Count]
    rows: tuple[OutboxRow, ...]


class Difference(Row):
    """Something that is not the same with us and with Stripe; None where one side has nothing."""

    kind: str
    subject: str
    what: str
    ours: str | int | None
    theirs: str | int | None


class Reconciliation(Row):
    """What was compared with Stripe, counted, and where it differs."""

    compared: dict[str, Count]
    differences: tuple[Difference, ...]


class PaymentInvoice(Row):
    """How an invoice stands at Stripe, and where it is paid."""

    number: str
    status: str
    url: str | None = None


class Portal(Row):
    """Where Stripe keeps a tenant's payment methods and receipts."""

    url: str
