"""Simulated clients: a process with a virtual device, as the pool and its worker see it."""

from __future__ import annotations

import hashlib
from typing import Protocol

from forebay_pool.model.events import ClientSaid, SessionJoined, SessionLeft, SessionReplays
from forebay_wire import messages as wire

from simulation.agenda import Agenda
from simulation.links import Link
from simulation.workers import Ask, Command, Leaving, Mark, Worker


class Network(Protocol):
    """What a client needs of the world around it."""

    agenda: Agenda
    workers: dict[str, Worker]

    def link_to_pool(self, client: str) -> Link: ...

    def link_to_worker(self, worker: Worker) -> Link: ...


class Client:
    """One process. :meth:`compute` records device work; the lease it needs is acquired as ``device/forebay/session.py`` does it."""

    def __init__(self, world: Network, name: str, tenant: str, user: str, flavor: str, label: str = "") -> None:
        self.world = world
        self.name = name
        self.tenant = tenant
        self.user = user
        self.flavor = flavor
        self.label = label or name
        """What its spans are called: a notebook's path."""
        self.span = wire.Span(id=f"{name}-0", kind="process", label=self.label)
        self.lease: wire.Granted | None = None
        """The lease it believes to hold."""
        self.request = 0
        self.waits = False
        self._moves = False
        """It sent ``request`` and has no answer yet."""
        self.over = False
        self.welcome = False
        """Whether the pool took it in."""
        self.unlinked_ns: int | None = None
        """Since when it has no link to a pool."""
        self.refused: wire.Refused | None = None
        self._to_pool = world.link_to_pool(name)
        self._to_worker: Link | None = None
        self._worker: Worker | None = None
        self._unsent: list[Command] = []
        self._at: str | None = None
        """The worker that it was connected to last."""
        self._ticket: str | None = None
        """What it showed there."""
        self._cancelled: list[int] = []
        self._journal: list[Command] | None = None
        """What it sent that has an effect, or is not answered; None if it keeps nothing."""
        self._owes_arrival = False
        """Its worker died, and the next one has not done all again."""

    def keep(self) -> None:
        """Keeps what it sends, so that another worker can do it again."""
        self._journal = []

    # What the process does

    def join(self) -> None:
        secret = hashlib.blake2b(self.name.encode(), digest_size=32).digest()
        self._to_pool.send(SessionJoined(self.name, secret, self.tenant, self.user, self.label, self.flavor))
        self._say_that_it_keeps()

    def _say_that_it_keeps(self) -> None:
        if self._journal is not None:
            self._to_pool.send(SessionReplays(self.name))

    def begin(self, span: wire.Span) -> None:
        """A cell or the process starts; the lease follows with its first device work."""
        self.span = span

    def compute(self, *commands: Command) -> None:
        """Device work is recorded."""
        self._unsent += commands
        if self.lease is not None:
            self._flush()
        elif not self.waits:
            self._acquire()

    def end(self) -> None:
        """The span ends: a mark behind what was sent."""
        if self.lease is not None:
            self._unsent.append(Mark(self.lease.epoch))
            self._flush()

    def cancel(self) -> None:
        """The person pressed stop: what was not sent is forgotten."""
        if self.waits:
            self._cancelled.append(self.request)
            self._say(wire.Cancel(request=self.request))
            self.waits = False
            self._unsent.clear()

    def release(self) -> None:
        if self.lease is not None:
            self._say(wire.Release(epoch=self.lease.epoch))

    def leave(self) -> None:
        """The process ends, with both its connections."""
        if not self.over:
            self.over = True
            self._to_pool.send(SessionLeft(self.name))
            self._to_pool.close()
            self._hang_up()

    def _acquire(self) -> None:
        self.request += 1
        self.waits = True
        self._say(wire.Acquire(request=self.request, span=self.span))

    def _say(self, message: wire.FromClient) -> None:
        self._to_pool.send(ClientSaid(self.name, message))

    # Its link to the pool

    def unlink(self) -> None:
        self._to_pool.cut()
        self.unlinked_ns = self.world.agenda.now_ns

    def link(self) -> None:
        """It is linked again, or to another pool, that knows its session: says who is back, and what may not have been heard."""
        self._to_pool, self.unlinked_ns = self.world.link_to_pool(self.name), None
        self._say_that_it_keeps()
        epoch = None if self.lease is None else self.lease.epoch
        resume = wire.ResumeSession(
            session=self.name, key="0" * 64, worker=self._at, ticket=self._ticket, epoch=epoch, span=self.span
        )
        self._say(resume)
        for number in self._cancelled:
            self._say(wire.Cancel(request=number))
        if self.waits:
            self._say(wire.Acquire(request=self.request, span=self.span))

    # What it is told

    def hear(self, message: wire.ToClient) -> None:
        match message:
            case wire.SessionOpened():
                self.welcome = True
            case wire.Granted():
                self._granted(message)
            case wire.LeaseClosed() if self.lease is not None and self.lease.epoch == message.epoch:
                self.lease = None
            case wire.Refused() if message.request in (None, self.request):
                self.refused = message
                self.waits = False
                self._unsent.clear()
            case wire.Leave():
                self._leave_worker()
            case wire.WorkerLost():
                self._lose_worker()
            case wire.SessionLost():
                self.lost()

    def lost(self) -> None:
        """Its tensors are gone."""
        self.waits, self.lease = False, None
        self.leave()

    def _granted(self, granted: wire.Granted) -> None:
        if not self._arrives(granted):
            return
        self.lease = granted
        if granted.request in (0, self.request):
            self.waits = False
        self._connect(granted.worker, granted.ticket)
        if self._owes_arrival:
            self._replay(granted.epoch)
        self._flush()

    def _lose_worker(self) -> None:
        """Its worker died. What it sent goes to the next one, unless it left out what went to another before."""
        self.lease = None
        if self._at is not None and self._journal is None:
            self.lost()
            return
        if self._to_worker is not None:
            self._to_worker.close()
        self._to_worker = self._worker = None
        self._owes_arrival = True

    def _replay(self, epoch: int) -> None:
        if self._to_worker is None:
            self._say(wire.Unreached(epoch=epoch))
            return
        for command in self._journal or []:
            self._to_worker.send(self._watched(command))
        self._to_worker.send(Ask(lambda: self._replayed(epoch)))

    def _replayed(self, epoch: int) -> None:
        if not self.over:
            self._owes_arrival = False
            self._say(wire.Arrived(epoch=epoch))

    def _watched(self, command: Command) -> Command:
        """A question whose answer counts once, whichever worker gives it."""
        return Ask(lambda: self._answered(command)) if isinstance(command, Ask) and self._journal is not None else command

    def _answered(self, ask: Ask) -> None:
        kept = [one for one in self._journal or [] if one is not ask]
        known, self._journal = self._journal is None or len(kept) < len(self._journal), kept if self._journal is not None else None
        if known:
            ask.answer()

    def _arrives(self, granted: wire.Granted) -> bool:
        """Whether it can go where it is told to: after a move it says so; from a worker that it did not leave it cannot."""
        worker = self.world.workers.get(granted.worker)
        if self._worker is not None and worker is not self._worker:
            self.lost()
            return False
        if self._moves and worker is None:
            self._say(wire.Unreached(epoch=granted.epoch))
            return False
        if self._moves:
            self._moves = False
            self._say(wire.Arrived(epoch=granted.epoch))
        return True

    def _connect(self, name: str, ticket: str) -> None:
        worker = self.world.workers.get(name)
        if worker is not None and worker is not self._worker:
            self._worker, self._at, self._ticket = worker, name, ticket
            self._to_worker = self.world.link_to_worker(worker)

    def _leave_worker(self) -> None:
        """Ends its stream at the worker; what is recorded from here on waits for the next one."""
        if self._to_worker is not None:
            self._to_worker.send(Leaving())
            self._to_worker = self._worker = self._journal = None
            self._moves = True

    def _hang_up(self) -> None:
        if self._to_worker is not None:
            self._to_worker.send(None)
            self._to_worker.close()

    def _flush(self) -> None:
        if self._to_worker is not None:
            unsent, self._unsent = self._unsent, []
            for command in unsent:
                if self._journal is not None and not isinstance(command, Mark):
                    self._journal.append(command)
                self._to_worker.send(self._watched(command))

