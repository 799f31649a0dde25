"""Programs in several processes that compete with each other and with sessions alone: all come to their end, in virtual time.

Each rank computes, meets the others in a collective, and does something on its host, by turns. What a worker says is what a real one would
say. Devices are fewer than all want, leases are taken back at random, and ranks come late.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from forebay_pool.model.events import LeaseRevoked, SessionLeft
from forebay_pool.model.types import Device, Equivalent, Flavor
from forebay_wire import messages as wire
from pool_world import World

GIB = 2**30
SECOND = 1_000_000_000
STEP_SECONDS = 0.25
SECONDS_MAX = 900
ROUNDS = 4
FLAVORS = [Flavor("half", 2 * GIB, (Equivalent("cpu-dev", 1, 500),)), Flavor("whole", 4 * GIB, (Equivalent("cpu-dev", 1),))]


class Workers(World):
    """Whose workers say how long they were idle."""

    idle_since: dict[str, int]

    def _obey(self, worker: str, message: wire.ToWorker) -> None:
        if isinstance(message, wire.Close):
            session = self.machine.fleet.workers[worker].session
            since = self.idle_since.get("" if session is None else session.id, self.now)
            self.worker(worker, wire.Closed(epoch=message.epoch, idle_ns=self.now - since))
        else:
            super()._obey(worker, message)


@dataclass
class Rank:
    """One process. ``until_ns``: of what it does now, where that takes its time."""

    name: str
    doing: str = "host"
    until_ns: int = 0
    round: int = 0
    told_ns: int = 0
    numbers: Any = field(default_factory=lambda: count(1))


class Trial:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        chance, devices = self.chance, self.chance.randint(2, 4)
        seats = [Device(f"main/cpu:{index}", "main", "cpu", index, "cpu-dev", 4 * GIB) for index in range(devices)]
        self.w = Workers(seats, FLAVORS, revoke_grace_seconds=1.0, wait_seconds_max=120.0)
        self.w.idle_since = {}
        self.programs: list[list[Rank]] = []
        for number in range(chance.randint(2, 3)):
            ranks = [Rank(f"g{number}r{rank}") for rank in range(chance.randint(2, devices))]
            flavor, user = chance.choice(["half", "whole", "whole"]), f"u{number}"
            self.w.join_ranks(*(rank.name for rank in ranks), flavor=flavor, group=str(number), user=user)
            for rank in ranks:
                rank.until_ns = self.later(chance.choice([0.5, 4, 14]))
            self.programs.append(ranks)
        self.alone = [Rank(f"s{index}") for index in range(chance.randint(0, 3))]
        for session in self.alone:
            self.w.join(session.name, chance.choice(["half", "whole"]), user="solo")

    def later(self, seconds_max: float) -> int:
        return self.w.now + int(self.chance.uniform(0, seconds_max) * SECOND)

    def unfinished(self) -> list[tuple[str, str, Any]]:
        """Ranks that have not come to their end after so long, what they do, and what they were told last."""
        steps = int(SECONDS_MAX / STEP_SECONDS)
        for step in range(steps):
            self.w.wait(STEP_SECONDS)
            self.w.settle()
            if step % 4 == 0:
                self.beat()
                self.w.tick()
                self.w.settle()
            for ranks in self.programs:
                self.go_on(ranks)
            for session in self.alone:
                self.compute_alone(session)
            if self.chance.random() < 0.01:
                self.revoke_one()
            self.programs = [ranks for ranks in self.programs if ranks]
            if not self.programs:
                break
        return [(rank.name, rank.doing, self.w.last(rank.name)) for ranks in self.programs for rank in ranks]

    def beat(self) -> None:
        for worker in list(self.w.machine.fleet.workers.values()):
            epoch = None if worker.session is None or worker.session.lease is None else worker.session.epoch
            if worker.state in ("warm", "bound"):
                self.w.worker(worker.id, wire.Heartbeat(epoch=epoch, memory_bytes=7, busy_ns=0, commands=0))

    def revoke_one(self) -> None:
        held = [session.id for session in self.w.machine.sessions.values() if session.lease is not None]
        if held:
            self.w.do(LeaseRevoked(self.chance.choice(held), "somebody else needs it"))

    def has_lease(self, rank: Rank) -> bool:
        lease = self.w.machine.sessions[rank.name].lease
        return lease is not None and lease.state == "open"

    def ask(self, rank: Rank) -> None:
        self.w.acquire(rank.name, next(rank.numbers), f"{rank.name}")

    def say(self, rank: Rank, message: wire.FromWorker) -> None:
        self.w.worker(self.w.worker_of(rank.name), message)

    # Ranks

    def go_on(self, ranks: list[Rank]) -> None:
        together = all(rank.doing == "collective" for rank in ranks)
        for rank in ranks:
            if rank.doing == "collective" and together:
                rank.doing = "leaving"
        for rank in list(ranks):
            getattr(self, f"_{rank.doing}")(rank)
            if rank.round == ROUNDS:
                self.w.do(SessionLeft(rank.name))
                ranks.remove(rank)

    def _host(self, rank: Rank) -> None:
        since = self.w.idle_since.setdefault(rank.name, self.w.now)
        if self.w.now >= rank.until_ns:
            rank.doing = "asking"
            self.w.idle_since.pop(rank.name)
            if not self.has_lease(rank):
                self.ask(rank)
        elif self.has_lease(rank) and self.w.now - since >= 2 * SECOND:
            self.say(rank, wire.Idle(epoch=self.w.epoch(rank.name), idle_ns=self.w.now - since))

    def _asking(self, rank: Rank) -> None:
        if self.has_lease(rank):
            rank.doing, rank.until_ns = "computing", self.later(3)

    def _computing(self, rank: Rank) -> None:
        """What a lease that ended left undone is done under the next one, which the pool asks for."""
        if self.has_lease(rank) and self.w.now >= rank.until_ns:
            rank.doing, rank.told_ns = "collective", 0
            self.w.idle_since[rank.name] = self.w.now

    def _collective(self, rank: Rank) -> None:
        since = self.w.idle_since[rank.name]
        if self.has_lease(rank) and self.w.now - max(since, rank.told_ns) >= 2 * SECOND:
            opened_ns = self.w.machine.sessions[rank.name].lease.opened_ns
            rank.told_ns = self.w.now
            self.say(rank, wire.Waiting(epoch=self.w.epoch(rank.name), idle_ns=self.w.now - max(since, opened_ns)))

    def _leaving(self, rank: Rank) -> None:
        """All have come; what was exchanged is put on the device, under a lease."""
        self.w.idle_since.pop(rank.name, None)
        if not self.has_lease(rank):
            self.say(rank, wire.Starved())
            return
        if rank.told_ns:
            self.say(rank, wire.Working(epoch=self.w.epoch(rank.name)))
        rank.round, rank.doing, rank.until_ns = rank.round + 1, "host", self.later(self.chance.choice([0, 0, 5]))

    # Sessions alone

    def compute_alone(self, session: Rank) -> None:
        if session.doing == "host" and self.w.now >= session.until_ns:
            session.doing = "asking"
            self.ask(session)
        elif session.doing == "asking" and self.has_lease(session):
            session.doing, session.until_ns = "computing", self.later(8)
        elif session.doing == "computing" and self.has_lease(session) and self.w.now >= session.until_ns:
            self.say(session, wire.Drained(epoch=self.w.epoch(session.name)))
            session.doing, session.until_ns = "host", self.later(8)


@pytest.mark.parametrize("seed", range(12))
def test_programs_that_compete_come_to_their_end(seed: int) -> None:
    assert not Trial(seed).unfinished()


@pytest.mark.full_sweep
@pytest.mark.parametrize("seed", range(12, 400))
def test_many_programs_that_compete_come_to_their_end(seed: int) -> None:
    assert not Trial(seed).unfinished()
