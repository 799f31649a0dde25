"""What the devices of this process do and have cost, for people: a fold over what the pool says. Nothing here blocks or calls out.

Money is kept in nano-units, time in nanoseconds of the monotonic clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from forebay_wire import messages

    from forebay.gang_work import GangWork
    from forebay.profile import Segment

HOUR_NS = 3600 * 10**9
CELLS_MAX = 50
"""Cells of which is known what they used; the oldest are forgotten."""

State = Literal["idle", "queued", "starting", "restoring", "computing", "resident", "moving"]
"""``resident``: no lease, and tensors somewhere at the pool; ``moving``: they go to another worker. ``starting``, ``restoring``: the lease
is being opened."""

Money = dict[str, int]
"""Nano-units by currency."""


@dataclass
class Entry:
    """What one span has used: a cell, or what ran between cells."""

    id: str
    cell: int | None
    label: str
    cell_id: str | None = None
    first_line: str | None = None
    flavor: str = ""
    device_ns: int = 0
    waited_ns: int = 0
    cost: Money = field(default_factory=dict)
    leases: int = 0
    open: int = 0
    """Leases that are not closed yet."""
    away: bool = False
    """Whether the pool, which would tell of their end, does not answer."""
    unheard: int = 0
    """Leases whose end nobody told: the session was over before."""
    unpriced: int = 0
    """Leases whose cost nobody told, though somebody bills."""
    gangs: tuple[GangWork, ...] = ()
    """Of its devices that are several."""


@dataclass
class Running:
    """An open lease."""

    epoch: int
    entry: str
    since_ns: int
    price_nano_per_hour: int | None
    currency: str | None


@dataclass
class Device:
    """One virtual device, as its session link tells."""

    flavor: messages.Flavor | None = None
    session: str | None = None
    state: State = "idle"
    since_ns: int = 0
    queued: messages.Queued | None = None
    queued_ns: int = 0
    """When that was told."""
    asked: tuple[str, int] | None = None
    """The span that waits, and since when."""
    model: str | None = None
    devices: int = 1
    """Of its last lease: together they are this one."""
    gang: GangWork | None = None
    segments: tuple[Segment, ...] = ()
    """What came again in the last cell, the one with the most calls first; where the program asks that it is compiled."""
    """What they did, of several, in the last cell that is known."""
    leases: dict[int, Running] = field(default_factory=dict)
    """By epoch."""


class Journal:
    """The journal of all devices of the process. Threads may write at once; listeners are called by whichever did, and must be quick."""

    def __init__(self, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._now_ns = now_ns
        self._lock = threading.Lock()
        self._listeners: list[Callable[[], None]] = []
        self._closed = threading.Condition(self._lock)
        self._devices: dict[int, Device] = {}
        self._entries: dict[str, Entry] = {}
        self._spent: Money = {}
        self._device_ns = 0
        self._billed = False
        """Whether the pool ever named a currency: one that starts anew knows no prices for a while, and bills all the same."""

    def listen(self, listener: Callable[[], None]) -> None:
        """Has ``listener`` called after every change."""
        self._listeners.append(listener)

    def page(self, index: int) -> Page:
        """Where the session of a device writes."""
        with self._lock:
            self._devices.setdefault(index, Device(since_ns=self._now_ns()))
        return Page(self, index)

    def entry(self, span: str) -> Entry | None:
        """What a span has used; None for one that never asked for a device, or is long over."""
        with self._lock:
            return self._entries.get(span)

    def settled(self, span: str, seconds: float) -> bool:
        """Waits until all leases of a span are closed, for so long at most; whether they are."""
        with self._closed:
            return self._closed.wait_for(lambda: span not in self._entries or not self._entries[span].open, seconds)

    def devices(self) -> dict[int, Device]:
        """By their numbers: those whose session was ever asked for."""
        with self._lock:
            return dict(self._devices)

    @property
    def busy(self) -> bool:
        """Whether a device computes, or is waited for."""
        return any(device.leases or device.asked is not None for device in self.devices().values())

    def entries(self) -> list[Entry]:
        """The latest first."""
        with self._lock:
            return list(reversed(self._entries.values()))

    def spent(self) -> tuple[Money, int]:
        """What closed leases cost, and open ones so far; and their device time."""
        with self._lock:
            money, device_ns = dict(self._spent), self._device_ns
            for device in self._devices.values():
                for lease in device.leases.values():
                    passed = max(0, self._now_ns() - lease.since_ns)
                    device_ns += passed
                    if lease.price_nano_per_hour is not None and lease.currency is not None:
                        _add(money, lease.currency, passed * lease.price_nano_per_hour // HOUR_NS)
            return money, device_ns

    def note_segments(self, index: int, segments: tuple[Segment, ...]) -> None:
        """What came again in the last cell on a device, the one with the most calls first."""
        with self._lock:
            self._devices[index].segments = segments
        self._tell()

    def note_gangs(self, entry: Entry, gangs: tuple[GangWork, ...]) -> None:
        """What the devices of those that are several did for an entry."""
        with self._lock:
            entry.gangs = gangs
            for gang in gangs:
                self._devices[gang.device].gang = gang
        self._tell()

    # What sessions write

    def asked(self, index: int, span: messages.Span) -> None:
        """A lease was asked for."""
        with self._lock:
            self._devices[index].asked = (self._entry_of(span).id, self._now_ns())
        self._tell()

    def told(self, index: int, message: messages.ToClient, span: messages.Span | None) -> None:
        """The pool said something; ``span`` is what the session's work belongs to."""
        with self._lock:
            device = self._devices[index]
            match message.type:
                case "session":
                    device.flavor, device.session = message.flavor, message.session
                    self._billed |= message.flavor.currency is not None
                case "queued":
                    self._queue(device, message)
                case "granted":
                    self._grant(device, message, span)
                case "closed":
                    self._close(device, message)
                case "leave":
                    self._turn(device, "moving")
                case "refused" if message.request is not None:
                    self._leave(device)
                case _:
                    return
        self._tell()

    def withdrawn(self, index: int) -> None:
        """Nobody waits for the lease any more that was asked for."""
        with self._lock:
            self._leave(self._devices[index])
        self._tell()

    def linked(self, index: int, linked: bool) -> None:
        """The link to the pool broke, or is there again."""
        with self._lock:
            for lease in self._devices[index].leases.values():
                if lease.entry in self._entries:
                    self._entries[lease.entry].away = not linked
        self._tell()

    def over(self, index: int) -> None:
        """The session is gone, with its leases and tensors."""
        with self._lock:
            device = self._devices[index]
            for lease in device.leases.values():
                self._entries_left(lease.entry)
                if lease.entry in self._entries:
                    self._entries[lease.entry].unheard += 1
            device.leases.clear()
            self._leave(device)
            device.session, device.model, device.gang, device.segments = None, None, None, ()
            self._turn(device, "idle")
            self._closed.notify_all()
        self._tell()

    def _queue(self, device: Device, queued: messages.Queued) -> None:
        device.queued, device.queued_ns = queued, self._now_ns()
        if not device.leases:
            self._turn(device, queued.code if queued.code in ("starting", "restoring") else "queued")

    def _grant(self, device: Device, granted: messages.Granted, span: messages.Span | None) -> None:
        now_ns, asked = self._now_ns(), device.asked
        device.flavor, device.model, device.queued, device.asked = granted.flavor, granted.device.model, None, None
        self._billed |= granted.flavor.currency is not None
        device.devices = granted.devices
        if asked is not None and asked[0] in self._entries:
            self._entries[asked[0]].waited_ns += now_ns - asked[1]
        entry = self._entry_of(span) if span is not None else None
        if granted.epoch not in device.leases:
            price, currency = granted.flavor.price_nano_per_hour, granted.flavor.currency
            device.leases[granted.epoch] = Running(granted.epoch, entry.id if entry else "", now_ns, price, currency)
            if entry is not None:
                entry.flavor, entry.leases, entry.open = granted.flavor.name, entry.leases + 1, entry.open + 1
        self._turn(device, "computing")

    def _close(self, device: Device, closed: messages.LeaseClosed) -> None:
        lease = device.leases.pop(closed.epoch, None)
        currency = lease.currency if lease is not None else device.flavor.currency if device.flavor is not None else None
        self._device_ns += closed.duration_ns
        if closed.cost_nano is not None and currency is not None:
            _add(self._spent, currency, closed.cost_nano)
        entry = self._entries.get(lease.entry) if lease is not None else None
        if entry is not None:
            entry.device_ns += closed.duration_ns
            entry.unpriced += closed.cost_nano is None and self._billed
            self._entries_left(entry.id)
            if closed.cost_nano is not None and currency is not None:
                _add(entry.cost, currency, closed.cost_nano)
        if not device.leases and device.state == "computing":
            self._turn(device, "resident")
        self._closed.notify_all()

    def _leave(self, device: Device) -> None:
        if device.asked is not None and device.asked[0] in self._entries:
            self._entries[device.asked[0]].waited_ns += self._now_ns() - device.asked[1]
        device.asked, device.queued = None, None
        if not device.leases:
            self._turn(device, "resident" if device.model is not None else "idle")

    def _turn(self, device: Device, state: State) -> None:
        if device.state != state:
            device.state, device.since_ns = state, self._now_ns()

    def _entries_left(self, span: str) -> None:
        if span in self._entries:
            self._entries[span].open -= 1

    def _entry_of(self, span: messages.Span) -> Entry:
        entry = self._entries.get(span.id)
        if entry is None:
            entry = self._entries[span.id] = Entry(span.id, span.cell, span.label, span.cell_id, span.first_line)
            while len(self._entries) > CELLS_MAX:
                del self._entries[next(iter(self._entries))]
        return entry

    def _tell(self) -> None:
        for listener in self._listeners:
            listener()


@dataclass(frozen=True)
class Page:
    """A device's part of the journal: what its session says of itself."""

    journal: Journal
    index: int

    def asked(self, span: messages.Span) -> None:
        self.journal.asked(self.index, span)

    def told(self, message: messages.ToClient, span: messages.Span | None) -> None:
        self.journal.told(self.index, message, span)

    def linked(self, linked: bool) -> None:
        self.journal.linked(self.index, linked)

    def withdrawn(self) -> None:
        self.journal.withdrawn(self.index)

    def over(self) -> None:
        self.journal.over(self.index)


def _add(money: Money, currency: str, nano: int) -> None:
    money[currency] = money.get(currency, 0) + nano
