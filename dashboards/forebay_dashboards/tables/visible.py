"""The part of the pool's present that belongs on a visitor's page."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_service.identity import Identity

from forebay_dashboards.access import View, may_see
from forebay_dashboards.live.pool_copy import PoolCopy, Seen
from forebay_dashboards.rows.pool import Lease, Session
from forebay_dashboards.text.money import running_cost_nano


@dataclass(frozen=True)
class Running:
    """An open lease at the moment it is shown; ``cost_nano`` is None where nobody bills, or no price is known."""

    lease: Lease
    duration_ns: int
    cost_nano: int | None


def visible_leases(pool_copy: PoolCopy, view: View, visitor: Identity, now_ns: int) -> list[Running]:
    """The open leases of this page, with what they have used up to the monotonic ``now_ns``."""
    return [running(seen, now_ns) for seen in pool_copy.leases() if may_see(view, visitor, seen.row.owner)]


def visible_queue(pool_copy: PoolCopy, view: View, visitor: Identity) -> list[Session]:
    """The waiting sessions of this page."""
    return [session for session in pool_copy.queue() if may_see(view, visitor, session.owner)]


def running(seen: Seen[Lease], now_ns: int) -> Running:
    """The lease, older by the time since its row was made."""
    lease = seen.row
    duration_ns = lease.duration_ns + max(0, now_ns - seen.seen_ns)
    price = lease.price_nano_per_hour
    cost = None if price is None or lease.currency is None else running_cost_nano(duration_ns, price)
    return Running(lease, duration_ns, cost)
