"""Parking: sessions whose room is needed are parked, and the time that their bytes spend off devices is metered in segments as leases are.

A stretch begins when a worker reports that the tensors are off its device. It ends when they are brought back, fetched by another worker,
or released. What no worker can confirm is not metered: the segment that runs when the tensors are lost, or when the session ends while
their worker has no link. A stretch that would begin while the worker has no link begins when the worker is back.

The bytes of a session's image are metered by the same rule, in stretches of their own: from the report of the image until one of another
size takes its place, the session moves, or it is over. Images of the same size are one stretch.
"""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.eviction import EvictionOutcome, eviction_outcome, fullness, why_ended
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.model.instructions import Forget, Keep, MeterParked, TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.metering import parked_record, passed_ns, segments
from forebay_pool.model.records import Image
from forebay_pool.model.types import GOES_ON, Parking, SegmentEnd, Session, Worker
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.room import parking_space
from forebay_pool.queue.accounts import Accounts


class ParkedSessions:
    """Parks sessions, opens and ends stretches of parked time, and meters them."""

    def __init__(self, step: Step, worklist: Worklist, limits: Limits, fleet: Fleet, accounts: Accounts) -> None:
        self._step = step
        self._worklist = worklist
        self._limits = limits
        self._fleet = fleet
        self._accounts = accounts
        self.overfull: dict[str, str] = {}
        """Sessions that end with the event at hand because they may not be parked, each with the reason that its client is sent."""
        self.by_id: dict[str, Parking] = {}
        """All and only the stretches that go on; each is its session's ``parking``, or the one of its image."""

    def park(self, worker: Worker) -> None:
        """Tells the worker to move its session's tensors off the device, if there are any and they may be parked."""
        if worker.state == "bound" and worker.reserved_bytes and not (worker.parking or worker.unsure) and self._outcome(worker) == "park":
            worker.parking = True
            worker.deadline_ns = self._step.now_ns + int(self._limits.park_seconds * SECOND)
            host_bytes, spill_bytes = parking_space(worker, self._fleet.seats[worker.device.id].node, self._limits)
            self._step.out.append(TellWorker(worker.id, wire.Park(host_bytes_max=host_bytes, spill_bytes_max=spill_bytes)))

    def _outcome(self, worker: Worker) -> EvictionOutcome:
        """What happens to a session whose room is needed. A session that ends does so when the event ends."""
        session = worker.session
        what = eviction_outcome(worker, self._fleet, self._accounts)
        full = None if what == "park" else fullness(worker, self._accounts, self._fleet.serving)
        if full is not None and session is not None:
            self._step.note("parking_full", session=session.id, tenant=session.tenant, bytes=worker.memory_bytes, then=what)
            if what == "end":
                self.overfull[session.id] = why_ended(worker, full)
        return what

    def note_room(self, session: Session) -> None:
        """Less is parked: sessions may be parked that could not be before, so requests may start that could not."""
        if any(account in self._accounts.bound_parking for account in self._accounts.both(session)):
            self._worklist.whole_queue = True

    def follow_changes(self) -> None:
        """Opens and ends stretches for the sessions that the event changed."""
        if self._step.changed:
            changed, self._step.changed = self._step.changed, {}
            for session in changed:
                parking, holder = session.parking, session.parked_at
                if parking is not None or holder is not None:
                    self._follow(session, parking, holder)
                if session.replay.image is not None or session.replay.stretch is not None:
                    self._follow_image(session, session.replay.image)

    def _follow(self, session: Session, parking: Parking | None, holder: Worker | None) -> None:
        if parking is not None and (holder is not parking.holder or holder is None or holder.parked_bytes != parking.bytes):
            self._end(parking)
        if holder is not None and holder.away_ns is None and session.parking is None:
            self._open(session, "p", holder, holder.parked_bytes or 0)

    def _follow_image(self, session: Session, image: Image | None) -> None:
        """An image is kept until it is replaced by one of another size, or dropped, or the session is over."""
        stretch, lives = session.replay.stretch, session.state not in ("lost", "ended")
        if stretch is not None and lives:
            stretch.holder = session.worker
        if stretch is not None and (not lives or image is None or image.metered_bytes != stretch.bytes):
            self._end(stretch)
        if lives and image is not None and image.metered_bytes and session.replay.stretch is None:
            self._open(session, "i", session.worker, image.bytes, image)

    def _open(self, session: Session, kind: str, holder: Worker | None, count_bytes: int, image: Image | None = None) -> None:
        now_ns, unix_ns = self._step.now_ns, self._step.unix_ns
        span = session.span or wire.Span(id=session.id, kind="process", label=session.process)
        parking = Parking(f"{session.id}.{kind}{unix_ns}", session, holder, count_bytes, span, now_ns, unix_ns, image=image)
        self.add(parking)
        self._step.out.append(Keep(parking))

    def add(self, parking: Parking) -> None:
        """Lists a stretch that goes on."""
        self.by_id[parking.id] = parking
        if parking.image is None:
            parking.session.parking = parking
        else:
            parking.session.replay.stretch = parking

    def _end(self, parking: Parking) -> None:
        """Ends a stretch. It is metered until now, if it is known to have lasted until now."""
        session = parking.session
        if session.state == "lost" or self._heard_ns(parking) is None or parking.opened_ns == self._step.now_ns:
            self._drop(parking)  # its length is unknown, or zero
        else:
            self._meter(parking, self._step.now_ns - parking.opened_ns, "released" if session.state == "ended" else "drained")
            self._remove(parking)

    def _heard_ns(self, parking: Parking) -> int | None:
        """Until when the stretch is known to have lasted; None while nobody can say. Between workers the client vouches for an image."""
        if parking.holder is None:
            return self._step.now_ns if parking.session.away_ns is None else None
        return parking.holder.seen_ns if parking.holder.away_ns is None else None

    def _remove(self, parking: Parking) -> None:
        if parking.image is None:
            parking.session.parking = None
        else:
            parking.session.replay.stretch = None
        del self.by_id[parking.id]

    def drop(self, session: Session) -> None:
        """Ends the stretch of a session's tensors of which nobody knows how long it lasted. What was not metered yet is free."""
        if session.parking is not None:
            self._drop(session.parking)

    def _drop(self, parking: Parking) -> None:
        self._remove(parking)
        self._step.out.append(Forget(parking.id))

    def _meter(self, parking: Parking, held_ns: int, reason: SegmentEnd) -> None:
        """Meters the first ``held_ns`` of the stretch, without the part that was metered before."""
        whole = parked_record(parking, held_ns, reason)
        records = segments(whole, parking.segment, parking.metered_ns, int(self._limits.segment_seconds * SECOND))
        self._step.out += map(MeterParked, records)
        parking.segment, parking.metered_ns = parking.segment + len(records), max(held_ns, parking.metered_ns)

    def meter_passed(self) -> None:
        """Meters the segments that are over, of workers that have been heard since."""
        segment_ns = int(self._limits.segment_seconds * SECOND)
        for parking in self.by_id.values():
            heard_ns = self._heard_ns(parking)
            if heard_ns is not None:
                until_ns = passed_ns(parking.opened_unix_ns, parking.metered_ns, heard_ns - parking.opened_ns, segment_ns)
                if until_ns > parking.metered_ns:
                    self._meter(parking, until_ns, GOES_ON)
