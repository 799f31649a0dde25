"""The table of tenants: what JupyterHub, billing and the pool know of each, side by side. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from forebay_service.languages import Text

from forebay_dashboards.rows.bases import WHOLE_MILLI
from forebay_dashboards.rows.billing import Balance, BudgetRow, ForecastRow, InvoiceRow, Plan, TenantOrder, TenantRows
from forebay_dashboards.rows.pool import Lease, Quota
from forebay_dashboards.tables.table import Column, Page, Query, Table, cut


@dataclass(frozen=True)
class Owed:
    """Invoices that are open, in one currency."""

    currency: str
    count: int
    total: str


@dataclass(frozen=True)
class TenantRow:
    """A tenant; what could not be read, or is not there, is empty. ``budget`` is the one that is fullest."""

    tenant: str
    currency: str
    month: tuple[ForecastRow, ...]
    budget: BudgetRow | None
    quota: Quota | None
    plan: Plan | None
    balances: tuple[Balance, ...]
    owed: tuple[Owed, ...]
    leases: int
    held_milli: int

    @property
    def budget_milli(self) -> int | None:
        """How much of the fullest budget is used, in thousandths; None without a budget."""
        return None if self.budget is None else used_milli(self.budget)


Held = Mapping[str, tuple[int, int]]
"""By tenant: how many leases are open, and the thousandths of devices that they hold."""


def _sorted_by_billing(row: TenantRow) -> None:
    """Billing orders by its own columns: see :func:`arranged`."""


BILLINGS = _sorted_by_billing
OURS = ("tenant", "held", "leases")
"""Columns that billing knows nothing of, or not of every tenant."""

TENANTS: Table[TenantRow] = Table(
    name="tenants",
    title=Text("Tenants"),
    topics=("leases", "usage", "tenants"),
    columns=(
        Column("tenant", Text("Tenant"), lambda row: row.tenant, "w-who"),
        Column("month", Text("This month"), BILLINGS, number=True),
        Column("end", Text("At its end"), BILLINGS, number=True),
        Column("budget", Text("Budget used"), BILLINGS, number=True),
        Column("held", Text("Devices held"), lambda row: row.held_milli, number=True),
        Column("leases", Text("Leases"), lambda row: row.leases, "w-short", number=True),
        Column("plan", Text("Plan"), BILLINGS),
        Column("balance", Text("Balance"), BILLINGS, number=True),
        Column("open", Text("Open invoices"), BILLINGS, number=True),
    ),
    first="tenant",
    order="asc",
    hint=Text("tenant, name on invoices, currency"),
    empty=Text("There is no tenant yet. A tenant is a group tenant-NAME of JupyterHub: add one to the hub's directory of people."),
)


def used_milli(budget: BudgetRow) -> int | None:
    """How much of a budget is used, what runs included, in thousandths; None where its amounts are not known."""
    if budget.limit_nano is None or budget.spent_nano is None or budget.running_nano is None:
        return None
    used = budget.spent_nano + budget.running_nano
    if not budget.limit_nano:
        return WHOLE_MILLI if used else 0
    return used * WHOLE_MILLI // budget.limit_nano


def arranged(order: TenantOrder, others: Iterable[str], leases: Held, query: Query) -> Page[str]:
    """Names of the tenants on the page that is asked for.

    ``order`` is how billing orders those that it knows, ``others`` are the names that JupyterHub or the pool know. Who has nothing in a
    column comes before all who have, as in every table.
    """
    words, known = query.search.casefold().split(), {*order.ranked, *order.unranked, *order.unmatched}
    new = {name for name in others if name not in known}
    found = [name for name in new if all(word in name.casefold() for word in words)]
    rest, descending = sorted([*order.unranked, *found]), query.order == "desc"
    if query.sort not in OURS:
        names = [*order.ranked, *rest] if descending else [*rest, *order.ranked]
    elif query.sort == "tenant":
        names = sorted([*order.ranked, *rest], reverse=descending)
    else:
        place = 0 if query.sort == "leases" else 1
        names = sorted(sorted([*order.ranked, *rest]), key=lambda name: leases.get(name, (0, 0))[place], reverse=descending)
    return cut(names, len(known) + len(new), query)


def tenant_rows(names: Sequence[str], known: TenantRows, quotas: Iterable[Quota], leases: Held) -> list[TenantRow]:
    """A row for each name, in their order."""
    standings = {one.tenant: one for one in known.standings}
    plans = {one.tenant: one for one in known.plans}
    of_tenants = {one.tenant: one for one in quotas if one.user is None}
    owed = _owed(known.open_invoices)
    budgets: dict[str, BudgetRow] = {}
    for one in known.budgets:
        so_far = budgets.get(one.tenant)
        if so_far is None or (used_milli(one) or 0) > (used_milli(so_far) or 0):
            budgets[one.tenant] = one
    rows = []
    for name in names:
        standing, (count, held_milli) = standings.get(name), leases.get(name, (0, 0))
        row = TenantRow(
            tenant=name,
            currency="" if standing is None else standing.currency,
            month=() if standing is None else standing.month,
            budget=budgets.get(name),
            quota=of_tenants.get(name),
            plan=plans.get(name),
            balances=() if standing is None else standing.balances,
            owed=owed.get(name, ()),
            leases=count,
            held_milli=held_milli,
        )
        rows.append(row)
    return rows


def _owed(invoices: Iterable[InvoiceRow]) -> dict[str, tuple[Owed, ...]]:
    found: dict[str, dict[str, list[Decimal]]] = defaultdict(dict)
    for one in invoices:
        found[one.tenant].setdefault(one.currency, []).append(Decimal(one.open))
    return {
        tenant: tuple(Owed(currency, len(amounts), f"{sum(amounts):f}") for currency, amounts in sorted(of.items()))
        for tenant, of in found.items()
    }


def held_by(leases: Iterable[Lease]) -> Held:
    """What tenants hold now."""
    found: dict[str, tuple[int, int]] = {}
    for lease in leases:
        count, held = found.get(lease.tenant, (0, 0))
        found[lease.tenant] = (count + 1, held + lease.devices * lease.share_milli)
    return found
