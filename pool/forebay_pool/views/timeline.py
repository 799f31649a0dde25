"""Who held which device when, as rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from forebay_wire.messages import Span
from typing_extensions import TypedDict  # pydantic reads typing's own from Python 3.12 on

from forebay_pool.model.timeline import Holding, Stretch
from forebay_pool.model.types import Lease, Session
from forebay_pool.views.rows import SpanRow, span_row


class HolderRow(TypedDict):
    """Whose lease it was, and for what."""

    lease: str
    tenant: str
    user: str
    flavor: str
    span: SpanRow


class StretchRow(TypedDict):
    """``leases`` of them held the device for ``held_ns`` from ``started_ns`` to ``ended_ns``; ``holder`` is told where it is one."""

    device: str
    lane: int
    """Tells leases apart that have shares of a device at the same time; from 0."""
    started_ns: int
    ended_ns: int
    held_ns: int
    leases: int
    is_open: bool
    holder: HolderRow | None


class Timeline(TypedDict):
    """Stretches by device and time; with ``more`` there was too much to read, and the oldest of it is not there."""

    since_ns: int
    until_ns: int
    more: bool
    stretches: list[StretchRow]


def open_holdings(
    sessions: Iterable[Session], devices: frozenset[str], now_ns: int
) -> tuple[list[Holding], dict[str, Lease]]:
    """Of leases that are open, as far as no usage record tells of them; and those leases by name."""
    found: list[Holding] = []
    leases: dict[str, Lease] = {}
    for session in sessions:
        lease = session.lease
        if lease is None:
            continue
        here = [device.id for device in lease.place.devices if device.id in devices]
        if here:
            leases[lease.id] = lease
            started_ns = min(now_ns, lease.opened_unix_ns + lease.metered_ns)
            found += [Holding(device, started_ns, now_ns, lease.id) for device in here]
    return found, leases


def stretch_row(stretch: Stretch, segments: Mapping[str, Any], leases: Mapping[str, Lease]) -> StretchRow:
    """``segments`` are usage records by name, ``leases`` open leases by name."""
    last = stretch.last
    holder: HolderRow | None = None
    if stretch.leases == 1 and last.segment is None:
        holder = _open_holder(leases[last.lease])
    elif stretch.leases == 1 and last.segment is not None and last.segment in segments:
        holder = _holder(segments[last.segment])
    return {
        "device": stretch.device,
        "lane": stretch.lane,
        "started_ns": stretch.started_ns,
        "ended_ns": stretch.ended_ns,
        "held_ns": stretch.held_ns,
        "leases": stretch.leases,
        "is_open": stretch.is_open,
        "holder": holder,
    }


def _open_holder(lease: Lease) -> HolderRow:
    session = lease.session
    return HolderRow(
        lease=lease.id, tenant=session.tenant, user=session.user, flavor=lease.flavor.name, span=span_row(lease.span)
    )


def _holder(row: Any) -> HolderRow:
    """``row`` is of the usage records."""
    span = span_row(Span(**json.loads(row.span)))
    return HolderRow(lease=row.lease, tenant=row.tenant, user=row.user, flavor=row.flavor, span=span)
