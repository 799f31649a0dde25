"""Simulated workers: what ``worker/csrc/server/server.cpp`` and ``gate.h`` do, without computing anything.

A worker reads its client's stream in order, executes device work only while its gate is open, and obeys the pool between two
commands, which take as long as the client says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from forebay_pool.model.types import Device
from forebay_wire import messages as wire

from simulation.agenda import MILLISECOND_NS, SECOND_NS, Agenda
from simulation.links import Link


@dataclass(frozen=True, slots=True)
class Work:
    """Device work that takes so long, and cannot be stopped within."""

    duration_ns: int


@dataclass(frozen=True, slots=True)
class Mark:
    """The span of the lease with this epoch ended."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Ask:
    """The client waits until all before it is done: a number is read."""

    answer: Callable[[], None]


@dataclass(frozen=True, slots=True)
class Leaving:
    """The client ends its stream here: the session's tensors go to host memory, for another worker to fetch."""


Command = Work | Mark | Ask | Leaving


@dataclass(frozen=True, slots=True)
class Timings:
    """How long a host takes for things."""

    start_ns: int = 2 * SECOND_NS
    """From launch to Ready: an interpreter, torch, and the device's context."""
    assign_ns: int = 1 * MILLISECOND_NS
    exit_ns: int = 20 * MILLISECOND_NS
    spare_heartbeat_ns: int = 5 * SECOND_NS
    """Between two heartbeats of a worker that serves nobody yet."""
    copy_bytes_per_second: int = 12_000_000_000
    """Between device and host memory; PCIe 3.0 x16 with pinned memory reaches 12 GB/s."""

    def copy_ns(self, count_bytes: int) -> int:
        return count_bytes * SECOND_NS // self.copy_bytes_per_second


class Surroundings(Protocol):
    """What a worker needs of the world around it."""

    agenda: Agenda
    timings: Timings
    workers: dict[str, Worker]

    def exits(self, worker: Worker, cause: str) -> None: ...

    def tensor_bytes(self, limit_bytes: int) -> int: ...

    def work_begins(self, worker: Worker) -> None: ...

    def work_ends(self, worker: Worker) -> None: ...

    def parks(self, worker: Worker) -> None: ...

    def restores(self, worker: Worker, taken_ns: int) -> None: ...

    def answer(self, worker: Worker, ask: Ask) -> None: ...


