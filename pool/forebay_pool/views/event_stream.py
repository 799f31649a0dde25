"""Who watches the pool: rows that changed go out to server-sent-event streams, a few times a second."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from forebay_pool.model.types import Lease, Node, Seat, Session
from forebay_pool.views.rows import device_row, lease_row, node_row, session_row

FLUSH_SECONDS = 0.05
"""Changes of one row within so long are shown as one; half of the time within which a change must have been told."""
WATCHERS_MAX = 1_000
PENDING_EVENTS_MAX = 10_000
"""A watcher that is behind by more is let go; it connects again and reads everything anew."""


@dataclass(eq=False)
class Watcher:
    """One stream. ``owner`` is (tenant, user) of somebody who sees only what is theirs, None for those who see all."""

    owner: tuple[str, str] | None
    events: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(PENDING_EVENTS_MAX))
    behind: bool = False

    def let_go(self) -> None:
        """Ends the stream, whatever it still waits for."""
        self.behind = True
        if self.events.empty():
            self.events.put_nowait("")


class EventStream:
    """Collects changed records, and tells watchers their rows."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._watchers: set[Watcher] = set()
        self._dirty: dict[int, Session | Lease | Seat | Node] = {}

    @property
    def full(self) -> bool:
        return len(self._watchers) >= WATCHERS_MAX

    def watch(self, owner: tuple[str, str] | None) -> Watcher:
        watcher = Watcher(owner)
        self._watchers.add(watcher)
        return watcher

    def leave(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def mark(self, record: Session | Lease | Seat | Node) -> None:
        """The record changed."""
        if self._watchers:
            self._dirty[id(record)] = record

    def flush(self) -> None:
        """Sends every changed row once, as it is now."""
        dirty, self._dirty = self._dirty, {}
        now_ns = self._clock_ns()
        for record in dirty.values():
            name, row, owner = _event_of(record, now_ns)
            text = f"event: {name}\ndata: {json.dumps(row)}\n\n"
            for watcher in self._watchers:
                if watcher.owner is None or watcher.owner == owner:
                    _offer(watcher, text)


def _offer(watcher: Watcher, text: str) -> None:
    try:
        watcher.events.put_nowait(text)
    except asyncio.QueueFull:
        watcher.let_go()


def _event_of(record: Session | Lease | Seat | Node, now_ns: int) -> tuple[str, Mapping[str, object], tuple[str, str] | None]:
    match record:
        case Lease():
            return "lease", {**lease_row(record, now_ns), **_end(record.state == "closed")}, (record.session.tenant, record.session.user)
        case Session():
            return "session", {**session_row(record), **_end(record.state in ("lost", "ended"))}, (record.tenant, record.user)
        case Seat():
            return "device", {**device_row(record), **_end(record.node.is_forgotten)}, None
        case Node():
            return "node", {**node_row(record), **_end(record.is_forgotten)}, None


def _end(is_over: bool) -> Mapping[str, object]:
    return {"removed": True} if is_over else {}
