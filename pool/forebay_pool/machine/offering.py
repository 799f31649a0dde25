"""Offers what became free to whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator

from forebay_pool.machine.groups import Groups
from forebay_pool.model.types import Lane, Make, Request, Seat
from forebay_pool.queue.accounts import Account
from forebay_pool.queue.queue import Rank

STOPPED_MAX = 64
"""How many requests that wait for what a make's keeper has are looked at anew in a tick."""


class Offering(Groups):
    """Ends every event: seats with something free, and accounts with room for who sits on their bench, find each other."""

    def _offer_seats(self) -> None:
        """First those whom a quota stopped come back, as far as there is room for them, then all compete."""
        while self._regroup or self._loose or self._roused or self._back or self._unsettled or self._look_anew:
            while self._regroup:
                self._settle_group(self._regroup.popitem()[0])
            if self._roused:
                for account in list(self._roused):
                    if not self._rouse(account):
                        del self._roused[account]
            if self._back:
                for lane in list(self._back):
                    if not self._offer_to(lane):
                        del self._back[lane]
            if self._look_anew:
                self._look_anew = False
                self._free_up(*(self.fleet.seats[device] for device in self.queue.homes))
                self._unsettle(self.fleet.makes, gone=True)
            while self._loose:
                self._offer(self._loose.pop(next(iter(self._loose))))
            if self._unsettled:
                make = next(iter(self._unsettled))
                self._settle_make(make, self._unsettled.pop(make))

    def _rouse(self, account: Account) -> bool:
        """Lets as many come back from the account's bench as it has room for; whether there was anybody."""
        found = False
        room = account.room_milli
        while (benched := account.next_benched(self._now, room, self.queue.is_taken)) is not None:
            spot, demand_milli = benched
            found, room = True, None if room is None else room - demand_milli
            self.queue.put_back(spot)
            self._back[spot.lane] = len(self.queue) + 1
        return found

    def _offer_to(self, lane: Lane) -> bool:
        """Offers a place that the first of the lane could start at; True if there is one. The next of them may do so at another one."""
        head = self.queue.head(lane, self._now)
        if head is None or len(self.queue) >= self._back[lane]:
            return False
        self._back[lane] = len(self.queue)
        place = self.find_place(head[1])
        if place is not None:
            self._free_up(*self.fleet.seats_of(place))
        else:
            self._contend(lane, head[1])
        return place is not None

    def _offer(self, seat: Seat) -> None:
        """The seat goes to the first who can start with it, as often as there is one; what is left is kept for the first who cannot."""
        while (heads := self.heads_for(seat)) and any(self._starts_or_waits(heads, seat)):
            pass

    def _starts_or_waits(self, heads: list[Request], seat: Seat) -> Iterator[bool]:
        """Whether the next of the heads could start; the seat is kept for the first who cannot before others are asked."""
        kept = False
        for head in heads:
            yield self._starts(head)
            if not kept and self._waits_for(head, seat.device.model) and self.has_way(head, seat.device):
                kept = True
                self._keep_for(head, seat)

    def _keep_for(self, request: Request, seat: Seat) -> None:
        make = seat.device.make
        known = self._keepers.get(make)
        if request.lane[0]:
            if self._comes_first(request, seat):
                self._promise(seat, request)
        elif known is not request:
            self._keepers[make] = request
            if known is not None:
                self._unsettle((make,), gone=True)

    def _starts(self, request: Request) -> bool:
        """Claims a place for the request if there is one now."""
        return not self.stopping and self._start(request)

    def _waits_for(self, request: Request, model: str) -> bool:
        """Whether devices of the model are what it waits for: not a quota, nor a worker process that the pool may not start."""
        if not self.has_room_to_start(request):
            return False
        return self.fleet.policy.allows(model, request.session.tenant) and self._fits_quota(request, model)

    def _settle_make(self, make: Make, gone: bool) -> None:
        """Finds the make's keeper; if another one is gone, those start whom it stopped, as far as the new one does not."""
        known = self._keepers.get(make)
        while self._elect(make, gone):
            pass
        keeper = self._keepers.get(make)
        if not gone and known is not None and keeper is not known and keeper is not None and self._starts(keeper):
            return  # a quota stops the one before since, or it fell behind: nobody kept this one from starting any more
        if gone or known is not keeper:
            self._release_stopped(make, keeper)

    def _elect(self, make: Make, gone: bool) -> bool:
        """Whether somebody could start before it was known whom the make is kept for."""
        self._keepers.pop(make, None)
        for head in self.queue.heads_anywhere(self.fleet.served_by(make), self._now):
            if gone and self._starts(head):
                return True
            if make not in self._keepers and self._waits_for(head, make[0]):
                self._keepers[make] = head
                if not gone:
                    break
        return False

    def _release_stopped(self, make: Make, keeper: Request | None) -> None:
        """Offers the devices of those who do not come after the keeper."""
        stopped = self._stopped.get(make)
        until = None if keeper is None else self.queue.rank(keeper, self._now)
        while stopped is not None and (first := stopped.first(self._rank_of)) is not None and (until is None or first[1] < until):
            stopped.drop(first[0])
            self._offer_home(first[0])

    def _offer_home(self, session: str) -> None:
        """Offers the devices on which the session's tensors are."""
        worker = self.sessions[session].worker
        if worker is not None:
            self._free_up(*(self.fleet.seats[device.id] for device in worker.devices))

    def _rank_of(self, session: str) -> Rank | None:
        """Where the session stands in the queue; None if it does not."""
        known = self.sessions.get(session)
        request = None if known is None else known.request
        if request is None or not request.lane[0] or self.queue.waiting.get(request.order) is not request:
            return None
        return self.queue.rank(request, self._now)

    def _offer_again(self) -> None:
        """Time has passed: ranks are not what they were, and more may pass those for whom something is kept."""
        self._free_up(*(self.fleet.seats[device] for device in self._promised))
        self._unsettle(self.fleet.makes, gone=True)
        for stopped in self._stopped.values():
            for session in stopped.oldest(STOPPED_MAX):
                stopped.drop(session)
                if self._rank_of(session) is not None:
                    self._offer_home(session)
        self._offer_seats()

    def _comes_first(self, request: Request, seat: Seat) -> bool:
        """Whether nobody before it has the seat kept already."""
        holder = self._promised.get(seat.device.id)
        return holder is None or (holder is not request and self.queue.rank(request, self._now) < self.queue.rank(holder, self._now))

    def _fits_quota(self, request: Request, model: str) -> bool:
        """Whether its quota lets it have what it needs of this model: another model may do with less."""
        equivalents = self.fleet.flavors[request.session.flavor].equivalents
        needs = [e.count * e.share_milli for e in equivalents if e.model == model]
        return bool(needs) and min(needs) <= self.accounts.room_milli(request.session)

    def _promise(self, seat: Seat, request: Request) -> None:
        holder = self._promised.get(seat.device.id)
        if holder is not None:
            del holder.blocks[seat.device.id]
        self._promised[seat.device.id] = request
        request.blocks[seat.device.id] = seat

    def heads_for(self, seat: Seat) -> list[Request]:
        """Those whose turn it may be on the seat and whom no quota stops, by rank: the first of each lane."""
        return self.queue.heads_for(seat, self.fleet.flavors_of(seat), self._now) if seat.free_milli else []
