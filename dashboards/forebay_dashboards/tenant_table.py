"""The table of tenants: what JupyterHub, billing and the pool know of each, side by side. No I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from forebay_hub.languages import Text

from forebay_dashboards.mirror import Seen
from forebay_dashboards.rows import WHOLE_MILLI, Balance, BudgetRow, ForecastRow, InvoiceRow, Lease, Plan, Quota, Standing
from forebay_dashboards.tables import Column, Table


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


@dataclass(frozen=True)
class Sources:
    """What a table is made of."""

    names: Iterable[str]
    """Of JupyterHub's groups."""
    standings: tuple[Standing, ...]
    budgets: tuple[BudgetRow, ...]
    quotas: tuple[Quota, ...]
    plans: tuple[Plan, ...]
    """Those in force."""
    open_invoices: tuple[InvoiceRow, ...]
    leases: Iterable[Lease]


TENANTS: Table[TenantRow] = Table(
    name="tenants",
    title=Text("Tenants"),
    topics=("leases", "usage", "tenants"),
    columns=(
        Column("tenant", Text("Tenant"), lambda row: row.tenant, "w-who"),
        Column(
            "month", Text("This month"), lambda row: _by_currency(row, [(one.currency, one.spent_nano) for one in row.month]), number=True
        ),
        Column(
            "end", Text("At its end"), lambda row: _by_currency(row, [(one.currency, one.forecast_nano) for one in row.month]), number=True
        ),
        Column("budget", Text("Budget used"), lambda row: row.budget_milli, number=True),
        Column("held", Text("Devices held"), lambda row: row.held_milli, number=True),
        Column("leases", Text("Leases"), lambda row: row.leases, "w-short", number=True),
        Column("plan", Text("Plan"), lambda row: None if row.plan is None else (row.plan.discount_bps, row.plan.valid_from)),
        Column(
            "balance", Text("Balance"), lambda row: _by_currency(row, [(b.currency, b.available_nano) for b in row.balances]), number=True
        ),
        Column("open", Text("Open invoices"), lambda row: [(one.currency, Decimal(one.total)) for one in row.owed], number=True),
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


def tenant_rows(sources: Sources) -> list[Seen[TenantRow]]:
    """A row for each tenant that anything is known of."""
    standings = {one.tenant: one for one in sources.standings}
    plans = {one.tenant: one for one in sources.plans}
    quotas = {one.tenant: one for one in sources.quotas if one.user is None}
    owed, leases = _owed(sources.open_invoices), _held(sources.leases)
    budgets: dict[str, BudgetRow] = {}
    for one in sources.budgets:
        so_far = budgets.get(one.tenant)
        if so_far is None or (used_milli(one) or 0) > (used_milli(so_far) or 0):
            budgets[one.tenant] = one
    rows = []
    for name in sorted({*sources.names, *standings, *plans, *quotas, *owed, *leases, *budgets}):
        standing, (count, held_milli) = standings.get(name), leases.get(name, (0, 0))
        row = TenantRow(
            tenant=name,
            currency="" if standing is None else standing.currency,
            month=() if standing is None else standing.month,
            budget=budgets.get(name),
            quota=quotas.get(name),
            plan=plans.get(name),
            balances=() if standing is None else standing.balances,
            owed=owed.get(name, ()),
            leases=count,
            held_milli=held_milli,
        )
        words = (name, "" if standing is None else standing.legal_name or "", row.currency)
        rows.append(Seen(row, 0, "\n".join(words).casefold()))
    return rows


def _owed(invoices: Iterable[InvoiceRow]) -> dict[str, tuple[Owed, ...]]:
    found: dict[str, dict[str, list[Decimal]]] = defaultdict(dict)
    for one in invoices:
        found[one.tenant].setdefault(one.currency, []).append(Decimal(one.open))
    return {
        tenant: tuple(Owed(currency, len(amounts), f"{sum(amounts):f}") for currency, amounts in sorted(of.items()))
        for tenant, of in found.items()
    }


def _held(leases: Iterable[Lease]) -> dict[str, tuple[int, int]]:
    """By tenant: how many leases are open, and the thousandths of devices that they hold."""
    found: dict[str, tuple[int, int]] = {}
    for lease in leases:
        count, held = found.get(lease.tenant, (0, 0))
        found[lease.tenant] = (count + 1, held + lease.devices * lease.share_milli)
    return found


def _by_currency(row: TenantRow, amounts: list[tuple[str, int]]) -> tuple[str, int] | None:
    """Amounts are ordered within their currency: that which the tenant is billed in, where there are several."""
    of_own = [found for found in amounts if found[0] == row.currency] or amounts
    return of_own[0] if of_own else None
