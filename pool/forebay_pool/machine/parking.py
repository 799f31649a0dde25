"""Parking: sessions whose room is needed are parked, and the time that their bytes spend off devices is metered in segments as leases are.

A stretch begins when a worker says that it keeps the tensors off its device, and ends when they are brought back, fetched by another
worker, or released. What nobody can vouch for is not metered: the segment that runs when the tensors are lost, or when the session ends
while their worker has no link. So a stretch that would begin while the worker has none (the one that was to fetch the tensors was sent
away, or another pool did not write when it began) begins when it is back.
"""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.eviction import Fate, fate, fullness, why_ended
from forebay_pool.machine.leases import Leases
from forebay_pool.model.instructions import Forget, Keep, MeterParked, TellWorker
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.metering import parked_record, passed_ns, segments
from forebay_pool.model.types import GOES_ON, Parking, SegmentEnd, Session, Worker
from forebay_pool.placement.room import parking_space


class ParkedSessions(Leases):
    """Parks sessions, opens and ends stretches of parked time, and meters them."""

    def _park(self, worker: Worker) -> None:
        """Tells the worker to move its session's tensors off the device, if it has any there, and they may be parked."""
        if worker.state == "bound" and worker.reserved_bytes and not (worker.parking or worker.unsure) and self._fate(worker) == "park":
            worker.parking = True
            worker.deadline_ns = self._now + int(self.limits.park_seconds * SECOND)
            host_bytes, spill_bytes = parking_space(worker, self.fleet.seats[worker.device.id].node, self.limits)
            self._out.append(TellWorker(worker.id, wire.Park(host_bytes_max=host_bytes, spill_bytes_max=spill_bytes)))

    def _fate(self, worker: Worker) -> Fate:
        """What becomes of a session whose room is needed; one that ends does so at the end of the event."""
        session = worker.session
        what = fate(worker, self.fleet, self.accounts)
        full = None if what == "park" else fullness(worker, self.accounts, self.fleet.serving)
        if full is not None and session is not None:
            self._note("parking_full", session=session.id, tenant=session.tenant, bytes=worker.memory_bytes, then=what)
            if what == "end":
                self._overfull[session.id] = why_ended(worker, full)
        return what

    def _less_is_parked(self, session: Session) -> None:
        """Somebody may be parked, and so somebody may start, that could not before."""
        if any(account in self.accounts.bound_parking for account in self.accounts.both(session)):
            self._look_anew = True

    def _note_parkings(self) -> None:
        """Follows the sessions that the event at hand changed: what changes a session shows or keeps it."""
        if self._changed:
            changed, self._changed = self._changed, {}
            for session in changed:
                parking, holder = session.parking, session.parked_at
                if parking is not None or holder is not None:
                    self._note_parking(session, parking, holder)

    def _note_parking(self, session: Session, parking: Parking | None, holder: Worker | None) -> None:
        if parking is not None and (holder is not parking.holder or holder.parked_bytes != parking.bytes):
            if session.state == "lost" or parking.holder.away_ns is not None or parking.opened_ns == self._now:
                self._drop_parking(session)  # nobody knows how long it lasted, or it lasted for no time
            else:
                self._meter_parking(parking, self._now - parking.opened_ns, "released" if session.state == "ended" else "drained")
                self._forget_parking(parking)
        if holder is not None and holder.away_ns is None and session.parking is None:
            self._open_parking(session, holder)

    def _open_parking(self, session: Session, holder: Worker) -> None:
        opened_unix_ns = self._now + self._unix_offset_ns
        span = session.span or wire.Span(id=session.id, kind="process", label=session.process)
        parking = Parking(f"{session.id}.p{opened_unix_ns}", session, holder, holder.parked_bytes or 0, span, self._now, opened_unix_ns)
        self._list_parking(parking)
        self._out.append(Keep(parking))

    def _list_parking(self, parking: Parking) -> None:
        """Adds a stretch that goes on."""
        self._parkings[parking.id] = parking.session.parking = parking

    def _forget_parking(self, parking: Parking) -> None:
        parking.session.parking = None
        del self._parkings[parking.id]

    def _drop_parking(self, session: Session) -> None:
        """Ends the stretch where nobody can say until when it lasted: what was not metered yet is free."""
        parking = session.parking
        if parking is not None:
            self._forget_parking(parking)
            self._out.append(Forget(parking.id))

    def _meter_parking(self, parking: Parking, held_ns: int, reason: SegmentEnd) -> None:
        """Meters what was not metered yet of the stretch's first ``held_ns``."""
        whole = parked_record(parking, held_ns, reason)
        records = segments(whole, parking.segment, parking.metered_ns, int(self.limits.segment_seconds * SECOND))
        self._out += map(MeterParked, records)
        parking.segment, parking.metered_ns = parking.segment + len(records), max(held_ns, parking.metered_ns)

    def _meter_parked(self) -> None:
        """Meters the segments that are over: whose worker was heard after their end."""
        segment_ns = int(self.limits.segment_seconds * SECOND)
        for parking in self._parkings.values():
            if parking.holder.away_ns is None:
                sure_ns = parking.holder.seen_ns - parking.opened_ns
                until_ns = passed_ns(parking.opened_unix_ns, parking.metered_ns, sure_ns, segment_ns)
                if until_ns > parking.metered_ns:
                    self._meter_parking(parking, until_ns, GOES_ON)
