"""Budgets that are in force, as they were set."""

from __future__ import annotations

from typing import Any

from forebay_service.preconditions import tag_of
from sqlalchemy import Connection, Row, select

from forebay_billing.model.money import nano_of, whole
from forebay_billing.rules.budgets import Budget, Subject
from forebay_billing.tables.budgets import budgets
from forebay_billing.tables.tenants_filter import Tenants, of_tenants


def active(connection: Connection, tenant: Tenants = None) -> list[Budget]:
    """The budgets that are in force, in the order in which they were first set; of one tenant, or some, where given."""
    query = select(budgets).where(budgets.c.removed_at_ns.is_(None), *of_tenants(budgets.c.tenant, tenant)).order_by(budgets.c.id)
    return [budget_of(row) for row in connection.execute(query)]


def budget_of(row: Row[Any]) -> Budget:
    """The budget in a row of ``budgets``."""
    return Budget(
        id=row.id,
        subject=Subject(row.tenant, row.user_name, row.notebook),
        currency=row.currency,
        window=row.time_window,
        origin="user" if row.own else row.origin,
        limit_grains=whole(row.limit_milli, row.limit_grains),
        thresholds=tuple(int(share) for share in row.thresholds.split(",") if share),
        on_limit=row.on_limit,
        grace_seconds=row.grace_seconds,
        set_at_ns=row.set_at_ns,
        set_by=row.set_by,
    )


def facts(budget: Budget) -> dict[str, Any]:
    """A budget as the audit and the API tell it."""
    subject = budget.subject
    return {
        "id": budget.id,
        "tenant": subject.tenant,
        "user": subject.user,
        "notebook": subject.notebook,
        "currency": budget.currency,
        "window": budget.window,
        "origin": budget.origin,
        "limit_nano": nano_of(budget.limit_grains),
        "thresholds": list(budget.thresholds),
        "on_limit": budget.on_limit,
        "grace_seconds": budget.grace_seconds,
        "set_at_ns": budget.set_at_ns,
        "set_by": budget.set_by,
    }


def budget_tag(budget: Budget) -> str:
    """The tag of the budget as it was set."""
    return tag_of(facts(budget))
