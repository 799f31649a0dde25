"""Leases: granted, given back, closed."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.errors import InvariantBroken
from forebay_pool.machine.core import Core
from forebay_pool.machine.messages import granted
from forebay_pool.model.instructions import Meter, Show, TellWorker
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.metering import cost_nano, passed_ns, segments, whole_record
from forebay_pool.model.types import GOES_ON, WHOLE_MILLI, CloseReason, Lease, SegmentEnd


class Leases(Core):
    """Ends leases and meters them. Whoever closes one settles the seat it leaves."""

    def _tell_granted(self, lease: Lease) -> None:
        session, worker = lease.session, lease.session.worker
        if worker is None:
            raise InvariantBroken(f"lease {lease.id} is open without a worker\n{self.story.of(session.id)}")
        self._tell(session.id, granted(lease, worker))

    def _list_lease(self, lease: Lease) -> None:
        """Lists a lease that is open from now on; ``_close`` takes it off."""
        self._leases[lease.id] = lease
        self._revocable.add(lease)
        self.fleet.ends.open(lease.session, lease.flavor.name, lease.opened_ns)
        for account in self.accounts.both(lease.session):
            account.leases[lease.id] = lease

    def _give_back(self, lease: Lease, reason: CloseReason = "released") -> None:
        """Has the worker stop at the next command's boundary; the lease closes when it has."""
        if lease.state == "open" and lease.session.worker is not None:
            lease.state, lease.ending = "closing", reason
            self._revocable.discard(lease)
            lease.session.worker.deadline_ns = self._now + int(self.limits.close_seconds * SECOND)
            self._out += (TellWorker(lease.session.worker.id, wire.Close(epoch=lease.epoch)), Show(lease))

    def _close(self, lease: Lease, reason: CloseReason, until_ns: int) -> None:
        """Ends the lease's clock, meters it, and leaves the seat; whoever calls this settles the seat.

        Of a lease that fails nothing more is metered, however long it was held: our failures are free.
        """
        session, seats = lease.session, self.fleet.seats_of(lease.place)
        held = all([session in seat.holders for seat in seats])
        if session.lease is not lease or not held or lease.state == "closed":
            raise InvariantBroken(f"lease {lease.id} cannot close\n{self.story.of(session.id, lease.device.id)}")
        held_ns = lease.metered_ns if reason == "failed" else until_ns - lease.opened_ns
        lease.duration_ns = min(max(lease.metered_ns, held_ns), self._now - lease.opened_ns)
        lease.state, lease.ending = "closed", reason
        session.lease, session.used_ns = None, self._now
        if session.worker is not None:
            session.worker.deadline_ns = None
        cost = cost_nano(lease.duration_ns, lease.price)
        closed = wire.LeaseClosed(lease=lease.id, epoch=lease.epoch, reason=reason, duration_ns=lease.duration_ns, cost_nano=cost)
        self._meter(lease, lease.duration_ns, reason)
        session.closed = closed
        self._tell(session.id, closed)
        self._give_place(lease.place, session)
        if reason != "failed":
            self.lengths.add(lease.flavor.name, lease.duration_ns)
        del self._leases[lease.id]
        self._revocable.discard(lease)
        self._revoked.pop(lease.id, None)
        for account in self.accounts.both(session):
            del account.leases[lease.id]
        self._out += (Show(lease), *map(Show, seats))

    def _meter(self, lease: Lease, held_ns: int, reason: SegmentEnd) -> None:
        """Meters what was not metered yet of the lease's first ``held_ns``."""
        whole = whole_record(lease, held_ns, reason, None if reason == "failed" else self._drawn_mj(lease))
        records = segments(whole, lease.segment, lease.metered_ns, int(self.limits.segment_seconds * SECOND))
        self._out += map(Meter, records)
        lease.segment, lease.metered_ns = lease.segment + len(records), max(held_ns, lease.metered_ns)

    def _drawn_mj(self, lease: Lease) -> int | None:
        """What the lease's part of its devices drew that was not metered; what was drawn before and told too late is the next lease's."""
        worker = lease.session.worker
        if worker is None or worker.energy_mj is None or worker.metered_mj is None:
            return None
        drawn_mj, worker.metered_mj = max(0, worker.energy_mj - worker.metered_mj), worker.energy_mj
        return drawn_mj * lease.place.share_milli // WHOLE_MILLI

    def _meter_passed(self) -> None:
        """Meters the segments of open leases that are over for certain: no lease can end before a moment that it was confirmed long after.

        A lease that its worker finds idle ended when the idle stretch began. Whoever was confirmed beyond that stretch was not idle; one
        more heartbeat allows for a worker that finds it late, and for the way that its words take.
        """
        settled_ns = int((self.limits.idle_release_seconds + self.limits.heartbeat_seconds) * SECOND)
        segment_ns = int(self.limits.segment_seconds * SECOND)
        for lease in self._leases.values():
            sure_ns = lease.confirmed_ns - lease.opened_ns - settled_ns
            until_ns = passed_ns(lease.opened_unix_ns, lease.metered_ns, sure_ns, segment_ns)
            if until_ns > lease.metered_ns:
                self._meter(lease, until_ns, GOES_ON)
