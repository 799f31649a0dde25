"""Reads usage, charges and statements from the books. Every function runs in one snapshot, and sums as integers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, distinct, func, select, tuple_

from forebay_billing.ledger.access import Scope
from forebay_billing.ledger.books import price_ids, surcharges
from forebay_billing.ledger.postings import credit_of, receivable
from forebay_billing.model.money import cost_grains, whole
from forebay_billing.model.months import Month
from forebay_billing.model.types import Line, PriceVersion, Span, Statement, UsageRecord
from forebay_billing.reads.parked import ParkedRate, parked_rates, parked_totals
from forebay_billing.reads.rated_rows import CELL, KEPT, LEASED, Columns, Where, in_month, pieces
from forebay_billing.rules.holds import held
from forebay_billing.rules.previews import Rated, RatedBytes
from forebay_billing.rules.prices import PriceBook
from forebay_billing.rules.statements import check_against_ledger, line_of, parked_line_of, statement_of
from forebay_billing.tables import schema
from forebay_billing.tables.prepared import execute
from forebay_billing.tables.sums import halved, joined
from forebay_billing.tables.tenants_filter import of_tenants

USAGE_DURATION_NS_MAX = 366 * 86_400 * 10**9
"""Longest usage record that is accepted."""

RATED = ("usage", "reversal")
"""Kinds of transactions that segments explain."""

_usage = schema.usage.c
_segments = schema.segments.c
_reversals = schema.reversals.c


def record_of(row: Row[Any]) -> UsageRecord:
    """The usage record in a row of ``usage``."""
    return UsageRecord(
        source=row.source,
        id=row.record_id,
        tenant=row.tenant,
        user=row.user_name,
        session=row.session,
        lease=row.lease,
        span=Span(row.span_id, row.span_kind, row.span_label, row.span_cell, row.span_cell_id, row.span_first_line),
        flavor=row.flavor,
        device_model=row.device_model,
        devices=row.devices,
        started_at_ns=row.started_at_ns,
        duration_ns=row.duration_ns,
        close_reason=row.close_reason,
        share_milli=row.share_milli,
        parked_bytes=row.parked_bytes,
        energy_mj=row.energy_mj,
    )


@dataclass(frozen=True)
class Rate:
    """The part of a usage record that was rated at one price and surcharge, in one period."""

    price: PriceVersion
    surcharge_nano_per_hour: int
    period: Month
    late: bool
    duration_ns: int

    @property
    def cost_grains(self) -> int:
        return cost_grains(self.duration_ns, self.price.price_nano_per_hour + self.surcharge_nano_per_hour)


@dataclass(frozen=True)
class Charge:
    """A usage record with what it was rated at, or ``parked`` if it is of parked bytes; ``corrected_at_ns`` is when it was reversed."""

    usage_id: int
    record: UsageRecord
    rates: tuple[Rate, ...]
    corrected_at_ns: int | None
    parked: tuple[ParkedRate, ...] = ()

    @property
    def cost_grains(self) -> int:
        return sum(rate.cost_grains for rate in self.rates) + sum(rate.cost_grains for rate in self.parked)


@dataclass(frozen=True)
class Page:
    """Charges, newest first, and the position after the last (start, usage id), or None at the end."""

    charges: tuple[Charge, ...]
    next: tuple[int, int] | None


@dataclass(frozen=True)
class Window:
    """Records that started in [since, until), Unix time in nanoseconds, and come from one place; None is open."""

    since_ns: int | None
    until_ns: int | None
    notebook: str | None = None
    """Only those of this label: a notebook's path, or a process's command."""
    cell: int | None = None
    cell_id: str | None = None
    """Only those of one cell; see :data:`forebay_billing.reads.rated_rows.CELL`."""


@dataclass(frozen=True)
class Balance:
    """How a tenant stands in a currency, in grains: what it owes, what is held for open leases, and the credit it has."""

    currency: str
    owed_grains: int
    held_grains: int
    credit_grains: int

    @property
    def available_grains(self) -> int:
        """What is left of the credit once all that is owed and held is paid of it; below zero where there is not enough."""
        return self.credit_grains - self.owed_grains - self.held_grains


def price_book(connection: Connection) -> PriceBook:
    """All prices and surcharges."""
    return PriceBook(price_ids(connection), surcharges(connection))


def usage_page(connection: Connection, scope: Scope, window: Window, limit: int, after: tuple[int, int] | None) -> Page:
    """At most ``limit`` charges, newest first, that come after the position ``after``."""
    rows = execute(connection, _newest, (), scope, window, limit + 1, *(after or ())).all()
    rates = _rates(connection, [row.id for row in rows[:limit]])
    parked_ids = [row.id for row in rows[:limit] if row.parked_bytes is not None]
    parked = parked_rates(connection, parked_ids) if parked_ids else {}
    charges = tuple(
        Charge(row.id, record_of(row), tuple(rates[row.id]), row.corrected_at_ns, tuple(parked.get(row.id, ()))) for row in rows[:limit]
    )
    more = len(rows) > limit
    return Page(charges, (charges[-1].record.started_at_ns, charges[-1].usage_id) if more else None)


def _newest(scope: Scope, window: Window, limit: int, *after: int) -> Select[Any]:
    query = (
        select(schema.usage, schema.transactions.c.posted_at_ns.label("corrected_at_ns"))
        .outerjoin(schema.reversals, _reversals.usage_id == _usage.id)
        .outerjoin(schema.transactions, schema.transactions.c.id == _reversals.transaction_id)
        .where(*visible(scope), *within(window))
        .order_by(_usage.started_at_ns.desc(), _usage.id.desc())
        .limit(limit)
    )
    return query.where(tuple_(_usage.started_at_ns, _usage.id) < tuple_(*after)) if after else query


def _rates(connection: Connection, usage_ids: Sequence[int]) -> dict[int, list[Rate]]:
    """What the records were rated at, in the order of time."""
    group = (_segments.usage_id, _segments.price_id, _segments.surcharge_nano_per_hour, _segments.period, _segments.late)
    query = (
        select(*group, *halved(_segments.duration_ns, "duration"))
        .where(_segments.usage_id.in_(usage_ids), ~_segments.reversal)
        .group_by(*group)
        .order_by(func.min(_segments.position))
    )
    prices = {id: price for price, id in price_ids(connection).items()}
    found: dict[int, list[Rate]] = defaultdict(list)
    for row in connection.execute(query):
        duration_ns, price = joined(row, "duration"), prices[row.price_id]
        found[row.usage_id].append(Rate(price, row.surcharge_nano_per_hour, Month.parse(row.period), row.late, duration_ns))
    return found


def statement(connection: Connection, tenant: str, user: str | None, month: Month, now_ns: int) -> Statement:
    """The tenant's month, or one user's part. Raises LedgerError where lines and ledger differ."""
    lines = _lines(connection, tenant, month)
    whole_month = statement_of(tenant, None, month, now_ns, lines)
    check_against_ledger(whole_month, rated(connection, receivable(tenant), month))
    if user is None:
        return whole_month
    return statement_of(tenant, user, month, now_ns, [line for line in lines if line.user == user])


def rated_durations(connection: Connection, tenant: str | None, month: Month) -> list[Rated]:
    """How long each flavor was held in a month at each price, on what and at which surcharge, by tenant; of one where given.

    What was corrected is off.
    """
    held = (_usage.device_model, _usage.devices, _usage.share_milli)
    piece, name = pieces(_billed_in(tenant, month), held, kinds=(LEASED,)), schema.accounts.c.name
    group = (name, piece.price_id, piece.surcharge_nano_per_hour, piece.device_model, piece.devices, piece.share_milli)
    query = (
        select(*group, *halved(piece.duration_ns, "duration"))
        .join(schema.accounts, schema.accounts.c.id == piece.account_id)
        .group_by(*group)
    )
    prices = {id: price for price, id in price_ids(connection).items()}
    found = []
    for row in connection.execute(query):
        price, owner = prices[row.price_id], row.name.removeprefix(receivable(""))
        where = row.device_model, row.devices, row.share_milli
        surcharge, duration_ns = row.surcharge_nano_per_hour, joined(row, "duration")
        found.append(Rated(owner, price.flavor, price.currency, price.price_nano_per_hour, surcharge, duration_ns, *where))
    return found


def rated_bytes(connection: Connection, tenant: str | None, month: Month) -> list[RatedBytes]:
    """The same of parked bytes. Bytes times time pass 64 bits, so they are multiplied here."""
    piece, name = pieces(_billed_in(tenant, month), (_usage.parked_bytes,), kinds=(KEPT,)), schema.accounts.c.name
    group = (name, piece.currency, piece.parked_bytes)
    query = (
        select(*group, *halved(piece.duration_ns, "duration"), *halved(piece.milli, "milli"), *halved(piece.grains, "grains"))
        .join(schema.accounts, schema.accounts.c.id == piece.account_id)
        .group_by(*group)
    )
    sums: dict[tuple[str, str], tuple[int, int]] = defaultdict(lambda: (0, 0))
    for row in connection.execute(query):
        byte_ns, cost = sums[row.name, row.currency]
        more_grains = whole(joined(row, "milli"), joined(row, "grains"))
        sums[row.name, row.currency] = byte_ns + row.parked_bytes * joined(row, "duration"), cost + more_grains
    return [RatedBytes(account.removeprefix(receivable("")), currency, *of) for (account, currency), of in sorted(sums.items())]


def _billed_in(tenant: str | None, month: Month) -> Where:
    if tenant is not None:
        return in_month(tenant, month)
    return lambda columns: (columns.period == str(month),)


def posted(connection: Connection, account: str, period: Month | None) -> dict[str, int]:
    """What an account's postings sum to by currency, in grains; of one period where given. Reads the projection."""
    balances, accounts = schema.balances.c, schema.accounts.c
    query = (
        select(balances.currency, balances.milli, balances.grains)
        .join(schema.accounts, accounts.id == balances.account_id)
        .where(accounts.name == account)
    )
    if period is not None:
        query = query.where(balances.period == str(period))
    sums: dict[str, int] = defaultdict(int)
    for row in connection.execute(query):
        sums[row.currency] += whole(row.milli, row.grains)
    return dict(sums)


