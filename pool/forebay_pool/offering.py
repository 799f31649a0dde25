"""Offers what became free to whose turn it is."""

from __future__ import annotations

from forebay_pool.placing import Placing
from forebay_pool.quotas import Account
from forebay_pool.types import Place, Request, Seat


class Offering(Placing):
    """Ends every event: seats with something free, and accounts with room for who sits on their bench, find each other."""

    def _offer_seats(self) -> None:
        """First those whom a quota stopped come back, as far as there is room for them, then all compete."""
        while self._roused or self._loose or self._look_anew:
            for account in list(self._roused):
                if not self._rouse(account):
                    del self._roused[account]
            if self._look_anew:
                self._look_anew = False
                while self._start_first(self.line.heads(self._now)):
                    pass
            while self._loose:
                self._offer(self._loose.pop(next(iter(self._loose))))

    def _rouse(self, account: Account) -> bool:
        """Lets as many come back from the account's bench as it has room for; whether there was anybody."""
        found = False
        room = account.room_milli
        while (benched := account.next_benched(self._now, room, self.line.is_taken)) is not None:
            spot, demand_milli = benched
            found, room = True, None if room is None else room - demand_milli
            self.line.put_back(spot)
            head = self.line.head(spot.lane, self._now)
            place = None if head is None else self.find_place(head[1])
            if place is not None:
                self._free_up(*self.fleet.seats_of(place))
        return found

    def _offer(self, seat: Seat) -> None:
        """The seat goes to the first who can start with it, as often as there is one; what is left is kept for the first who cannot."""
        heads = self.heads_for(seat)
        while heads and self._start_first(heads):
            heads = self.heads_for(seat)
        fitting = (head for head in heads if self._lacks_devices(head) and self._fits_quota(head, seat))
        waits = next((head for head in fitting if self._has_way(head, seat)), None)
        if waits is not None and self._comes_first(waits, seat):
            self._promise(seat, waits)
            self._free_up(seat)

    def _start_first(self, heads: list[Request]) -> bool:
        """Claims a place for the first of them that can start now; whether there was one."""
        for request in heads if self.accepting and not self.stopping else ():
            place = self.find_place(request)
            if place is not None:
                self._leave_line(request)
                self._claim(request, place)
                return True
        return False

    def _lacks_devices(self, request: Request) -> bool:
        """Whether devices are what it waits for, rather than a worker process that the pool may not start."""
        return request.session.worker is not None or len(self.fleet.workers) < self.limits.workers_max

    def _has_way(self, request: Request, seat: Seat) -> bool:
        """Whether room can be made for it there: nothing is kept for who waits for residents that may not be parked."""
        return self._may_make_room(Place((seat.device,), seat.free_milli), request.session)

    def _comes_first(self, request: Request, seat: Seat) -> bool:
        """Whether nobody before it has the seat kept already."""
        holder = self._promised.get(seat.device.id)
        return holder is None or (holder is not request and self.line.rank(request, self._now) < self.line.rank(holder, self._now))

    def _fits_quota(self, request: Request, seat: Seat) -> bool:
        """Whether its quota lets it have what it needs of this model: another model may do with less."""
        equivalents = self.fleet.flavors[request.session.flavor].equivalents
        needs = [e.count * e.share_milli for e in equivalents if e.model == seat.device.model]
        return bool(needs) and min(needs) <= self.accounts.room_milli(request.session)

    def _promise(self, seat: Seat, request: Request) -> None:
        holder = self._promised.get(seat.device.id)
        if holder is not None:
            del holder.blocks[seat.device.id]
        self._promised[seat.device.id] = request
        request.blocks[seat.device.id] = seat

    def promised_to(self, device: str) -> Request | None:
        """Whom the device is kept for."""
        return self._promised.get(device)

    def heads_for(self, seat: Seat) -> list[Request]:
        """Those whose turn it may be on the seat and whom no quota stops, by rank: the first of each lane."""
        return self.line.heads_for(seat, self.fleet.flavors_of(seat), self._now) if seat.free_milli else []
