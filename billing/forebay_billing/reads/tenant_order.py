"""All tenants in the order of one column of the operator's table: each order reads what that column needs, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection

from forebay_billing.model.months import Month
from forebay_billing.reads import plans as plans_reads
from forebay_billing.reads import spending, standings
from forebay_billing.reads.budgets import active
from forebay_billing.reads.invoices import open_amounts
from forebay_billing.rules.budgets import IDLE, NOTHING, Accrued, period_of, used_in

Sort = Literal["tenant", "month", "end", "budget", "plan", "balance", "open"]
WHOLE_MILLI = 1000
Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Order:
    """Names of tenants: those that the column says something of, by that; the others that were searched for, by name; and the rest."""

    ranked: list[str]
    unranked: list[str]
    unmatched: list[str]


def ordered(
    connection: Connection, sort: Sort, descending: bool, search: str, currency_of: Callable[[str], str], accrued: Accrued, now_ns: int
) -> Order:
    """Of all tenants that anything was written down for; a tenant is found by words of its name, legal name and currency."""
    words, found = search.casefold().split(), standings.names(connection, currency_of)
    matched = [one for one in found if all(word in f"{one.tenant}\n{one.legal_name}\n{one.currency}".casefold() for word in words)]
    kept = {one.tenant for one in matched}
    if sort == "tenant":
        return Order(sorted(kept, reverse=descending), [], sorted(one.tenant for one in found if one.tenant not in kept))
    keys = _KEYS[sort](connection, accrued, now_ns)
    ranks = {one.tenant: _own(keys[one.tenant], one.currency) for one in matched if keys.get(one.tenant)}
    ranked = sorted(sorted(ranks), key=lambda name: ranks[name], reverse=descending)
    return Order(ranked, sorted(kept - ranks.keys()), sorted(one.tenant for one in found if one.tenant not in kept))


def _own(keys: Sequence[Key], currency: str) -> Key:
    """Amounts are ordered within their currency: that which the tenant is billed in, where there are several."""
    return next((key for key in keys if key[0] == currency), keys[0])


Keys = Mapping[str, Sequence[Key]]


def _by_month(connection: Connection, accrued: Accrued, now_ns: int) -> Keys:
    found = standings.outlooks_of(connection, None, now_ns)
    return {name: [(one.currency, one.spent_grains) for one in of] for name, of in found.items()}


def _by_end(connection: Connection, accrued: Accrued, now_ns: int) -> Keys:
    found = standings.outlooks_of(connection, None, now_ns)
    return {name: [(one.currency, one.forecast_grains) for one in of] for name, of in found.items()}


def _by_budget(connection: Connection, accrued: Accrued, now_ns: int) -> Keys:
    """By how much of the fullest one is used, what runs included."""
    budgets, found = active(connection), dict[str, int]()
    spent = spending.spent_by(connection, budgets, now_ns)
    for budget in budgets:
        runs = accrued.get((budget.subject, budget.currency), IDLE)
        used = sum(used_in(period_of(budget, now_ns), spent.get(budget.id, NOTHING), runs))
        full = used * WHOLE_MILLI // budget.limit_grains if budget.limit_grains else (WHOLE_MILLI if used else 0)
        found[budget.subject.tenant] = max(full, found.get(budget.subject.tenant, 0))
    return {name: [(full,)] for name, full in found.items()}


def _by_plan(connection: Connection, accrued: Accrued, now_ns: int) -> Keys:
    plans = plans_reads.plans_in(connection, None, Month.of(now_ns))
    return {plan.tenant: [(plan.terms.discount_bps, str(plan.valid_from))] for plan in plans}


def _by_balance(connection: Connection, accrued: Accrued, now_ns: int) -> Keys:
    found = standings.balances_of(connection, None)
    return {name: [(one.currency, one.available_grains) for one in of] for name, of in found.items() if of}


def _by_open(connection: Connection, accrued: Accrued, now_ns: int) -> Keys:
    return {name: sorted(of.items()) for name, of in open_amounts(connection).items()}


_KEYS: Mapping[Sort, Callable[[Connection, Accrued, int], Keys]] = {
    "month": _by_month,
    "end": _by_end,
    "budget": _by_budget,
    "plan": _by_plan,
    "balance": _by_balance,
    "open": _by_open,
}
