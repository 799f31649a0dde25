"""Finds tenants, users and invoices by words of their names: every word must occur. Case counts for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, func, select

from forebay_billing.reads.invoices import ListedInvoice, count_found, listed
from forebay_billing.reads.rollups import MONTHS
from forebay_billing.tables.rollups import people

_people = people.c


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
    words, since = search.casefold().split(), _people.start_ns >= MONTHS.start_of(since_ns)
    tenants = select(_people.tenant).where(since, *_occur(words, _people.tenant)).distinct()
    users = select(_people.tenant, _people.user_name).where(since, *_occur(words, _people.user_name + " " + _people.tenant))
    found_tenants = _first(connection, tenants, ("tenant",), limit)
    found_users = _first(connection, users, ("user_name", "tenant"), limit)
    return Hits(
        [row.tenant for row in found_tenants], found_tenants[0].among if found_tenants else 0,
        [(row.tenant, row.user_name) for row in found_users], found_users[0].among if found_users else 0,
        listed(connection, None, search=search, limit=limit), count_found(connection, search),
    )  # fmt: skip


def _first(connection: Connection, found: Select[Any], order: Sequence[str], limit: int) -> Sequence[Row[Any]]:
    """The first rows in an order, each with how many there are."""
    rows = found.subquery()
    query = select(rows, func.count().over().label("among")).order_by(*(rows.c[name] for name in order)).limit(limit)
    return connection.execute(query).all()


def _occur(words: Sequence[str], text: ColumnElement[str]) -> list[ColumnElement[bool]]:
    return [func.lower(text).contains(word, autoescape=True) for word in words]
