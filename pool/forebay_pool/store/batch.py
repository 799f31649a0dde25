"""What one commit writes: usage records, and how sessions, workers and open leases stand by now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from forebay_pool.model.snapshot import LeaseSnapshot, ParkingSnapshot, SessionSnapshot, WorkerSnapshot
from forebay_pool.model.types import UsageRecord


@dataclass(slots=True)
class Batch:
    """Of each session, worker and lease the last word counts; None forgets it. A record ends the open lease, or the stretch
    of parked time, that it is of."""

    records: Sequence[UsageRecord] = ()
    sessions: dict[str, SessionSnapshot | None] = field(default_factory=dict)
    workers: dict[str, WorkerSnapshot | None] = field(default_factory=dict)
    leases: dict[str, LeaseSnapshot] = field(default_factory=dict)
    parkings: dict[str, ParkingSnapshot | None] = field(default_factory=dict)
    confirmed_ns: dict[str, int] = field(default_factory=dict)
    """By lease: for how long its worker has confirmed to hold it."""

    def __bool__(self) -> bool:
        return bool(self.records or self.sessions or self.workers or self.leases or self.parkings or self.confirmed_ns)

    def keep_lease(self, lease: LeaseSnapshot) -> None:
        """What was confirmed before counts from another start, if the lease's clock starts here."""
        self.leases[lease.id] = lease
        self.confirmed_ns.pop(lease.id, None)

    def older_than(self, newer: Batch) -> None:
        """Takes back what a failed commit did not write, unless something newer was said meanwhile."""
        older_ns = {lease: held_ns for lease, held_ns in self.confirmed_ns.items() if lease not in newer.leases}
        newer.sessions = self.sessions | newer.sessions
        newer.workers = self.workers | newer.workers
        newer.leases = self.leases | newer.leases
        newer.parkings = self.parkings | newer.parkings
        newer.confirmed_ns = older_ns | newer.confirmed_ns