class Worker:
    """One process. ``device_bytes`` is what its tensors truly take on the device now."""

    def __init__(self, world: Surroundings, name: str, devices: tuple[Device, ...], to_pool: Link) -> None:
        self.world = world
        self.name = name
        self.devices = devices
        self.device = devices[0]
        """Where it computes."""
        self.to_pool = to_pool
        self.launched_ns = world.agenda.now_ns
        self.ready_ns = 0
        """When it was ready."""
        self.alive = True
        self.hung = False
        self.session: str | None = None
        self._ticket: str | None = None
        self._limit_bytes: int | None = None
        self.epoch: int | None = None
        """The open gate's lease."""
        self.device_bytes = 0
        self.parked_bytes: int | None = None
        self.working = False
        self.opened = 0
        self._marked = 0
        self._starved = False
        self.tensor_bytes = 0
        self._idle_release_ns = 0
        self._heartbeat_ns = world.timings.spare_heartbeat_ns
        self._orders: deque[wire.ToWorker] = deque()
        self._commands: deque[Command] = deque()
        self._busy = False
        """It executes, restores or parks: orders wait for the next boundary."""
        self._active_ns = 0
        self._turn = 0
        """Grows with every step, so that a timer of an earlier one does nothing."""
        self.unlinked_ns: int | None = None
        """Since when it has no link to a pool."""
        self._greeted = False
        """Whether it ever said that it is ready."""
        self._ended: tuple[wire.Ended, int] | None = None
        """The last lease that is over, and when it ended."""
        self._said_epoch: int | None = None
        """As ``Standing.epoch``: of the last lease that it was ordered to open, until that is over."""
        self._left_as: wire.Left | None = None
        self._client_gone = False
        self._has_assigned = False
        self._said_parked: int | None = None
        """As ``Standing.parked_bytes``: until the tensors are on their way back to the device."""

    # Life

    def start(self) -> None:
        self.world.agenda.after(self.world.timings.start_ns, self._ready)

    def _ready(self) -> None:
        if self.responds:
            self.ready_ns = self.world.agenda.now_ns
            self._greet()
            self._beat_later()

    def _greet(self) -> None:
        if self.unlinked_ns is None:
            self._greeted = True
            model = wire.DeviceModel(kind=self.device.kind, model=self.device.model)
            self._say(wire.Ready(worker=self.name, address=f"unix:/{self.name}", torch="2", device=model, pid=1))

    def _beat(self) -> None:
        self._say(wire.Heartbeat(epoch=self.epoch, memory_bytes=self.device_bytes, busy_ns=0, commands=0))
        self._beat_later()

    def _beat_later(self) -> None:
        period_ns = self._heartbeat_ns
        self._later(period_ns, lambda: self._beat() if period_ns == self._heartbeat_ns else None)

    def die(self) -> None:
        """The process is no more."""
        self.alive = False
        self._stop_working()
        self.device_bytes, self.epoch = 0, None
        self.to_pool.close()
        self._commands.clear()
        self._orders.clear()

    @property
    def responds(self) -> bool:
        return self.alive and not self.hung

    # Its link to the pool

    def unlink(self) -> None:
        self.to_pool.cut()
        self.unlinked_ns = self.world.agenda.now_ns

    def link(self, to_pool: Link) -> None:
        """It is linked again, or to another pool: says first how it stands."""
        self.to_pool, self.unlinked_ns = to_pool, None
        if self._greeted:
            self._say(self._standing())
        elif self.ready_ns:
            self._greet()

    def _standing(self) -> wire.ResumeWorker:
        ended = None
        if self._ended is not None:
            ended = self._ended[0].model_copy(update={"ago_ns": self.world.agenda.now_ns - self._ended[1]})
        return wire.ResumeWorker(
            worker=self.name,
            address=f"unix:/{self.name}",
            session=self.session,
            epoch=self._said_epoch,
            ended=ended,
            starved=self._starved,
            client_gone=self._client_gone,
            memory_bytes=self.device_bytes,
            parked_bytes=self._said_parked,
            assigned=self._has_assigned,
            left=self._left_as,
            memory_limit_bytes=self._limit_bytes,
            ticket=self._ticket,
        )

    # What it is told

    def hear(self, order: wire.ToWorker) -> None:
        """The pool's order has arrived; it is obeyed at the next command boundary."""
        if self.responds:
            self._orders.append(order)
            if isinstance(order, wire.Open):
                self._said_epoch, self._said_parked, self._limit_bytes = order.epoch, None, order.memory_limit_bytes
            if not self._busy:
                self._turn += 1
                self._step()

    def stream(self, command: Command) -> None:
        """The client's command has arrived."""
        if self.responds:
            self._commands.append(command)
            if not self._busy:
                self._turn += 1
                self._step()

    def lose_client(self) -> None:
        """The client's connection ended."""
        if self.responds:
            self._client_gone = True
            self._say(wire.ClientGone())

    def _step(self) -> None:
        """Does whatever can be done now; stops when something takes time."""
        self._busy = False
        while self.alive and not self._busy:
            if self._orders:
                self._obey(self._orders.popleft())
            elif not self._commands:
                return self._rest()
            elif not self._next():
                return

    def _next(self) -> bool:
        """Executes the next command, or says that it needs a lease; False if nothing goes on before an order."""
        command = self._commands[0]
        if isinstance(command, Mark):
            self._commands.popleft()
            if self.epoch is None:
                self._marked = max(self._marked, command.epoch) if command.epoch > self.opened else self._marked
            else:
                self._note_end("drained", 0)
                self._shut(wire.Drained(epoch=self.epoch))
            return True
        if isinstance(command, Ask):
            self._commands.popleft()
            self.world.answer(self, command)
            return True
        if isinstance(command, Leaving):
            self._commands.popleft()
            self.world.parks(self)
            self._take(self.world.timings.copy_ns(self.device_bytes), self._left)
            return True
        if self.epoch is None:
            if not self._starved:
                self._starved = True
                self._say(wire.Starved())
            return False
        self._commands.popleft()
        self.device_bytes = self.tensor_bytes
        self.working = True
        self.world.work_begins(self)
        self._take(command.duration_ns, self._executed)
        return True

    def _executed(self) -> None:
        self._stop_working()
        self._active_ns = self.world.agenda.now_ns
        self._step()

    def _stop_working(self) -> None:
        if self.working:
            self.working = False
            self.world.work_ends(self)

    def _rest(self) -> None:
        """Nothing to execute: an open lease is given back after a while."""
        if self.epoch is not None:
            turn = self._turn
            self.world.agenda.at(self._active_ns + self._idle_release_ns, lambda: self._idle(turn))

    def _idle(self, turn: int) -> None:
        if self.responds and self._turn == turn and self.epoch is not None and not self._busy:
            idle_ns = self.world.agenda.now_ns - self._active_ns
            self._note_end("idle", idle_ns)
            self._shut(wire.Idle(epoch=self.epoch, idle_ns=idle_ns))

    # Orders

    def _obey(self, order: wire.ToWorker) -> None:
        match order:
            case wire.Assign():
                self.session, self._ticket, self._limit_bytes = order.session, order.ticket, order.memory_limit_bytes
                self._idle_release_ns = int(order.idle_release_seconds * SECOND_NS)
                self._heartbeat_ns = int(order.heartbeat_seconds * SECOND_NS)
                self._take(self.world.timings.assign_ns + self._fetch(order.source), self._assigned)
            case wire.Carry():
                self.session, self._heartbeat_ns = order.session, int(order.heartbeat_seconds * SECOND_NS)
                source = order.source
                self._take(order.bytes_max * SECOND_NS // order.bytes_per_second_max, lambda: self._carried(source))
            case wire.Open():
                if not self.opened:
                    self.tensor_bytes = self.world.tensor_bytes(order.memory_limit_bytes)
                else:  # after a move the limit may be another device's
                    self.tensor_bytes = min(self.tensor_bytes, max(self.device_bytes, order.memory_limit_bytes))
                epoch = order.epoch
                self._take(self._bring_back(), lambda: self._open(epoch))
            case wire.Restore():
                self._said_parked = None
                self._take(self._bring_back(), self._restored)
            case wire.Close():
                if self.epoch is not None:
                    self._note_end("drained", 0)
                self.epoch = self._said_epoch = None
                self._say(wire.Closed(epoch=order.epoch))
            case wire.Park() if self.parked_bytes is not None:
                self._say(wire.Parked(bytes=self.parked_bytes))
            case wire.Park():
                self.world.parks(self)
                self._take(self.world.timings.copy_ns(self.device_bytes), self._parked)
            case wire.End():
                self.world.exits(self, "ended")

    def _bring_back(self) -> int:
        """Has parked tensors on the device again; how long that takes, in nanoseconds."""
        if self.parked_bytes is None:
            return 0
        self.device_bytes, self.parked_bytes = self.parked_bytes, None
        taken_ns = self.world.timings.copy_ns(self.device_bytes)
        self.world.restores(self, taken_ns)
        return taken_ns

    def _fetch(self, source: wire.Source | None) -> int:
        """Takes over what another worker holds; how long that takes, in nanoseconds."""
        holder = None if source is None else self.world.workers.get(source.address)
        if holder is None or holder.parked_bytes is None:
            return 0
        self.device_bytes, self.tensor_bytes, self.opened = holder.parked_bytes, holder.tensor_bytes, holder.opened
        return self.world.timings.copy_ns(self.device_bytes)

    def _carried(self, source: wire.Source) -> None:
        """It has all that the other worker kept, if that one lived for so long."""
        holder = self.world.workers.get(source.address)
        if holder is None or not holder.alive or holder.parked_bytes is None:
            self.world.exits(self, "what it was to fetch is gone")
        else:
            self.parked_bytes, self.tensor_bytes, self.opened = holder.parked_bytes, holder.tensor_bytes, holder.opened
            self._left()

    def _left(self) -> None:
        self.epoch = self._said_epoch = None
        if self.parked_bytes is None:
            self.parked_bytes, self.device_bytes = self.device_bytes, 0
        self._left_as = wire.Left(bytes=self.parked_bytes, address=self.name, ticket="a" * 64)
        self._say(self._left_as)
        self._step()

    def _assigned(self) -> None:
        if self.session is not None:
            self._has_assigned = True
            self._say(wire.Assigned(session=self.session))
            self._beat_later()
        self._step()

    def _open(self, epoch: int) -> None:
        self.epoch = self.opened = epoch
        self._starved = False
        self._active_ns = self.world.agenda.now_ns
        if epoch <= self._marked:
            self._note_end("drained", 0)
            self._shut(wire.Drained(epoch=epoch))
        self._step()

    def _restored(self) -> None:
        self._say(wire.Restored())
        self._step()

    def _parked(self) -> None:
        self.parked_bytes, self.device_bytes = self.device_bytes, 0
        self._said_parked = self.parked_bytes if self._said_epoch is None else None
        self._say(wire.Parked(bytes=self.parked_bytes))
        self._step()

    def _note_end(self, reason: Literal["drained", "idle"], idle_ns: int) -> None:
        """Remembers how the open lease ended, in case that nobody hears it."""
        self._ended = (wire.Ended(epoch=self.epoch or 0, reason=reason, idle_ns=idle_ns, ago_ns=0), self.world.agenda.now_ns)

    def _shut(self, message: wire.FromWorker) -> None:
        self.epoch = self._said_epoch = None
        self._say(message)

    # Small things

    def _take(self, duration_ns: int, then: Callable[[], None]) -> None:
        """Nothing else happens until ``then``."""
        self._busy = True
        self._turn += 1
        self._later(duration_ns, then)

    def _later(self, duration_ns: int, then: Callable[[], None]) -> None:
        def go() -> None:
            if self.responds:
                then()

        self.world.agenda.after(duration_ns, go)

    def _say(self, message: wire.FromWorker) -> None:
        self.to_pool.send(message)
