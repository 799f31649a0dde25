"""When somebody who waits for more than is free will be able to start: whoever is done by then may pass."""

from __future__ import annotations

from forebay_pool.estimates import Lengths
from forebay_pool.fleet import Fleet
from forebay_pool.types import Request


def shadow_ns(request: Request, fleet: Fleet, lengths: Lengths, now_ns: int) -> int | None:
    """When enough compute will be free for the request, by what leases last on average; None when nobody knows.

    The "shadow time" of EASY backfill (D. Lifka, *The ANL/IBM SP Scheduling System*, JSSPP 1995), with averages in the place of users'
    promises. A lease that has lasted longer than the average is expected to last as long again.
    """
    devices, name = request.lane
    flavor = fleet.flavors[name]
    seats = [fleet.seats[device] for device in devices] or fleet.may_serve(flavor)
    needed = fleet.demand_milli(request.lane) - sum(seat.free_milli for seat in seats)
    ends: list[tuple[int, int]] = []
    for seat in seats:
        for session, hold in seat.holders.items():
            length_ns = lengths.mean_ns(session.flavor)
            if length_ns is None:
                return None
            began_ns = now_ns if session.lease is None else session.lease.opened_ns
            ends.append((began_ns + length_ns if began_ns + length_ns > now_ns else now_ns + length_ns, hold.share_milli))
    for end_ns, share_milli in sorted(ends):
        needed -= share_milli
        if needed <= 0:
            return end_ns
    return None
