"""What is reserved for requests that wait: devices, and all that is free of a make."""

from __future__ import annotations

from collections.abc import Iterable

from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Device, Lane, Make, Request, Seat
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.lease_lengths import LeaseLengths
from forebay_pool.queue.backfill import shadow_ns
from forebay_pool.queue.fair_share import Turns
from forebay_pool.queue.queue import Queue, Rank

SHADOW_SECONDS = 1
"""An estimate of when a request can start is used for so long."""


class Reservations:
    """What is free and cannot serve the first who waits yet is reserved for it.

    A device is reserved for a request whose session's tensors are there. All that is free of a make is reserved for the first request that
    can start on any device, so that nothing needs to be noted device by device.
    """

    def __init__(self, step: Step, worklist: Worklist, limits: Limits, fleet: Fleet, queue: Queue, lengths: LeaseLengths) -> None:
        self._step = step
        self._worklist = worklist
        self._limits = limits
        self._fleet = fleet
        self._queue = queue
        self._lengths = lengths
        self.by_device: dict[str, Request] = {}
        """All and only the devices that are reserved, each for a request in the queue whose session's tensors are there. The request lists
        the device in its ``blocks``."""
        self.by_make: dict[Make, Request] = {}
        """By make, the request that all that is free of the make is reserved for: it is in the queue, and any device will do for it."""
        self.stopped: dict[Make, Turns[Rank]] = {}
        """By make, at least the sessions in the queue that could start where their tensors are, were that not reserved in ``by_make``."""

    @property
    def any(self) -> bool:
        """True if anything is reserved."""
        return bool(self.by_device or self.by_make)

    def of_device(self, device: str) -> Request | None:
        """The request that the device itself is reserved for."""
        return self.by_device.get(device)

    def of_make(self, make: Make) -> Request | None:
        """The request that all that is free of the make is reserved for."""
        return self.by_make.get(make)

    def may_pass(self, request: Request, holder: Request) -> bool:
        """True if the request may take what is reserved for the holder: it ranks before it, or will be done before it could start
        (backfill)."""
        if self._queue.rank(request, self._step.now_ns) < self._queue.rank(holder, self._step.now_ns):
            return True
        if holder.aged or self._step.now_ns - holder.arrived_ns >= self._limits.backfill_seconds_max * SECOND:
            return False
        if self._step.now_ns >= holder.shadow_until_ns:
            holder.shadow_ns = shadow_ns(holder, self._fleet, self._lengths, self._step.now_ns)
            holder.shadow_until_ns = self._step.now_ns + SHADOW_SECONDS * SECOND
        length_ns = self._lengths.mean_ns(request.session.flavor)
        return holder.shadow_ns is None or length_ns is None or self._step.now_ns + length_ns <= holder.shadow_ns

    def contend(self, lane: Lane, newcomer: Request) -> None:
        """A newcomer that is first in its lane may be owed a reservation: what it waits for is offered again."""
        head = self._queue.head(lane, self._step.now_ns)
        if head is None or head[1] is not newcomer:
            return
        if lane[0]:
            self._worklist.offer(*(self._fleet.seats[device] for device in lane[0]))
        else:
            self._worklist.review(self._fleet.makes_of(lane[1]), gone=False)

    def leave(self, request: Request) -> None:
        """The request has left the queue: what was reserved for it is offered to others."""
        blocked, request.blocks = request.blocks, {}
        for device in blocked:
            del self.by_device[device]
        self._worklist.offer(*blocked.values())
        for make in [make for make, holder in self.by_make.items() if holder is request]:
            del self.by_make[make]
            self._worklist.review((make,), gone=True)
        for stopped in self.stopped.values():
            stopped.drop(request.session.id)

    def reserve(self, request: Request, seat: Seat) -> None:
        """Reserves the seat, or all of its make, for the request, which ranks first of those that cannot start."""
        make = seat.device.make
        known = self.by_make.get(make)
        if request.lane[0]:
            if self._comes_first(request, seat):
                self._reserve_device(seat, request)
        elif known is not request:
            self.by_make[make] = request
            if known is not None:
                self._worklist.review((make,), gone=True)

    def _comes_first(self, request: Request, seat: Seat) -> bool:
        """True if the seat is reserved for no request of a better rank."""
        holder = self.by_device.get(seat.device.id)
        if holder is None:
            return True
        now_ns = self._step.now_ns
        return holder is not request and self._queue.rank(request, now_ns) < self._queue.rank(holder, now_ns)

    def _reserve_device(self, seat: Seat, request: Request) -> None:
        """Reserves the seat for the request, instead of the request that had it."""
        holder = self.by_device.get(seat.device.id)
        if holder is not None:
            del holder.blocks[seat.device.id]
        self.by_device[seat.device.id] = request
        request.blocks[seat.device.id] = seat

    def hold_back(self, request: Request, devices: Iterable[Device]) -> None:
        """The request could start on the devices if their makes were not reserved. It is tried again when a reservation changes."""
        for make in {device.make: None for device in devices}:
            if make in self.by_make:
                self.stopped.setdefault(make, Turns()).put(request.session.id, self._queue.rank(request, self._step.now_ns))
