"""Sums of device time, money and energy. Different currencies are never added."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forebay_dashboards.rows.bases import WHOLE_MILLI
from forebay_dashboards.rows.billing import EnergyHour, SummaryRow


@dataclass(frozen=True)
class Sum:
    """Usage in one currency."""

    currency: str
    cost_nano: int
    duration_ns: int
    leases: int


@dataclass(frozen=True)
class TenantSpend:
    """A tenant's rows by flavor, and their sums."""

    tenant: str
    rows: tuple[SummaryRow, ...]
    sums: tuple[Sum, ...]


@dataclass(frozen=True)
class Spender:
    """A person of a tenant, and what they used in one currency; ``share_milli`` is their part of the whole, in thousandths."""

    user: str
    member: bool
    """Whether they belong to the tenant today."""
    sum: Sum | None
    share_milli: int


@dataclass(frozen=True)
class Energy:
    """What devices drew, as far as their drivers told."""

    drawn_mj: int
    co2_mg: int | None
    """What was given off for that; None where the operator has not said what a kilowatt-hour gives off."""
    told_milli: int
    """The part of the device time that it is of, in thousandths."""


def energy(rows: Iterable[SummaryRow | EnergyHour]) -> Energy | None:
    """Rows added up; None where no driver told anything."""
    known = list(rows)
    told = [row for row in known if row.energy_mj is not None]
    if not told:
        return None
    whole_ns, told_ns = sum(row.duration_ns for row in known), sum(row.energy_duration_ns for row in told)
    co2_mg = None if any(row.co2_mg is None for row in told) else sum(row.co2_mg or 0 for row in told)
    return Energy(sum(row.energy_mj or 0 for row in told), co2_mg, told_ns * WHOLE_MILLI // whole_ns if whole_ns > 0 else WHOLE_MILLI)


def spenders(members: Iterable[str], rows: Iterable[SummaryRow]) -> tuple[Spender, ...]:
    """Everybody who belongs to the tenant or used something, those who spent most first."""
    known, used = set(members), list(rows)
    whole = {total.currency: total.cost_nano for total in sums(used)}
    found = [
        Spender(user, user in known, one, one.cost_nano * WHOLE_MILLI // whole[one.currency] if whole[one.currency] > 0 else 0)
        for user in {row.user or "" for row in used}
        for one in sums(row for row in used if row.user == user)
    ]
    idle = [Spender(user, True, None, 0) for user in known - {spender.user for spender in found}]
    return tuple(sorted([*found, *idle], key=lambda one: (one.sum is None, -(one.sum.cost_nano if one.sum else 0), one.user)))


def sums(rows: Iterable[SummaryRow]) -> tuple[Sum, ...]:
    """Rows added up per currency."""
    found: dict[str, Sum] = {}
    for row in rows:
        so_far = found.get(row.currency, Sum(row.currency, 0, 0, 0))
        found[row.currency] = Sum(
            row.currency, so_far.cost_nano + row.cost_nano, so_far.duration_ns + row.duration_ns, so_far.leases + row.leases
        )
    return tuple(found[currency] for currency in sorted(found))


def added(rows: Iterable[SummaryRow], *keys: str) -> tuple[SummaryRow, ...]:
    """Rows added up that agree in ``keys`` and the currency, as if billing had been asked for these alone."""
    groups: dict[tuple[object, ...], list[SummaryRow]] = {}
    for row in rows:
        groups.setdefault((*(getattr(row, key) for key in keys), row.currency), []).append(row)
    return tuple(_added(group, keys) for group in groups.values())


def _added(rows: Sequence[SummaryRow], keys: Sequence[str]) -> SummaryRow:
    drawn = energy(rows)
    return SummaryRow(
        **{key: getattr(rows[0], key) for key in keys},
        currency=rows[0].currency,
        duration_ns=sum(row.duration_ns for row in rows),
        cost_nano=sum(row.cost_nano for row in rows),
        leases=sum(row.leases for row in rows),
        energy_mj=None if drawn is None else drawn.drawn_mj,
        energy_duration_ns=sum(row.energy_duration_ns for row in rows),
        co2_mg=None if drawn is None else drawn.co2_mg,
    )


def by_tenant(rows: Iterable[SummaryRow]) -> tuple[TenantSpend, ...]:
    """Rows grouped by tenant, both in alphabetical order."""
    groups: dict[str, list[SummaryRow]] = {}
    for row in sorted(rows, key=lambda row: (row.tenant or "", row.flavor or "", row.currency)):
        groups.setdefault(row.tenant or "", []).append(row)
    return tuple(TenantSpend(tenant, tuple(group), sums(group)) for tenant, group in groups.items())
