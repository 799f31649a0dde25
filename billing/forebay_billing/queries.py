"""What reads the books. Every function runs in one snapshot, and sums as integers.

A sum of 64-bit columns can pass 64 bits, so each is summed as two: the billions and the rest.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, Select, and_, distinct, func, or_, select, tuple_

from forebay_billing import schema
from forebay_billing.access import Scope
from forebay_billing.errors import UnknownTenant
from forebay_billing.journal import price_ids, price_of, record_of
from forebay_billing.ledger import receivable
from forebay_billing.money import cost_atto, whole
from forebay_billing.months import Month, part_in
from forebay_billing.prices import PriceBook
from forebay_billing.statements import check_against_ledger, line_of, statement_of
from forebay_billing.types import Line, PriceVersion, Statement, UsageRecord

USAGE_DURATION_NS_MAX = 366 * 86_400 * 10**9
"""Longest usage record that is accepted, so that a month is found by looking back this far."""

By = Literal["tenant", "user", "flavor"]
LineKey = tuple[str, int, int]
"""What the usage in one line of a statement has in common: user, price, surcharge in nano-units per second."""

_usage = schema.usage.c
_prices = schema.prices.c
_LINE = (_usage.user_name, _usage.price_id, _usage.surcharge_rate_nano)
_BILLION = 10**9
_COLUMNS = {"tenant": _usage.tenant, "user": _usage.user_name, "flavor": _usage.flavor}


@dataclass(frozen=True)
class Charge:
    """A usage record with its price; ``corrected_at_ns`` is when it was reversed, if it was."""

    transaction_id: int
    record: UsageRecord
    price: PriceVersion
    corrected_at_ns: int | None


@dataclass(frozen=True)
class Page:
    """Charges, newest first, and the position after the last (start, transaction), or None at the end."""

    charges: tuple[Charge, ...]
    next: tuple[int, int] | None


@dataclass(frozen=True)
class Window:
    """Records that started in [since, until), Unix time in nanoseconds; None is open."""

    since_ns: int | None
    until_ns: int | None


@dataclass(frozen=True)
class SummaryRow:
    """Usage that was not corrected, summed; a key that was not asked for is None."""

    tenant: str | None
    user: str | None
    flavor: str | None
    currency: str
    duration_ns: int
    cost_atto: int
    leases: int


def price_book(connection: Connection) -> PriceBook:
    """All prices."""
    return PriceBook(price_ids(connection))


def usage_page(connection: Connection, scope: Scope, window: Window, limit: int, after: tuple[int, int] | None) -> Page:
    """At most ``limit`` charges, newest first, that come after the position ``after``."""
    reversal = schema.transactions.alias()
    query = (
        select(schema.usage, reversal.c.posted_at_ns.label("corrected_at_ns"))
        .outerjoin(reversal, reversal.c.reverses == _usage.transaction_id)
        .where(*_visible(scope), *_within(window))
        .order_by(_usage.started_at_ns.desc(), _usage.transaction_id.desc())
        .limit(limit + 1)
    )
    if after is not None:
        query = query.where(tuple_(_usage.started_at_ns, _usage.transaction_id) < tuple_(*after))
    rows = connection.execute(query).all()
    prices = {id: price for price, id in price_ids(connection).items()}
    charges = tuple(Charge(row.transaction_id, record_of(row), prices[row.price_id], row.corrected_at_ns) for row in rows[:limit])
    more = len(rows) > limit
    return Page(charges, (charges[-1].record.started_at_ns, charges[-1].transaction_id) if more else None)


def summary(connection: Connection, scope: Scope, window: Window, by: Sequence[By]) -> list[SummaryRow]:
    """Durations, costs and leases of usage that was not corrected, grouped by the keys in ``by`` and the currency."""
    keys = [_COLUMNS[key].label(key) for key in by]
    reversal = schema.transactions.alias()

    def grouped(*columns: ColumnElement[Any], groups: Sequence[ColumnElement[Any]]) -> Select[Any]:
        return (
            select(*groups, *columns)
            .select_from(schema.usage.join(schema.prices).outerjoin(reversal, reversal.c.reverses == _usage.transaction_id))
            .where(*_visible(scope), *_within(window), reversal.c.id.is_(None))
            .group_by(*groups)
        )

    durations: dict[tuple[Any, ...], int] = defaultdict(int)
    costs: dict[tuple[Any, ...], int] = defaultdict(int)
    rate = (_prices.price_nano_per_second, _usage.surcharge_rate_nano)
    for row in connection.execute(grouped(*_duration_sums(), groups=[*keys, _prices.currency, *rate])):
        group = (*row[: len(keys)], row.currency)
        duration_ns = _duration_of(row)
        durations[group] += duration_ns
        costs[group] += cost_atto(duration_ns, row.price_nano_per_second + row.surcharge_rate_nano)
    leases = {tuple(row[:-1]): row.leases for row in connection.execute(grouped(_LEASES, groups=[*keys, _prices.currency]))}
    return [_summary_row(by, group, durations[group], costs[group], leases[group]) for group in sorted(durations)]


def statement(connection: Connection, tenant: str, user: str | None, month: Month, now_ns: int) -> Statement:
    """The tenant's month, or one user's part. Raises LedgerError where lines and ledger differ."""
    lines = [*_usage_lines(connection, tenant, month), *_correction_lines(connection, tenant, month)]
    whole_month = statement_of(tenant, None, month, now_ns, lines)
    check_against_ledger(whole_month, posted(connection, receivable(tenant), month))
    if user is None:
        return whole_month
    return statement_of(tenant, user, month, now_ns, [line for line in lines if line.user == user])


def check_tenant(connection: Connection, tenant: str) -> None:
    """Raises UnknownTenant for one that never used anything."""
    account = select(schema.accounts.c.id).where(schema.accounts.c.name == receivable(tenant))
    if connection.execute(account).scalar_one_or_none() is None:
        raise UnknownTenant(f"Nothing was ever recorded for a tenant {tenant!r}.")


def posted(connection: Connection, account: str, month: Month | None) -> dict[str, int]:
    """What an account's postings sum to by currency, in atto-units; of one month where given."""
    postings, accounts = schema.postings.c, schema.accounts.c
    milli_sums, atto_sums = _halved(postings.milli, "milli"), _halved(postings.atto, "atto")
    query = (
        select(postings.currency, *milli_sums, *atto_sums)
        .join(schema.accounts, accounts.id == postings.account_id)
        .where(accounts.name == account)
        .group_by(postings.currency)
    )
    if month is not None:
        query = query.where(postings.month == str(month))
    return {row.currency: whole(_joined(row, "milli"), _joined(row, "atto")) for row in connection.execute(query)}


