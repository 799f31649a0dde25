"""When somebody who waits for more than is free will be able to start: whoever is done by then may pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from forebay_pool.model.types import Request, Seat
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.lease_lengths import LeaseLengths


def shadow_ns(request: Request, fleet: Fleet, lengths: LeaseLengths, now_ns: int) -> int | None:
    """When enough compute will be free for the request, by what leases last on average; None when nobody knows.

    The "shadow time" of EASY backfill (D. Lifka, *The ANL/IBM SP Scheduling System*, JSSPP 1995), with averages in the place of users'
    promises. A lease that has lasted longer than the average is expected to last as long again.
    """
    devices, name, *_ = request.lane
    needed = fleet.demand_milli(request.lane)
    if devices:
        seats = [fleet.seats[device] for device in devices]
        needed -= sum(seat.free_milli for seat in seats)
        ends: Iterable[tuple[int, int]] = sorted(end for seat in seats for end in _ends(seat, lengths, now_ns))
    else:
        makes = fleet.makes_of(name)
        needed -= sum(fleet.ends.free_milli[make] for make in makes)
        ends = fleet.ends.next_ends(makes, lengths, now_ns)
    for end_ns, share_milli in ends if lengths.known else ():
        needed -= share_milli
        if needed <= 0:
            return end_ns
    return None


def _ends(seat: Seat, lengths: LeaseLengths, now_ns: int) -> Iterator[tuple[int, int]]:
    for session, hold in seat.holders.items():
        length_ns = lengths.mean_ns(session.flavor) or 0
        began_ns = now_ns if session.lease is None else session.lease.opened_ns
        yield began_ns + length_ns if began_ns + length_ns > now_ns else now_ns + length_ns, hold.share_milli
