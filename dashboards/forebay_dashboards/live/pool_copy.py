"""The pool's present, as its event stream tells it: leases, sessions, devices and nodes. No I/O; the clock is the caller's."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pydantic import ValidationError

from forebay_dashboards.access import Owner
from forebay_dashboards.live.event_stream import ServerEvent
from forebay_dashboards.rows.pool import Device, Lease, Node, Session

Topic = Literal["leases", "sessions", "devices", "usage", "prices", "tenants", "feed"]
LiveRow = Lease | Session | Device | Node
R = TypeVar("R")
"""A row of a table."""
L = TypeVar("L", Lease, Session, Device, Node)

_ROWS: dict[str, tuple[Topic, type[LiveRow]]] = {
    "lease": ("leases", Lease),
    "session": ("sessions", Session),
    "device": ("devices", Device),
    "node": ("devices", Node),
}


@dataclass(frozen=True)
class Seen(Generic[R]):
    """A row, the monotonic moment it was made at, as far as we know, and the text that it is searched by."""

    row: R
    seen_ns: int
    text: str = ""


@dataclass(frozen=True)
class Change:
    """Something on the pages of those who may see facts of ``owner`` is out of date."""

    topic: Topic
    owner: Owner
    row: LiveRow
    removed: bool


@dataclass(frozen=True)
class Snapshot:
    """All rows at one moment."""

    leases: tuple[Lease, ...]
    sessions: tuple[Session, ...]
    devices: tuple[Device, ...]
    nodes: tuple[Node, ...] = ()


class PoolCopy:
    """Rows by identifier. Empty until the first snapshot."""

    def __init__(self) -> None:
        self._leases: dict[str, Seen[Lease]] = {}
        self._sessions: dict[str, Seen[Session]] = {}
        self._devices: dict[str, Seen[Device]] = {}
        self._nodes: dict[str, Seen[Node]] = {}

    def replace(self, snapshot: Snapshot, now_ns: int) -> list[Lease]:
        """Takes over a snapshot; returns the leases that ended unseen."""
        ended = [seen.row for key, seen in self._leases.items() if key not in {lease.key for lease in snapshot.leases}]
        self._leases = _index(snapshot.leases, now_ns)
        self._sessions = _index(snapshot.sessions, now_ns)
        self._devices = _index(snapshot.devices, now_ns)
        self._nodes = _index(snapshot.nodes, now_ns)
        return ended

    def apply(self, event: ServerEvent, now_ns: int) -> Change | None:
        """Takes over one event; None for one that is not about rows. Raises ValueError for one that cannot be read."""
        known = _ROWS.get(event.name)
        if known is None:
            return None
        topic, model = known
        try:
            data = json.loads(event.data)
            removed = data.get("removed") is True
            row = model.model_validate(data)
        except (AttributeError, ValidationError) as error:
            raise ValueError(f"a {event.name} event that cannot be read: {error}") from None
        self._put(row, removed, now_ns)
        return Change(topic=topic, owner=row.owner, row=row, removed=removed)

    def waiting(self) -> list[Seen[Session]]:
        """Sessions that wait for a lease, as they came."""
        return [seen for seen in self._sessions.values() if seen.row.state == "queued"]

    def leases(self) -> list[Seen[Lease]]:
        """Open leases, the longest running first."""
        return sorted(self._leases.values(), key=lambda seen: (seen.row.opened_at_ns, seen.row.lease))

    def queue(self) -> list[Session]:
        """Sessions that wait for a lease, the next one first."""
        return sorted((seen.row for seen in self.waiting()), key=lambda row: (row.position or 0, row.since_ns, row.session))

    def devices(self) -> list[Device]:
        """All devices by node and name."""
        return sorted((seen.row for seen in self._devices.values()), key=lambda row: (row.node, row.device))

    def nodes(self) -> list[Node]:
        """All nodes by name."""
        return sorted((seen.row for seen in self._nodes.values()), key=lambda row: row.node)

    def seen_leases(self) -> Collection[Seen[Lease]]:
        """Open leases as they came."""
        return self._leases.values()

    def seen_sessions(self) -> Collection[Seen[Session]]:
        """All sessions as they came."""
        return self._sessions.values()

    def seen_devices(self) -> Collection[Seen[Device]]:
        """All devices as they came."""
        return self._devices.values()

    def lease(self, key: str) -> Lease | None:
        """An open lease, by its name."""
        seen = self._leases.get(key)
        return None if seen is None else seen.row

    def session(self, key: str) -> Session | None:
        """A session, by its name."""
        seen = self._sessions.get(key)
        return None if seen is None else seen.row

    def device(self, key: str) -> Device | None:
        """A device, by its name."""
        seen = self._devices.get(key)
        return None if seen is None else seen.row

    def node(self, key: str) -> Node | None:
        """A node, by its name."""
        seen = self._nodes.get(key)
        return None if seen is None else seen.row

    def _put(self, row: LiveRow, removed: bool, now_ns: int) -> None:
        if isinstance(row, Lease):
            _keep(self._leases, row, removed, now_ns)
        elif isinstance(row, Session):
            _keep(self._sessions, row, removed, now_ns)
        elif isinstance(row, Device):
            _keep(self._devices, row, removed, now_ns)
        else:
            _keep(self._nodes, row, removed, now_ns)


def _index(rows: Iterable[L], now_ns: int) -> dict[str, Seen[L]]:
    return {row.key: Seen(row, now_ns, text_of(row)) for row in rows}


def _keep(rows: dict[str, Seen[L]], row: L, removed: bool, now_ns: int) -> None:
    if removed:
        rows.pop(row.key, None)
    else:
        rows[row.key] = Seen(row, now_ns, text_of(row))


def text_of(row: LiveRow) -> str:
    """What a row is found by, in small letters."""
    words: tuple[str | None, ...]
    match row:
        case Lease():
            words = (row.lease, row.session, row.tenant, row.user, row.span.label, row.flavor, row.device_model, row.node, row.currency)
        case Session():
            label = None if row.span is None else row.span.label
            words = (row.session, row.tenant, row.user, label, row.process, row.flavor, row.device_model, row.state, row.code, row.reason)
        case Device():
            words = (row.device, row.node, row.kind, row.model, row.vendor, row.state, row.cause, *row.leases, *row.residents)
        case Node():
            words = (row.node, row.switch, row.state, row.cause)
    return "\n".join(word for word in words if word).casefold()
