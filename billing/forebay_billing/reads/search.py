"""Finds tenants, users and invoices by words of their names: every word must occur. Case counts for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Select, func, select

from forebay_billing.reads.invoices import ListedInvoice, count_found, listed
from forebay_billing.reads.rollups import MONTHS
from forebay_billing.tables.rollups import months

_months = months.c


@dataclass(frozen=True)
class Hits:
    """The first ones of each kind, and how many there are: tenants, (tenant, user), and invoices, the latest first."""

    tenants: list[str]
    tenant_count: int
    users: list[tuple[str, str]]
    user_count: int
    invoices: list[ListedInvoice]
    invoice_count: int


def hits(connection: Connection, search: str, since_ns: int, limit: int) -> Hits:
    """People are found who used something in the month of ``since_ns`` or later, as far as usage is summed up by month."""
    words, since = search.casefold().split(), _months.start_ns >= MONTHS.start_of(since_ns)
    tenants = select(_months.tenant).where(since, *_occur(words, _months.tenant)).distinct()
    users = select(_months.tenant, _months.user_name).where(since, *_occur(words, _months.user_name + " " + _months.tenant)).distinct()
    found_tenants = connection.execute(tenants.order_by(_months.tenant).limit(limit)).scalars()
    found_users = connection.execute(users.order_by(_months.user_name, _months.tenant).limit(limit))
    return Hits(
        list(found_tenants), _count(connection, tenants),
        [(row.tenant, row.user_name) for row in found_users], _count(connection, users),
        listed(connection, None, search=search, limit=limit), count_found(connection, search),
    )  # fmt: skip


def _occur(words: Sequence[str], text: ColumnElement[str]) -> list[ColumnElement[bool]]:
    return [func.lower(text).contains(word, autoescape=True) for word in words]


def _count(connection: Connection, found: Select[tuple[str]] | Select[tuple[str, str]]) -> int:
    return int(connection.execute(select(func.count()).select_from(found.subquery())).scalar_one())
