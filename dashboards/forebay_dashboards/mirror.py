"""The pool's present, as its event stream tells it: leases, sessions and devices. No I/O; the clock is the caller's."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from pydantic import ValidationError

from forebay_dashboards.access import Owner
from forebay_dashboards.event_stream import ServerEvent
from forebay_dashboards.rows import Device, Lease, Session

Topic = Literal["leases", "sessions", "devices", "usage", "prices", "feed"]
LiveRow = Lease | Session | Device
R = TypeVar("R", Lease, Session, Device)

_ROWS: dict[str, tuple[Topic, type[LiveRow]]] = {
    "lease": ("leases", Lease),
    "session": ("sessions", Session),
    "device": ("devices", Device),
}


@dataclass(frozen=True)
class Seen(Generic[R]):
    """A row and the monotonic moment it was made at, as far as we know."""

    row: R
    seen_ns: int


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


class Mirror:
    """Rows by identifier. Empty until the first snapshot."""

    def __init__(self) -> None:
        self._leases: dict[str, Seen[Lease]] = {}
        self._sessions: dict[str, Seen[Session]] = {}
        self._devices: dict[str, Seen[Device]] = {}

    def replace(self, snapshot: Snapshot, now_ns: int) -> list[Lease]:
        """Takes over a snapshot; returns the leases that ended unseen."""
        ended = [seen.row for key, seen in self._leases.items() if key not in {lease.key for lease in snapshot.leases}]
        self._leases = _index(snapshot.leases, now_ns)
        self._sessions = _index(snapshot.sessions, now_ns)
        self._devices = _index(snapshot.devices, now_ns)
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

    def leases(self) -> list[Seen[Lease]]:
        """Open leases, the longest running first."""
        return sorted(self._leases.values(), key=lambda seen: (seen.row.opened_at_ns, seen.row.lease))

    def queue(self) -> list[Session]:
        """Sessions that wait for a lease, the next one first."""
        waiting = [seen.row for seen in self._sessions.values() if seen.row.state == "queued"]
        return sorted(waiting, key=lambda row: (row.position or 0, row.since_ns, row.session))

    def sessions(self) -> list[Session]:
        """All sessions, the newest first."""
        return sorted((seen.row for seen in self._sessions.values()), key=lambda row: (-row.since_ns, row.session))

    def devices(self) -> list[Device]:
        """All devices by node and name."""
        return sorted((seen.row for seen in self._devices.values()), key=lambda row: (row.node, row.device))

    def _put(self, row: LiveRow, removed: bool, now_ns: int) -> None:
        if isinstance(row, Lease):
            _keep(self._leases, row, removed, now_ns)
        elif isinstance(row, Session):
            _keep(self._sessions, row, removed, now_ns)
        else:
            _keep(self._devices, row, removed, now_ns)


def _index(rows: Iterable[R], now_ns: int) -> dict[str, Seen[R]]:
    return {row.key: Seen(row, now_ns) for row in rows}


def _keep(rows: dict[str, Seen[R]], row: R, removed: bool, now_ns: int) -> None:
    if removed:
        rows.pop(row.key, None)
    else:
        rows[row.key] = Seen(row, now_ns)
