"""A tenant's month as a report: what was used on which day, by whom, of what, and where. At list prices; an invoice says what is owed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from forebay_billing.ledger.access import Scope
from forebay_billing.model.months import Month
from forebay_billing.reads.summaries import By, SummaryRow, summary
from forebay_billing.reads.usage import Window

NOTEBOOKS_MAX = 15
"""Notebooks and commands that a report names: those that cost most."""


@dataclass(frozen=True)
class Report:
    """One tenant's month (UTC). Rows stand with those first that cost most, days in their order."""

    tenant: str
    month: Month
    totals: tuple[SummaryRow, ...]
    days: tuple[SummaryRow, ...]
    users: tuple[SummaryRow, ...]
    flavors: tuple[SummaryRow, ...]
    notebooks: tuple[SummaryRow, ...]


def report_of(connection: Connection, tenant: str, month: Month) -> Report:
    """The report, as the books are now."""
    window = Window(month.start_ns, month.end_ns)

    def rows(*by: By) -> list[SummaryRow]:
        return summary(connection, Scope(tenant, None), window, by)

    return Report(
        tenant,
        month,
        totals=tuple(rows()),
        days=tuple(rows("day")),
        users=_dearest(rows("user")),
        flavors=_dearest(rows("flavor")),
        notebooks=_dearest(rows("kind", "notebook"))[:NOTEBOOKS_MAX],
    )


def _dearest(rows: Sequence[SummaryRow]) -> tuple[SummaryRow, ...]:
    return tuple(sorted(rows, key=lambda row: (row.currency, -row.cost_grains, str(row.keys))))
