"""Sums of device time and money. Different currencies are never added."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forebay_dashboards.rows import SummaryRow


@dataclass(frozen=True)
class Sum:
    """Usage in one currency."""

    currency: str
    cost_nano: int
    duration_ns: int
    leases: int


@dataclass(frozen=True)
class TenantSpend:
    """A tenant's rows by user and flavor, and their sums."""

    tenant: str
    rows: tuple[SummaryRow, ...]
    sums: tuple[Sum, ...]


def sums(rows: Iterable[SummaryRow]) -> tuple[Sum, ...]:
    """Rows added up per currency."""
    found: dict[str, Sum] = {}
    for row in rows:
        so_far = found.get(row.currency, Sum(row.currency, 0, 0, 0))
        found[row.currency] = Sum(
            row.currency, so_far.cost_nano + row.cost_nano, so_far.duration_ns + row.duration_ns, so_far.leases + row.leases
        )
    return tuple(found[currency] for currency in sorted(found))


def by_tenant(rows: Iterable[SummaryRow]) -> tuple[TenantSpend, ...]:
    """Rows grouped by tenant, both in alphabetical order."""
    groups: dict[str, list[SummaryRow]] = {}
    for row in sorted(rows, key=lambda row: (row.tenant or "", row.user or "", row.flavor or "", row.currency)):
        groups.setdefault(row.tenant or "", []).append(row)
    return tuple(TenantSpend(tenant, tuple(group), sums(group)) for tenant, group in groups.items())
