"""Leases: granted, given back, closed."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.core import Core
from forebay_pool.errors import InvariantBroken
from forebay_pool.grants import granted
from forebay_pool.instructions import Meter, Show, TellWorker
from forebay_pool.metering import SECOND_NS as SECOND
from forebay_pool.metering import cost_nano, usage_record
from forebay_pool.types import CloseReason, Lease


class Leases(Core):
    """Ends leases and meters them. Whoever closes one settles the seat it leaves."""

    def _tell_granted(self, lease: Lease) -> None:
        session, worker = lease.session, lease.session.worker
        if worker is None:
            raise InvariantBroken(f"lease {lease.id} is open without a worker\n{self.story.of(session.id)}")
        self._tell(session.id, granted(lease, worker))

    def _list_lease(self, lease: Lease) -> None:
        """It is open from now on; ``_close`` takes it off the lists."""
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
        """Ends the lease's clock, meters it, and leaves the seat; whoever calls this settles the seat."""
        session, seats = lease.session, self.fleet.seats_of(lease.place)
        if session.lease is not lease or not all(session in seat.holders for seat in seats) or lease.state == "closed":
            raise InvariantBroken(f"lease {lease.id} cannot close\n{self.story.of(session.id, lease.device.id)}")
        lease.duration_ns = min(max(0, until_ns - lease.opened_ns), self._now - lease.opened_ns)
        lease.state, lease.ending = "closed", reason
        session.lease, session.used_ns = None, self._now
        if session.worker is not None:
            session.worker.deadline_ns = None
        cost = cost_nano(lease.duration_ns, lease.price)
        closed = wire.LeaseClosed(lease=lease.id, epoch=lease.epoch, reason=reason, duration_ns=lease.duration_ns, cost_nano=cost)
        self._out.append(Meter(usage_record(lease)))
        session.closed = closed
        self._tell(session.id, closed)
        self._give_place(lease.place, session)
        self.lengths.add(lease.flavor.name, lease.duration_ns)
        del self._leases[lease.id]
        self._revocable.discard(lease)
        self._revoked.pop(lease.id, None)
        for account in self.accounts.both(session):
            del account.leases[lease.id]
        self._out += (Show(lease), *(Show(seat) for seat in seats))
