"""Offers what became free to the requests whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.groups import Groups
from forebay_pool.machine.leasing.place_finder import PlaceFinder
from forebay_pool.machine.leasing.reservations import Reservations
from forebay_pool.model.types import Lane, Make, Request, Seat, Session
from forebay_pool.placement.fleet import Fleet
from forebay_pool.queue.accounts import Account, Accounts
from forebay_pool.queue.queue import Queue, Rank

STOPPED_MAX = 64
"""How many requests that the reservation of a make stopped are tried again in a tick."""
MOVERS_MAX = 4_096
"""At most this many requests of the queue are examined in a tick, to move those whose devices stay busy."""
MOVES_MAX = 64
"""For at most this many of them a tick searches another place."""


class Offering:
    """Ends every event: offers free seats to the queue, and room in accounts to the requests on their bench."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        admission: Admission,
        sessions: dict[str, Session],
        fleet: Fleet,
        queue: Queue,
        accounts: Accounts,
        reservations: Reservations,
        places: PlaceFinder,
        granting: Granting,
        groups: Groups,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._admission = admission
        self._sessions = sessions
        self._fleet = fleet
        self._queue = queue
        self._accounts = accounts
        self._reservations = reservations
        self._places = places
        self._granting = granting
        self._groups = groups
        self._movers: Iterator[Request] | None = None
        """Requests of the queue that have yet to be looked at for a move; None if a walk has come to the end."""

    def offer_all(self) -> None:
        """Empties the worklist. Requests that a quota stopped return first, as far as their account has room; then all compete."""
        work = self._worklist
        while work.groups or work.seats or work.accounts or work.lanes or work.makes or work.whole_queue:
            while work.groups:
                self._groups.settle(work.groups.popitem()[0])
            for account in list(work.accounts):
                if not self._return_benched(account):
                    del work.accounts[account]
            for lane in list(work.lanes):
                if not self._offer_to(lane):
                    del work.lanes[lane]
            if work.whole_queue:
                work.whole_queue = False
                work.offer(*(self._fleet.seats[device] for device in self._queue.homes))
                work.review(self._fleet.makes, gone=True)
            while work.seats:
                self._offer(work.seats.pop(next(iter(work.seats))))
            if work.makes:
                make = next(iter(work.makes))
                self._review_make(make, work.makes.pop(make))

    def _return_benched(self, account: Account) -> bool:
        """Returns as many requests from the account's bench to the queue as it has room for. True if there were any."""
        found = False
        room = account.room_milli
        while (benched := account.next_benched(self._step.now_ns, room, self._queue.is_taken)) is not None:
            spot, demand_milli = benched
            found, room = True, None if room is None else room - demand_milli
            self._queue.put_back(spot)
            self._worklist.lanes[spot.lane] = len(self._queue) + 1
        return found

    def _offer_to(self, lane: Lane) -> bool:
        """Offers a place at which the head of the lane could start. True if there is one: the next in the lane may then start elsewhere."""
        head = self._queue.head(lane, self._step.now_ns)
        if head is None or len(self._queue) >= self._worklist.lanes[lane]:
            return False
        self._worklist.lanes[lane] = len(self._queue)
        place = self._places.find(head[1])
        if place is not None:
            self._worklist.offer(*self._fleet.seats_of(place))
        else:
            self._reservations.contend(lane, head[1])
        return place is not None

    def _offer(self, seat: Seat) -> None:
        """Gives the seat to the first request that can start with it, as often as there is one. The rest is reserved for the first that
        cannot."""
        while (heads := self.heads_for(seat)) and any(self._starts_or_waits(heads, seat)):
            pass

    def _starts_or_waits(self, heads: list[Request], seat: Seat) -> Iterator[bool]:
        """Yields for each head whether it started. The seat is reserved for the first that cannot start, before others are tried."""
        reserved = False
        for head in heads:
            yield self._starts(head)
            if not reserved and self._waits_for(head, seat.device.model) and self._places.can_make_room(head, seat.device):
                reserved = True
                self._reservations.reserve(head, seat)

    def _starts(self, request: Request) -> bool:
        """Claims a place for the request. True if there was one."""
        return not self._admission.stopping and self._granting.start(request)

    def _waits_for(self, request: Request, model: str) -> bool:
        """True if the request waits for devices of the model, and not for a quota or for a worker process that may not be started."""
        if not self._places.has_room_to_start(request):
            return False
        return self._fleet.policy.allows(model, request.session.tenant) and self._fits_quota(request, model)

    def _review_make(self, make: Make, gone: bool) -> None:
        """Finds the request that the make is reserved for. If the one before is gone, the requests that it stopped may start."""
        known = self._reservations.by_make.get(make)
        while self._reserve_make(make, gone):
            pass
        keeper = self._reservations.by_make.get(make)
        if not gone and known is not None and keeper is not known and keeper is not None and self._starts(keeper):
            return  # a quota stops the request before now, or it ranks lower: its reservation no longer stops this request
        if gone or known is not keeper:
            self._release_stopped(make, keeper)

    def _reserve_make(self, make: Make, gone: bool) -> bool:
        """Reserves the make for the first request that cannot start. True if a request started meanwhile: then try again."""
        self._reservations.by_make.pop(make, None)
        for head in self._queue.heads_anywhere(self._fleet.served_by(make), self._step.now_ns):
            if gone and self._starts(head):
                return True
            if make not in self._reservations.by_make and self._waits_for(head, make[0]):
                self._reservations.by_make[make] = head
                if not gone:
                    break
        return False

    def _release_stopped(self, make: Make, keeper: Request | None) -> None:
        """Offers the devices of stopped requests that rank before the one that the make is reserved for."""
        stopped = self._reservations.stopped.get(make)
        until = None if keeper is None else self._queue.rank(keeper, self._step.now_ns)
        while stopped is not None and (first := stopped.first(self._rank_of)) is not None and (until is None or first[1] < until):
            stopped.drop(first[0])
            self._offer_home(first[0])

    def _offer_home(self, session: str) -> None:
        """Offers the devices on which the session's tensors are, or that see its image."""
        self._worklist.offer(*(self._fleet.seats[device] for device in self._fleet.homes.of(self._sessions[session])))

    def _rank_of(self, session: str) -> Rank | None:
        """The session's rank in the queue; None if it does not wait there for its devices."""
        known = self._sessions.get(session)
        request = None if known is None else known.request
        if request is None or not request.lane[0] or self._queue.waiting.get(request.order) is not request:
            return None
        return self._queue.rank(request, self._step.now_ns)

    def offer_again(self) -> None:
        """Time has passed: ranks have changed, and more requests may pass those that have a reservation."""
        self._worklist.offer(*(self._fleet.seats[device] for device in self._reservations.by_device))
        self._worklist.review(self._fleet.makes, gone=True)
        for stopped in self._reservations.stopped.values():
            for session in stopped.oldest(STOPPED_MAX):
                stopped.drop(session)
                if self._rank_of(session) is not None:
                    self._offer_home(session)
        self.offer_all()

    def _fits_quota(self, request: Request, model: str) -> bool:
        """True if the quota has room for what the request needs of this model. It may need less of another model."""
        equivalents = self._fleet.homes.flavor_of(request.session).equivalents
        needs = [e.count * e.share_milli for e in equivalents if e.model == model]
        return bool(needs) and min(needs) <= self._accounts.room_milli(request.session)

    def heads_for(self, seat: Seat) -> list[Request]:
        """The first of each lane that may be served on the seat and that no quota stops, by rank."""
        return self._queue.heads_for(seat, self._fleet.flavors_of(seat), self._step.now_ns) if seat.free_milli else []

    def move_waiting(self) -> None:
        """Moves requests whose own devices stay busy to devices that are free now and needed by no request before them.

        A tick looks at a bounded number of them; the next tick goes on from there.
        """
        walk = self._movers or iter(list(self._queue.waiting.values()))
        self._movers = walk
        full: set[tuple[str, str]] = set()
        looked = tries = 0
        for request in islice(walk, MOVERS_MAX):
            looked += 1
            session = request.session
            if session.worker is None or (session.flavor, session.tenant) in full or not self._queue.has(request):
                continue
            if self._queue.is_barred(request, self._step.now_ns):
                continue
            if not self._granting.move(request) and self._places.choose(session) is None:
                full.add((session.flavor, session.tenant))
            tries += 1
            if tries == MOVES_MAX:
                return
        if looked < MOVERS_MAX:
            self._movers = None