def balance(connection: Connection, tenant: str) -> list[Balance]:
    """How ``tenant`` stands, by currency. A credit that it has is a debt of ours: its account is below zero then."""
    owed, kept, credits = (posted(connection, account, None) for account in (receivable(tenant), held(tenant), credit_of(tenant)))
    currencies = sorted({*owed, *kept, *credits})
    return [Balance(one, owed.get(one, 0), kept.get(one, 0), -credits.get(one, 0)) for one in currencies]


def rated(connection: Connection, account: str, period: Month) -> dict[str, int]:
    """What usage and its reversals alone put on an account in a period, by currency, in grains: invoices and payments are left out."""
    postings, transactions = schema.postings.c, schema.transactions.c
    query = (
        select(postings.currency, *halved(postings.milli, "milli"), *halved(postings.grains, "grains"))
        .select_from(schema.postings.join(schema.transactions, transactions.id == postings.transaction_id))
        .where(postings.account_id == select(schema.accounts.c.id).where(schema.accounts.c.name == account).scalar_subquery())
        .where(postings.period == str(period), transactions.kind.in_(RATED))
        .group_by(postings.currency)
    )
    return {row.currency: whole(joined(row, "milli"), joined(row, "grains")) for row in connection.execute(query)}


def _lines(connection: Connection, tenant: str, month: Month) -> list[Line]:
    piece = pieces(in_month(tenant, month), (_usage.user_name, _usage.lease), kinds=(LEASED,))
    group = (piece.user_name, piece.price_id, piece.surcharge_nano_per_hour, piece.reversal)
    leases = func.count(distinct(piece.lease)).label("leases")
    query = select(*group, *halved(piece.duration_ns, "duration"), leases).group_by(*group)
    rows = connection.execute(query).all()
    prices = {id: price for price, id in price_ids(connection).items()} if rows else {}
    return [
        line_of(
            "correction" if row.reversal else "usage",
            row.user_name,
            prices[row.price_id],
            row.surcharge_nano_per_hour,
            row.leases,
            joined(row, "duration"),
        )
        for row in rows
    ] + [parked_line_of(total) for total in parked_totals(connection, tenant, month)]


def visible(scope: Scope, row: Columns = _usage) -> list[ColumnElement[bool]]:
    """The one place where a scope becomes conditions on rows: of usage, or of what is summed up of it."""
    conditions = [*of_tenants(row.tenant, scope.tenant), *of_tenants(row.tenant, scope.among)]
    if scope.user is not None:
        conditions.append(row.user_name == scope.user)
    return conditions


def within(window: Window) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if window.since_ns is not None:
        conditions.append(_usage.started_at_ns >= window.since_ns)
    if window.until_ns is not None:
        conditions.append(_usage.started_at_ns < window.until_ns)
    if window.notebook is not None:
        conditions.append(_usage.span_label == window.notebook)
    if window.cell is not None:
        conditions.append(_usage.span_cell == window.cell)
    if window.cell_id is not None:
        conditions.append(CELL == window.cell_id)
    return conditions
