"""Leases that ended and whose usage record has yet to reach billing. The pages are told when it has. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from forebay_dashboards.access import Owner
from forebay_dashboards.rows.billing import UsageRecord
from forebay_dashboards.rows.pool import Lease

AWAITED_MAX = 1000
"""More leases ending at once than this are told of without waiting for the oldest."""
PATIENCE_NS = 60 * 10**9
"""A record that takes longer is delayed (billing is down); the next one, or a reload, shows it."""


@dataclass(frozen=True)
class Awaited:
    """A lease that ended at monotonic ``ended_ns``."""

    owner: Owner
    opened_at_ns: int
    ended_ns: int


@dataclass(frozen=True)
class Arrival:
    """A record is there (or has been given up on, ``late``): pages of ``owner`` are out of date."""

    owner: Owner
    waited_ns: int
    late: bool


class Deliveries:
    """At most AWAITED_MAX leases by identifier, in the order they ended."""

    def __init__(self) -> None:
        self._awaited: dict[str, Awaited] = {}

    def ended(self, lease: Lease, now_ns: int) -> list[Arrival]:
        """Begins to wait for the record of ``lease``."""
        self._awaited[lease.lease] = Awaited(lease.owner, lease.opened_at_ns, now_ns)
        if len(self._awaited) <= AWAITED_MAX:
            return []
        oldest = next(iter(self._awaited))
        return [self._arrive(oldest, now_ns, late=True)]

    def found(self, records: Iterable[UsageRecord], now_ns: int) -> list[Arrival]:
        """Stops waiting for the leases of ``records``."""
        leases = {record.lease for record in records} & self._awaited.keys()
        return [self._arrive(lease, now_ns, late=False) for lease in sorted(leases)]

    def expired(self, now_ns: int) -> list[Arrival]:
        """Stops waiting for those that ended more than PATIENCE_NS ago."""
        late = [lease for lease, awaited in self._awaited.items() if now_ns - awaited.ended_ns > PATIENCE_NS]
        return [self._arrive(lease, now_ns, late=True) for lease in late]

    @property
    def since_ns(self) -> int | None:
        """Unix time from which on all awaited records started; None when nothing is awaited."""
        return min((awaited.opened_at_ns for awaited in self._awaited.values()), default=None)

    def _arrive(self, lease: str, now_ns: int, late: bool) -> Arrival:
        awaited = self._awaited.pop(lease)
        return Arrival(awaited.owner, now_ns - awaited.ended_ns, late)
