"""What waiting clients are told: position, reason, requests ahead, and how long it takes."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import itemgetter

from forebay_wire import messages as wire

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.eviction import eviction_outcome
from forebay_pool.machine.base.messages import flavor_message, resume_key
from forebay_pool.machine.base.step import Step
from forebay_pool.model.causes import Cause, told
from forebay_pool.model.events import Look
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.records import Estimate
from forebay_pool.model.types import Lane, Request, Seat, Session, Standing
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.lease_lengths import LeaseLengths
from forebay_pool.placement.room import residents
from forebay_pool.placement.wait_estimates import Foresight, is_news, wire_estimate
from forebay_pool.queue.accounts import Accounts
from forebay_pool.queue.competition import Ahead
from forebay_pool.queue.queue import Queue, Rank
from forebay_pool.queue.reasons import DRAINING, GATHERING, STORE, Why, why_placing, why_waiting

LOOK_MAX = 256
"""One look reports to at most this many requests; a longer queue takes several looks."""
RANKED_MAX = 256
"""How many requests of the queue are ranked at a time."""
RANKING = 64
"""How many requests of LOOK_MAX one ranking of RANKED_MAX counts for."""
FORESIGHT_NS = 250_000_000
"""An estimate that was made for one request is reused for others for so long."""
UNESTIMATED = ("quota", "budget", "store")
"""Reasons of waits whose end does not depend on the length of leases."""


class QueuePositions:
    """Tells waiting clients their position, the reason and the estimate. It walks through the queue, a bounded part at a time."""

    def __init__(
        self,
        step: Step,
        admission: Admission,
        limits: Limits,
        fleet: Fleet,
        queue: Queue,
        accounts: Accounts,
        lengths: LeaseLengths,
    ) -> None:
        self._step = step
        self._admission = admission
        self._limits = limits
        self._fleet = fleet
        self._queue = queue
        self._accounts = accounts
        self._lengths = lengths
        self._walk: Iterator[tuple[Request, Standing] | None] | None = None
        """Where the walk through the queue goes on; None if it has come to the end."""
        self._walked_changes = -1
        """``Queue.changes`` as the last walk began."""
        self._foresight: Foresight | None = None
        """The last estimate, good for ``FORESIGHT_NS``."""
        self._reasons: dict[tuple[Lane, str], Why] = {}
        """Why those of a lane and a tenant wait, as of the event at hand."""

    def send_flavor(self, session: Session) -> None:
        flavor = flavor_message(self._fleet.flavors[session.flavor], self._fleet.tariff.price_of(session.flavor, session.tenant))
        opened = wire.SessionOpened(
            session=session.id,
            flavor=flavor,
            heartbeat_seconds=self._limits.session_heartbeat_seconds,
            resume_key=resume_key(session),
            resume_seconds=self._limits.resume_seconds and self._limits.outage_seconds,
            priority=self._accounts.priority_of(session, session.priority),
        )
        self._step.send(session.id, opened)

    @property
    def has_news(self) -> bool:
        """True if a look has anything to report."""
        return self._walk is not None or (self._queue.changes != self._walked_changes and bool(self._queue.waiting))

    def looked(self, event: Look) -> None:
        """Continues the walk through the queue. A new walk begins if the queue has changed since the last one began."""
        self.send_all(self._queue.changes != self._walked_changes)

    def send_all(self, anew: bool) -> None:
        """Continues the walk through the queue for one bounded part; with ``anew`` a walk may begin."""
        if self._walk is None and anew and self._queue.waiting:
            self._walk, self._walked_changes = self._standings(), self._queue.changes
            self._foresight = None
        self._reasons.clear()
        effort = 0
        for found in self._walk or ():
            if found is not None:
                self.send_standing(*found)
            effort += RANKING if found is None else 1
            if effort >= LOOK_MAX:
                return
        self._walk = None

    def _standings(self) -> Iterator[tuple[Request, Standing] | None]:
        """All waiting requests with their standings, in the order of their turns. Walks over a snapshot of the queue.

        Yields None after each part that was ranked without a standing to report.
        """
        ranked: list[list[tuple[tuple[bool, Rank], Request]]] = []
        everybody = iter(list(self._queue.waiting.values()))
        while some := list(islice(everybody, RANKED_MAX)):
            ranked.append(sorted(self._ranked(some), key=itemgetter(0)))
            yield None
        ahead, tenants = Ahead(self._fleet), dict[str, Ahead]()
        for _, request in heapq.merge(*ranked, key=itemgetter(0)):
            if self._queue.waiting.get(request.order) is not request:
                continue
            lane, own = request.lane, tenants.setdefault(request.session.tenant, Ahead(self._fleet))
            count, work_ns = ahead.of(lane)
            yield request, self._standing(request, count, own.of(lane)[0], work_ns)
            mean_ns = self._lengths.mean_ns(lane[1]) or 0
            ahead.add(lane, mean_ns)
            own.add(lane, mean_ns)

    def _ranked(self, requests: Iterable[Request]) -> Iterator[tuple[tuple[bool, Rank], Request]]:
        """The rank of each request. Requests that a quota stops rank after all others."""
        for request in requests:
            if self._queue.waiting.get(request.order) is request:
                yield (self._queue.is_barred(request, self._step.now_ns), self._queue.rank(request, self._step.now_ns)), request

    def _standing(self, request: Request, ahead: int, ahead_tenant: int, ahead_ns: int | None) -> Standing:
        wait = self._queue.crashes.bars(request.session)
        if wait is not None:
            return Standing(1 + ahead, "quota", wait.why(request.session), ahead_tenant, self._until(wait.until_ns))
        why = self._reason(request)
        estimate = None
        if ahead_ns is not None and why.code not in UNESTIMATED:
            estimate = self._foresee().estimate(request.lane, ahead, ahead_ns)
        return Standing(1 + ahead, why.code, why.cause, ahead_tenant, estimate)

    def _until(self, until_ns: int) -> Estimate:
        """Of a wait whose end is known."""
        left = max(0, until_ns - self._step.now_ns) / SECOND
        return Estimate(left, left, left, 0, 0.0, self._step.now_ns, self._step.unix_ns)

    def _foresee(self) -> Foresight:
        """The estimates from the present state. They are kept for a moment, since many requests use the same ones."""
        if self._foresight is None or self._step.now_ns - self._foresight.made_ns > FORESIGHT_NS:
            self._foresight = Foresight(self._fleet, self._lengths, self._step.now_ns, self._step.unix_ns)
        return self._foresight

    def _reason(self, request: Request) -> Why:
        session = request.session
        if not self._admission.accepting:
            return STORE
        if self._admission.awaited:
            return GATHERING
        demand_milli = self._queue.demand_milli(request.lane)
        barred = self._accounts.bar(session, request.span, demand_milli, self._step.now_ns)
        if barred is not None:
            account, bar = barred
            return Why(bar, account.why(bar, demand_milli, self._step.now_ns))
        key = (request.lane, session.tenant)
        why = self._reasons.get(key)
        if why is None:
            why = self._reasons[key] = self._parking_reason(session) or why_waiting(session, self._fleet, self._limits.workers_max)
        group = session.group
        together = 1 if group is None else len(group.waiting)
        return why if together < 2 else Why(why.code, Cause("ranks_wait", why.cause, count=together))

    def _parking_reason(self, session: Session) -> Why | None:
        """The reason that residents who may not be parked are in the way on every free device; None if that is not so."""
        seats = self._fleet.free_for(session) if self._accounts.bound_parking else []
        crowded = [seat for seat in seats if seat.is_open and self._is_crowded(seat)]
        return Why("shortage", Cause("not_parkable", device=crowded[0].device.id)) if crowded and len(crowded) == len(seats) else None

    def _is_crowded(self, seat: Seat) -> bool:
        return any(eviction_outcome(worker, self._fleet, self._accounts) == "stay" for worker in residents(seat))

    def _send_newcomer(self, request: Request) -> None:
        """Reports its standing to a request that has just come. All requests of its level count as ahead of it until the next look."""
        self._reasons.clear()
        ahead = max(0, self._queue.competition.rivals(request.lane, request.level) - 1)
        self.send_standing(request, self._standing(request, ahead, 0, None if ahead else 0))

    def send_standing(self, request: Request, standing: Standing) -> None:
        """Reports the standing to the client, if it is news."""
        if is_news(request.told, standing, self._step.now_ns):
            request.told = standing
            self._step.send(request.session.id, queued(request))
            self._step.show(request.session)

    def send(self, request: Request) -> None:
        """Reports to the client where its request stands, if that is news. A group that is placed when the event ends is told nothing
        yet."""
        session = request.session
        if session.group is not None and request.place is None and session.lease is None and not self._queue.has(request):
            return
        if request.place is not None:
            seat = self._fleet.seats[request.place.devices[0].id]
            self.send_standing(request, Standing(1, *why_placing(seat, request.session)))
        elif request.session.lease is not None:
            self.send_standing(request, Standing(1, *DRAINING))
        elif request.told is None:
            self._send_newcomer(request)


def queued(request: Request) -> wire.Queued:
    """What the client is told; it must have been told something before."""
    standing = request.told or Standing(1, "starting", "")
    estimate = standing.estimate
    return wire.Queued(
        request=request.number,
        position=standing.position,
        reason=standing.reason,
        cause=told(standing.reason),
        code=standing.code,
        ahead=standing.position - 1,
        ahead_tenant=standing.ahead_tenant,
        estimate=None if estimate is None else wire_estimate(estimate),
        since_ns=max(0, request.arrived_unix_ns),
    )
