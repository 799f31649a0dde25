"""What was spent under each budget: the projection's sums, and the segments beyond its marks.

Usage ids and transaction ids only grow, and there is one writer. Two *marks* therefore say how far the projection has come. What lies
beyond them is summed when somebody asks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Row, Select, bindparam, func, literal_column, or_, select

from forebay_billing.model.money import whole
from forebay_billing.model.months import Month
from forebay_billing.reads.rated_rows import Columns, Where, pieces
from forebay_billing.reads.rollups import Marks, heads_of
from forebay_billing.rules.budgets import DAY_NS, FORECAST_DAYS, Budget, Spent, Subject
from forebay_billing.tables import budgets as budgets_tables
from forebay_billing.tables import schema
from forebay_billing.tables.budgets import marks, spending
from forebay_billing.tables.sums import halved, joined

_usage = schema.usage.c
_reversals = schema.reversals.c

Amounts = dict[int, dict[tuple[str, int], int]]
"""Grains by budget, and by period and day."""


def marks_of(connection: Connection) -> Marks:
    """How far the projection has come."""
    row = connection.execute(_MARKS).one()
    return Marks(row.usage_id, row.transaction_id)


def spent_by(connection: Connection, budgets: Sequence[Budget], now_ns: int) -> dict[int, Spent]:
    """What was posted under each of the budgets up to now, by its id.

    Of days there are those that a forecast looks at, and the first with usage; under a monthly budget there are this month and the last.
    """
    if not budgets:
        return {}
    since = str(Month.of(Month.of(now_ns).start_ns - 1))
    periods: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    days: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in connection.execute(_BY_PERIOD, {"since": since}):
        periods[row.budget_id][row.period] += _whole(row)
    for row in connection.execute(_FIRST_DAYS):
        days[row.budget_id][row.day] += 0
    for row in connection.execute(_BY_DAY, {"since_day": now_ns // DAY_NS - FORECAST_DAYS}):
        days[row.budget_id][row.day] += _whole(row)
    for id, amounts in between_marks(connection, budgets, marks_of(connection), heads_of(connection)).items():
        for (period, day), grains in amounts.items():
            periods[id][period] += grains
            days[id][day] += grains
    return {budget.id: Spent(dict(periods[budget.id]), dict(days[budget.id])) for budget in budgets}


def between_marks(connection: Connection, budgets: Sequence[Budget], start: Marks, end: Marks) -> Amounts:
    """What the segments between the marks add to each budget."""
    tenants = sorted({budget.subject.tenant for budget in budgets})
    found: Amounts = defaultdict(dict)
    statements = []
    if end.usage_id > start.usage_id:
        statements.append((_POSTED, {"after": start.usage_id, "until": end.usage_id}))
    if end.transaction_id > start.transaction_id:
        statements.append((_TAKEN_BACK, {"after": start.transaction_id, "until": end.transaction_id}))
    for statement, marked in statements if tenants else ():
        rows = connection.execute(statement, {**marked, "tenants": tenants})
        for id, amounts in _sums(rows, budgets).items():
            for key, grains in amounts.items():
                found[id][key] = found[id].get(key, 0) + grains
    return found


def before_marks(connection: Connection, budget: Budget, marked: Marks) -> Mapping[tuple[str, int], int]:
    """What the books hold under a budget up to the marks, by period and day."""
    subject = budget.subject
    conditions = [_usage.tenant == subject.tenant]
    if subject.user is not None:
        conditions.append(_usage.user_name == subject.user)
    if subject.notebook is not None:
        conditions.append(_usage.span_label == subject.notebook)
    taken_back = select(_reversals.usage_id).where(_reversals.transaction_id <= marked.transaction_id)
    posted = _rows(lambda piece: (piece.usage_id <= marked.usage_id, ~piece.reversal), conditions)
    reversed_ = _rows(lambda piece: (piece.usage_id.in_(taken_back), piece.reversal), conditions)
    sums = _sums([*connection.execute(posted), *connection.execute(reversed_)], [budget])
    return sums.get(budget.id, {})


def _rows(where: Where, of_usage: Sequence[ColumnElement[bool]]) -> Select[Any]:
    piece = pieces(where, (_usage.tenant, _usage.user_name, _usage.span_label), of_usage)
    day = (piece.started_at_ns // literal_column(str(DAY_NS), BigInteger)).label("day")
    group = (piece.tenant, piece.user_name, piece.span_label, piece.currency, piece.period, day)
    return select(*group, *_grains(piece)).group_by(*group)


def _grains(columns: Columns) -> tuple[ColumnElement[int], ...]:
    """Sums of amounts, for :func:`_whole`."""
    return (*halved(columns.milli, "milli"), *halved(columns.grains, "grains"))


def _sums(rows: Iterable[Row[Any]], budgets: Sequence[Budget]) -> Amounts:
    by_subject: dict[tuple[Subject, str], list[int]] = defaultdict(list)
    for budget in budgets:
        by_subject[budget.subject, budget.currency].append(budget.id)
    found: Amounts = defaultdict(lambda: defaultdict(int))
    for row in rows:
        grains = _whole(row)
        for subject in Subject(row.tenant, row.user_name, row.span_label).around:
            for id in by_subject.get((subject, row.currency), ()):
                found[id][row.period, int(row.day)] += grains
    return found


def _whole(row: Row[Any]) -> int:
    return whole(joined(row, "milli"), joined(row, "grains"))


# Statements that every heartbeat needs: they are made once

_after, _until = bindparam("after", type_=BigInteger), bindparam("until", type_=BigInteger)
_of_tenants = (_usage.tenant.in_(bindparam("tenants", expanding=True)),)
_taken_back = select(_reversals.usage_id).where(_reversals.transaction_id > _after, _reversals.transaction_id <= _until)
_POSTED = _rows(lambda piece: (piece.usage_id > _after, piece.usage_id <= _until, ~piece.reversal), _of_tenants)
_TAKEN_BACK = _rows(lambda piece: (piece.usage_id.in_(_taken_back), piece.reversal), _of_tenants)

_budgets = budgets_tables.budgets.c
_there = spending.join(budgets_tables.budgets, _budgets.id == spending.c.budget_id)
_in_force = _budgets.removed_at_ns.is_(None)
_recent = or_(spending.c.period >= bindparam("since"), _budgets.time_window == "total")
_BY_PERIOD = (
    select(spending.c.budget_id, spending.c.period, *_grains(spending.c))
    .select_from(_there)
    .where(_in_force, _recent)
    .group_by(spending.c.budget_id, spending.c.period)
)
_FIRST_DAYS = (
    select(spending.c.budget_id, func.min(spending.c.day).label("day")).select_from(_there).where(_in_force).group_by(spending.c.budget_id)
)
_BY_DAY = (
    select(spending.c.budget_id, spending.c.day, *_grains(spending.c))
    .select_from(_there)
    .where(_in_force, spending.c.day >= bindparam("since_day"))
    .group_by(spending.c.budget_id, spending.c.day)
)
_MARKS = select(marks)
