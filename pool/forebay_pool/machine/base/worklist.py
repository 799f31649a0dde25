"""What the event at hand may have freed: it is offered to the queue when the event ends."""

from __future__ import annotations

from collections.abc import Iterable

from forebay_pool.model.types import Group, Lane, Make, Seat
from forebay_pool.queue.accounts import Account


class Worklist:
    """The work that is left before the event is over. Every part adds to it and ``Offering`` alone empties it: it is empty between
    events."""

    __slots__ = ("accounts", "groups", "lanes", "makes", "seats", "whole_queue")

    def __init__(self) -> None:
        self.groups: dict[Group, None] = {}
        """Groups of which a member may have changed."""
        self.accounts: dict[Account, None] = {}
        """Accounts that may have room for those who sit on their bench."""
        self.lanes: dict[Lane, int] = {}
        """Lanes that requests returned to from a bench; a place is looked for once the queue is shorter than the number."""
        self.whole_queue = False
        """Whether this event may allow any queued request to start: the whole queue is then looked through again."""
        self.seats: dict[str, Seat] = {}
        """Seats that may have something free, by device."""
        self.makes: dict[Make, bool] = {}
        """Makes that may have to be reserved for another request, and whether the one that had the reservation is gone."""

    def offer(self, *seats: Seat) -> None:
        """The seats may have something free: the queue is offered them."""
        for seat in seats:
            self.seats[seat.device.id] = seat

    def review(self, makes: Iterable[Make], gone: bool) -> None:
        """The makes may have to be reserved for other requests. ``gone``: the request that held the reservation is gone."""
        for make in makes:
            self.makes[make] = gone or self.makes.get(make, False)
