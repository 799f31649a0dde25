"""Tells those who wait how they stand: position, why, who is ahead, how long it takes."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_wire import messages as wire

from forebay_pool.crowd import Crowd
from forebay_pool.estimates import estimate_seconds, rough
from forebay_pool.explanations import STORE, Why, why_waiting
from forebay_pool.instructions import Show
from forebay_pool.leases import Leases
from forebay_pool.line import Rank
from forebay_pool.parking import fate, stays_sentence
from forebay_pool.room import residents
from forebay_pool.types import Lane, Look, Request, Seat, Session, Standing

LOOK_MAX = 256
"""So many of the line are looked at, and told, at a time; a longer line is gone through in several looks."""
UNESTIMATED = ("quota", "budget", "store")
"""Waits whose end no lease's length tells."""


class Telling(Leases):
    """Goes through the line, a bounded part at a time."""

    _walk: Iterator[tuple[Request, Standing]] | None = None
    _walked_changes = -1

    @property
    def line_changed(self) -> bool:
        """Whether a look has anything to tell."""
        return self._walk is not None or (self.line.changes != self._walked_changes and bool(self.line.waiting))

    def _looked(self, event: Look) -> None:
        """Goes on telling, and begins anew where the line changed since it began last."""
        self._tell_line(self.line.changes != self._walked_changes)

    def _tell_line(self, anew: bool) -> None:
        if self._walk is None and anew and self.line.waiting:
            self._walk, self._walked_changes = self._standings(), self.line.changes
        if self._walk is not None:
            for _ in range(LOOK_MAX):
                found = next(self._walk, None)
                if found is None:
                    self._walk = None
                    return
                self._tell_queued(*found)

    def _standings(self) -> Iterator[tuple[Request, Standing]]:
        """All who wait, in the order in which their turns would come as things are; a walk over a snapshot of the line."""
        everyone, work = Crowd(self.fleet), Crowd(self.fleet)
        tenants: dict[str, Crowd] = {}
        for _, request in sorted(self._ranked(), key=lambda ranked: ranked[0]):
            if self.line.waiting.get(request.order) is not request:
                continue
            lane, own = request.lane, tenants.setdefault(request.session.tenant, Crowd(self.fleet))
            ahead, ahead_own, ahead_ns = (crowd.rivals(lane, 0) for crowd in (everyone, own, work))
            yield request, self._standing(request, ahead, ahead_own, ahead_ns)
            everyone.add(lane, 0)
            own.add(lane, 0)
            work.add(lane, 0, self.lengths.mean_ns(lane[1]) or 0)

    def _ranked(self) -> Iterator[tuple[tuple[bool, Rank], Request]]:
        """Everybody's rank; whom a quota stops comes after those whom none does."""
        known: dict[tuple[str, str, Lane, int], tuple[bool, Rank]] = {}
        for request in self.line.waiting.values():
            session = request.session
            key = (session.tenant, session.user, request.lane, request.level)
            if key not in known:
                barred = self.accounts.bar(session, self.line.demand_milli(request.lane), self._now) is not None
                known[key] = (barred, self.line.rank(request, self._now))
            barred, rank = known[key]
            yield (barred, (*rank[:3], request.order)), request

    def _standing(self, request: Request, ahead: int, ahead_tenant: int, ahead_ns: int | None) -> Standing:
        why = self._why(request)
        own_ns = self.lengths.mean_ns(request.session.flavor)
        estimate = None
        if own_ns is not None and ahead_ns is not None and why.code not in UNESTIMATED:
            estimate = estimate_seconds(ahead_ns, own_ns, self.fleet.slots(request.lane))
        return Standing(1 + ahead, why.code, why.sentence, ahead_tenant, estimate)

    def _why(self, request: Request) -> Why:
        session = request.session
        if not self.accepting:
            return STORE
        demand_milli = self.line.demand_milli(request.lane)
        barred = self.accounts.bar(session, demand_milli, self._now)
        if barred is not None:
            account, bar = barred
            return Why(bar, account.why(bar, demand_milli, self._now))
        return self._why_kept_out(session) or why_waiting(session, self.fleet, self.limits.workers_max)

    def _why_kept_out(self, session: Session) -> Why | None:
        """Whether somebody who may not be parked is in the way wherever something is free."""
        seats = self.fleet.free_for(session) if self.accounts.bound_parking else []
        crowded = [seat for seat in seats if seat.is_open and self._is_crowded(seat)]
        return Why("shortage", stays_sentence(crowded[0])) if crowded and len(crowded) == len(seats) else None

    def _is_crowded(self, seat: Seat) -> bool:
        workers = self.fleet.workers.values()
        return any(fate(worker, seat, self.accounts, workers) == "stay" for worker in residents(seat))

    def _tell_newcomer(self, request: Request) -> None:
        """Tells somebody who has just come into the line: as if all of its level came before it, until the next look knows better."""
        ahead = max(0, self.line.crowd.rivals(request.lane, request.level) - 1)
        self._tell_queued(request, self._standing(request, ahead, 0, None if ahead else 0))

    def _tell_queued(self, request: Request, standing: Standing) -> None:
        if request.told is None or _steps(request.told) != _steps(standing):
            request.told = standing
            self._tell(request.session.id, queued(request))
            self._out.append(Show(request.session))


def _steps(standing: Standing) -> tuple[object, ...]:
    """What must change for it to be news: a position far back, or a long estimate, changes by steps."""
    estimate = None if standing.estimate_seconds is None else rough(standing.estimate_seconds)
    return rough(standing.position), standing.code, standing.reason, rough(standing.ahead_tenant), estimate


def queued(request: Request) -> wire.Queued:
    """What the client is told; it must have been told something before."""
    told = request.told or Standing(1, "starting", "")
    return wire.Queued(
        request=request.number,
        position=told.position,
        reason=told.reason,
        code=told.code,
        ahead=told.position - 1,
        ahead_tenant=told.ahead_tenant,
        estimate_seconds=told.estimate_seconds,
        since_ns=max(0, request.arrived_unix_ns),
    )
