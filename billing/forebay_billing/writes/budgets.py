"""Sets and removes budgets; every change by a person is in the audit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from forebay_service.preconditions import ANYHOW, Precondition
from sqlalchemy import ColumnElement, Connection, func, insert, or_, select, update

from forebay_billing.errors import Forbidden, TooLarge, UnknownBudget
from forebay_billing.ledger.books import Books
from forebay_billing.model.money import halves
from forebay_billing.reads.budgets import budget_of, budget_tag, facts
from forebay_billing.rules.budgets import Budget, Origin, Subject, check_new
from forebay_billing.rules.etags import check_expected
from forebay_billing.tables.budgets import budgets
from forebay_billing.tables.tenants_filter import of_tenants
from forebay_billing.writes import spending

BUDGETS_PER_TENANT_MAX = 1000
"""Those that users set for their own work are counted apart."""
OWN_BUDGETS_MAX = 100
"""Of one user."""


def set_budget(books: Books, wanted: Budget, now_ns: int, expected: Precondition = ANYHOW) -> Budget:
    """Makes the budget, or changes the one of the same subject, currency, window and origin.

    ``wanted.id`` is ignored: a budget keeps the one with which it began. Raises PreconditionFailed, Forbidden,
    InvalidRequest, TooLarge.
    """
    connection = books.connection
    near = _around(connection, wanted)
    before = next((budget for budget in near if _key(budget) == _key(wanted)), None)
    check_expected(expected, None if before is None else budget_tag(before))
    check_new(wanted, near)
    if before is None:
        _check_room(connection, wanted)
        largest: int | None = connection.execute(select(func.max(budgets.c.id))).scalar_one()
        after = replace(wanted, id=(largest or 0) + 1)
        connection.execute(insert(budgets).values(id=after.id, **_values(after)))
        spending.begin(connection, after)
    else:
        after = replace(wanted, id=before.id)
        connection.execute(update(budgets).where(budgets.c.id == after.id).values(**_values(after)))
    books.append_audit(now_ns, wanted.set_by, "budget.set", _name(after), None if before is None else facts(before), facts(after))
    return after


def _around(connection: Connection, wanted: Budget) -> list[Budget]:
    """The budgets in force for the subject, its user and its tenant, in its currency and window: they are few."""
    column, subject = budgets.c, wanted.subject
    query = select(budgets).where(
        column.tenant == subject.tenant,
        or_(column.user_name.is_(None), column.user_name == subject.user),
        or_(column.notebook.is_(None), column.notebook == subject.notebook),
        column.currency == wanted.currency,
        column.time_window == wanted.window,
        column.removed_at_ns.is_(None),
    )
    return [budget_of(row) for row in connection.execute(query)]


def _check_room(connection: Connection, wanted: Budget) -> None:
    """Raises TooLarge where there are as many in force as there may be."""
    tenant, user, own = wanted.subject.tenant, wanted.subject.user, wanted.origin == "user"
    counted = budgets.c.tenant == tenant, budgets.c.own.is_(own)
    if _count(connection, *counted) >= BUDGETS_PER_TENANT_MAX:
        raise TooLarge(f"The tenant {tenant} has {BUDGETS_PER_TENANT_MAX} budgets{' of its users' if own else ''}; remove one first.")
    if own and _count(connection, *counted, budgets.c.user_name == user) >= OWN_BUDGETS_MAX:
        raise TooLarge(f"{user} has set {OWN_BUDGETS_MAX} budgets; remove one first.")


def _count(connection: Connection, *wanted: ColumnElement[bool]) -> int:
    """Budgets in force."""
    query = select(func.count()).where(budgets.c.removed_at_ns.is_(None), *wanted)
    return int(connection.execute(query).scalar_one())


def remove_budget(
    books: Books, id: int, tenant: str | None, origin: Origin, who: str, now_ns: int, expected: Precondition = ANYHOW
) -> Budget:
    """Ends a budget: any for an operator, all but operators' for the owner of ``tenant``, for a user the own. Raises UnknownBudget,
    Forbidden, PreconditionFailed.
    """
    query = select(budgets).where(budgets.c.id == id, budgets.c.removed_at_ns.is_(None), *of_tenants(budgets.c.tenant, tenant))
    row = books.connection.execute(query).first()
    found = None if row is None else budget_of(row)
    if found is None or (origin == "user" and found.subject.user != who):
        raise UnknownBudget(f"There is no budget {id}; list them with GET api/budgets.")
    if origin != "operator" and found.origin == "operator":
        raise Forbidden(f"An operator set the budget for {found.subject}; ask an operator to remove it.")
    if origin == "user" and found.origin == "owner":
        raise Forbidden(f"The tenant's owner set the budget for {found.subject}; ask the owner to remove it.")
    check_expected(expected, budget_tag(found))
    books.connection.execute(update(budgets).where(budgets.c.id == id).values(removed_at_ns=now_ns))
    books.append_audit(now_ns, who, "budget.remove", _name(found), facts(found), {"removed": True})
    return found


def _name(budget: Budget) -> str:
    """What the audit calls it: short, since a notebook's path may be long."""
    return f"{budget.subject.tenant}/{budget.subject.user or ''}#{budget.id}"


def _key(budget: Budget) -> tuple[Subject, str, str, str]:
    return budget.subject, budget.currency, budget.window, budget.origin


def _values(budget: Budget) -> Mapping[str, Any]:
    milli, grains = halves(budget.limit_grains)
    return {
        "tenant": budget.subject.tenant,
        "user_name": budget.subject.user,
        "notebook": budget.subject.notebook,
        "currency": budget.currency,
        "time_window": budget.window,
        "origin": "owner" if budget.origin == "user" else budget.origin,
        "own": budget.origin == "user",
        "limit_milli": milli,
        "limit_grains": grains,
        "thresholds": ",".join(map(str, budget.thresholds)),
        "on_limit": budget.on_limit,
        "grace_seconds": budget.grace_seconds,
        "set_by": budget.set_by,
        "set_at_ns": budget.set_at_ns,
    }
