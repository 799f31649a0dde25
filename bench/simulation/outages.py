"""A world in which links break, and in which the pool dies and another one goes on with what it had written."""

from __future__ import annotations

import random
from collections.abc import Callable

from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.events import Event, Restored, SessionAway, WorkerAway, WorkerGone
from forebay_pool.model.snapshot import Snapshot

from simulation.agenda import MILLISECOND_NS, SECOND_NS, Agenda
from simulation.clients import Client
from simulation.disk import Disk
from simulation.links import Delay
from simulation.workers import Timings, Worker
from simulation.world import World

RETRY_NS = 200 * MILLISECOND_NS
GATHER_NS = 20 * MILLISECOND_NS
"""What a pool says is written at most so much later."""


class Outages(World):
    """Workers and clients come back in any order, some too late, as ``worker/forebay_worker/link.py`` and ``device/forebay/session.py`` do.

    A worker whose row was not written when its pool died ends with it: the next pool would refuse it.
    """

    def __init__(
        self, machine: StateMachine, agenda: Agenda, timings: Timings, delay: Delay, tick_ns: int, chance: random.Random, resume_ns: int
    ) -> None:
        super().__init__(machine, agenda, timings, delay, tick_ns)
        self.chance = chance
        self.resume_ns = resume_ns
        self.disk = Disk()
        self.down = False
        """Whether there is no pool."""
        self.pools = 1

    # Overridden by those who know what a pool is started with

    def make_machine(self, name: str) -> StateMachine:
        raise NotImplementedError

    def settings(self) -> list[Event]:
        """What a pool that starts reads from its database before it goes on."""
        raise NotImplementedError

    def closures(self) -> list[Event]:
        """What it is told after that."""
        raise NotImplementedError

    def apply(self, event: Event) -> None:
        if not self.down:
            super().apply(event)

    # The pool

    def kill_pool(self) -> None:
        """It dies in the middle of everything, and another one starts a while later."""
        if self.down:
            return
        self.down = True
        self.disk.dies(self.agenda.now_ns - self.chance.randrange(GATHER_NS))
        for worker in list(self.workers.values()):
            if worker.name in self.disk.workers:
                self._unlink_worker(worker)
            else:
                worker.die()
                self._bury(worker.name)
        for client in list(self.clients.values()):
            self._unlink_client(client)
        self.agenda.after(int(self.chance.expovariate(3) * SECOND_NS), self.start_pool)

    def start_pool(self) -> None:
        if not self.down:
            return
        self.down = False
        self.pools += 1
        story, self.machine = self.machine.story, self.make_machine(f"p{self.pools}")
        self.machine.story = story
        for event in self.settings():
            self.apply(event)
        kept = self.disk.read(self.agenda.now_ns, self.agenda.now_ns + self.unix_offset_ns)
        self.apply(Restored(kept))
        for event in self.closures():
            self.apply(event)
        self._miss_the_dead(kept)

    def _miss_the_dead(self, kept: Snapshot) -> None:
        """The launcher notices whose process ended while there was no pool."""
        for worker in kept.workers:
            if worker.id not in self.workers:
                self.apply(WorkerGone(worker.id, "its process is gone"))

    def _gone(self, name: str, cause: str) -> None:
        if name in self.workers and self.down:
            self._bury(name)
        elif name in self.workers:
            super()._gone(name, cause)

    # Links of workers

    def break_worker(self, worker: Worker) -> None:
        if worker.unlinked_ns is None and not self.down:
            self._unlink_worker(worker)
            self._notice(lambda: worker.unlinked_ns is not None and self.workers.get(worker.name) is worker, WorkerAway(worker.name))

    def _unlink_worker(self, worker: Worker) -> None:
        if worker.unlinked_ns is None:
            worker.unlink()
            self._orders[worker.name].cut()
            self.agenda.after(self._until_back(), lambda: self._link_worker(worker))

    def _link_worker(self, worker: Worker) -> None:
        since_ns = worker.unlinked_ns
        if not worker.responds or since_ns is None:
            return
        if self.agenda.now_ns - since_ns >= self.resume_ns:
            self.exits(worker, "no pool took it back")
        elif self.down:
            self.agenda.after(self._retry(), lambda: self._link_worker(worker))
        else:
            self._orders[worker.name] = self.link(worker.hear)
            worker.link(self.link_of_worker(worker.name))

    # Links of clients

    def break_client(self, client: Client) -> None:
        if client.unlinked_ns is None and not self.down:
            self._unlink_client(client)
            self._notice(lambda: client.unlinked_ns is not None, SessionAway(client.name))

    def _unlink_client(self, client: Client) -> None:
        if client.unlinked_ns is None:
            client.unlink()
            self._answers[client.name].cut()
            self.agenda.after(self._until_back(), lambda: self._link_client(client))

    def _link_client(self, client: Client) -> None:
        since_ns = client.unlinked_ns
        if client.over or since_ns is None:
            return
        if not client.welcome or self.agenda.now_ns - since_ns >= self.resume_ns:
            client.lost()
        elif self.down:
            self.agenda.after(self._retry(), lambda: self._link_client(client))
        elif client.name not in self.machine.sessions:
            client.lost()
        else:
            client.link()

    # Small things

    def _until_back(self) -> int:
        return min(int(self.chance.expovariate(3) * SECOND_NS), self.resume_ns)

    def _retry(self) -> int:
        return self.chance.randrange(1, RETRY_NS)

    def _notice(self, still: Callable[[], bool], event: Event) -> None:
        """The pool notices a broken link after a while, if that was not made again before."""

        def notice() -> None:
            if still():
                self.apply(event)

        self.agenda.after(self.chance.randrange(GATHER_NS), notice)
