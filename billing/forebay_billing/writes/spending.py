"""Moves the projection of what was spent under each budget on. Ingest does nothing for budgets: a loop moves the marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, insert, select, update

from forebay_billing.model.money import halves, whole
from forebay_billing.reads.rollups import Marks, heads_of
from forebay_billing.reads.spending import before_marks, between_marks, marks_of
from forebay_billing.rules.budgets import Budget
from forebay_billing.tables.budgets import marks, spending

GATHERED_MAX = 200_000
"""Usage records that one move of the marks reads."""


def catch_up(connection: Connection, budgets: Sequence[Budget]) -> bool:
    """Moves the marks on, in the writer's transaction; true where they moved."""
    start, end = marks_of(connection), heads_of(connection)
    if start == end:
        return False
    until = Marks(min(end.usage_id, start.usage_id + GATHERED_MAX), end.transaction_id)
    for id, amounts in between_marks(connection, budgets, start, until).items():
        _add(connection, id, amounts)
    connection.execute(update(marks).values(usage_id=until.usage_id, transaction_id=until.transaction_id))
    return True


def begin(connection: Connection, budget: Budget) -> None:
    """Sums up what the books hold for a new budget up to the marks, which it shares with the others, and reads nothing of those."""
    _add(connection, budget.id, before_marks(connection, budget, marks_of(connection)))


def _add(connection: Connection, budget_id: int, amounts: Mapping[tuple[str, int], int]) -> None:
    of_budget = spending.c.budget_id == budget_id
    known = {(row.period, row.day): whole(row.milli, row.grains) for row in connection.execute(select(spending).where(of_budget))}
    for (period, day), grains in sorted(amounts.items()):
        milli, rest = halves(known.get((period, day), 0) + grains)
        if (period, day) in known:
            same = of_budget & (spending.c.period == period) & (spending.c.day == day)
            connection.execute(update(spending).where(same).values(milli=milli, grains=rest))
        else:
            connection.execute(insert(spending).values(budget_id=budget_id, period=period, day=day, milli=milli, grains=rest))
