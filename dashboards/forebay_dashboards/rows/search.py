"""What billing answers of a search, as typed rows."""

from __future__ import annotations

from forebay_dashboards.rows.answers import Count, InvoiceRow, Row


class UserFound(Row):
    """A user, and whose they are."""

    tenant: str
    user: str


class SearchHits(Row):
    """What billing found of a search: the first of each kind, and how many there are."""

    tenants: tuple[str, ...]
    tenant_count: Count
    users: tuple[UserFound, ...]
    user_count: Count
    invoices: tuple[InvoiceRow, ...]
    invoice_count: Count