def _usage_lines(connection: Connection, tenant: str, month: Month) -> list[Line]:
    starts_before, ends_after = _usage.started_at_ns < month.start_ns, _usage.started_at_ns + _usage.duration_ns > month.end_ns
    overlaps = and_(
        _usage.tenant == tenant,
        _usage.started_at_ns > month.start_ns - USAGE_DURATION_NS_MAX - 1,
        _usage.started_at_ns < month.end_ns,
        or_(_usage.started_at_ns >= month.start_ns, _usage.started_at_ns + _usage.duration_ns > month.start_ns),
    )
    crosses = or_(starts_before, ends_after)
    group = _LINE
    durations: dict[LineKey, int] = defaultdict(int)
    inside = select(*group, *_duration_sums()).where(overlaps, ~crosses).group_by(*group)
    for row in connection.execute(inside):
        durations[_line_key(row)] += _duration_of(row)
    for row in connection.execute(select(*group, _usage.started_at_ns, _usage.duration_ns).where(overlaps, crosses)):
        durations[_line_key(row)] += part_in(month, row.started_at_ns, row.duration_ns)
    leases = _lease_counts(connection, select(*group, _LEASES).where(overlaps).group_by(*group))
    return _lines(connection, "usage", durations, leases)


def _correction_lines(connection: Connection, tenant: str, month: Month) -> list[Line]:
    reversal = schema.transactions.alias()
    group = _LINE
    corrected = and_(
        _usage.tenant == tenant,
        reversal.c.kind == "reversal",
        reversal.c.posted_at_ns >= month.start_ns,
        reversal.c.posted_at_ns < month.end_ns,
    )
    joined = schema.usage.join(reversal, reversal.c.reverses == _usage.transaction_id)
    query = select(*group, *_duration_sums()).select_from(joined).where(corrected).group_by(*group)
    durations = {_line_key(row): -_duration_of(row) for row in connection.execute(query)}
    leases = _lease_counts(connection, select(*group, _LEASES).select_from(joined).where(corrected).group_by(*group))
    return _lines(connection, "correction", durations, leases)


def _lines(
    connection: Connection,
    kind: Literal["usage", "correction"],
    durations: dict[LineKey, int],
    leases: dict[LineKey, int],
) -> list[Line]:
    wanted = {price_id for _, price_id, _ in durations}
    prices = {row.id: price_of(row) for row in connection.execute(select(schema.prices)) if row.id in wanted}
    return [
        line_of(kind, user, prices[price_id], surcharge, leases[user, price_id, surcharge], duration)
        for (user, price_id, surcharge), duration in durations.items()
    ]


def _line_key(row: Row[Any]) -> LineKey:
    return row.user_name, row.price_id, row.surcharge_rate_nano


def _lease_counts(connection: Connection, query: Select[Any]) -> dict[LineKey, int]:
    return {_line_key(row): row.leases for row in connection.execute(query)}


def _visible(scope: Scope) -> list[ColumnElement[bool]]:
    """The one place where a scope becomes conditions on rows."""
    conditions: list[ColumnElement[bool]] = []
    if scope.tenant is not None:
        conditions.append(_usage.tenant == scope.tenant)
    if scope.user is not None:
        conditions.append(_usage.user_name == scope.user)
    return conditions


def _within(window: Window) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if window.since_ns is not None:
        conditions.append(_usage.started_at_ns >= window.since_ns)
    if window.until_ns is not None:
        conditions.append(_usage.started_at_ns < window.until_ns)
    return conditions


def _summary_row(by: Sequence[By], group: tuple[Any, ...], duration_ns: int, cost: int, leases: int) -> SummaryRow:
    keys = dict(zip(by, group, strict=False))
    return SummaryRow(keys.get("tenant"), keys.get("user"), keys.get("flavor"), group[-1], duration_ns, cost, leases)


def _halved(column: ColumnElement[int], name: str) -> tuple[ColumnElement[int], ColumnElement[int]]:
    """Sums of the billions and of the rest; :func:`_joined` puts them together."""
    return func.sum(column // _BILLION).label(f"{name}_billions"), func.sum(column % _BILLION).label(f"{name}_rest")


def _joined(row: Row[Any], name: str) -> int:
    return int(row._mapping[f"{name}_billions"]) * _BILLION + int(row._mapping[f"{name}_rest"])


def _duration_sums() -> tuple[ColumnElement[int], ColumnElement[int]]:
    return _halved(_usage.duration_ns, "duration")


def _duration_of(row: Row[Any]) -> int:
    return _joined(row, "duration")


_LEASES: ColumnElement[int] = func.count(distinct(_usage.lease)).label("leases")
