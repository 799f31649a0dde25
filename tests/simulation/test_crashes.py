"""Workers that their programs' calls end, in the pool's storm: who caused some of them gets no new worker before the wait is over."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace

import pytest
from broken_machines import machine_with
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import Event, Restored, SessionJoined, WorkerGone
from forebay_pool.model.instructions import Instruction, TellClient
from forebay_pool.model.types import Session
from forebay_wire import messages as wire
from simulation.agenda import SECOND_NS
from simulation.auditor import Caught
from simulation.storm import Storm, StoryTold

FAULT = Cause("killed", signal="SIGSEGV")
FIRST_SECONDS, LONGEST_SECONDS = 2, 6
SEEDS = 4


class CrashBook:
    """Knows events and instructions alone."""

    def __init__(self) -> None:
        self.users: dict[str, tuple[str, str]] = {}
        self.open: dict[str, str] = {}
        """By worker, the session that computes there."""
        self.crashes: dict[tuple[str, str], int] = defaultdict(int)
        self.until_ns: dict[tuple[str, str], int] = {}
        self.barred: dict[str, int] = {}
        """Sessions that came in a wait of their user, and its end."""
        self.told = 0

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        match event:
            case SessionJoined():
                user = self.users[event.session] = (event.tenant, event.user)
                if self.until_ns.get(user, 0) > now_ns:
                    self.barred[event.session] = self.until_ns[user]
            case WorkerGone(cause=Cause(code="killed")) if event.worker in self.open:
                self._crashed(self.users[self.open.pop(event.worker)], now_ns)
            case Restored():  # the next pool counts anew
                self.crashes.clear()
                self.until_ns.clear()
                self.barred.clear()
        for instruction in instructions:
            if isinstance(instruction, TellClient):
                self._told(instruction.session, instruction.message, now_ns)

    def _crashed(self, user: tuple[str, str], now_ns: int) -> None:
        self.crashes[user] += 1
        seconds = min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** (self.crashes[user] - 1))
        self.until_ns[user] = now_ns + seconds * SECOND_NS

    def _told(self, session: str, message: wire.ToClient, now_ns: int) -> None:
        match message:
            case wire.Granted():
                if self.barred.get(session, 0) > now_ns:
                    raise Caught("a user whose calls ended workers gets a new one before the wait is over", session)
                self.open[message.worker] = session
            case wire.LeaseClosed() | wire.SessionLost():
                for worker in [worker for worker, own in self.open.items() if own == session]:
                    if isinstance(message, wire.SessionLost) or message.reason != "failed":
                        del self.open[worker]
            case wire.Queued() if message.cause is not None and message.cause.code == "crashes_wait":
                self.told += 1


class CrashStorm(Storm):
    """Besides all else, workers that compute end by their programs' calls. Tests of the machine tell what that costs."""

    def __init__(self, seed: int, machine: Callable[..., StateMachine] = StateMachine, strict: bool = True) -> None:
        super().__init__(seed, machine, strict=strict)
        self.book = CrashBook()
        self.limits = replace(
            self.limits, crashes_max=1, crash_wait_seconds=FIRST_SECONDS, crash_wait_seconds_max=LONGEST_SECONDS, resume_seconds=3.0
        )
        self.machine = self.make_machine("p1")
        self.watchers = [self.disk, self, self.book]

    def _strike(self) -> None:
        computing = [worker for name in self.book.open if (worker := self.workers.get(name)) is not None and worker.alive]
        if computing and not self.calm:
            self.exits(self.chance.choice(computing), FAULT)
        super()._strike()


class LetsThemCrashOn(Granting):
    def count_crash(self, session: Session) -> None: ...


class ForgetsTheWaitAtTheNextTick(Granting):
    def end_crash_waits(self) -> None:
        self._queue.crashes.end_waits(self._step.now_ns + 3_600 * SECOND_NS)
        self._rerank()


def play(seed: int, machine: Callable[..., StateMachine] = StateMachine) -> CrashStorm | StoryTold:
    storm = CrashStorm(seed, machine)
    try:
        storm.run()
    except StoryTold as story:
        return story
    return storm


def test_nobody_gets_a_new_worker_in_a_wait_and_nothing_else_breaks() -> None:
    told = 0
    for seed in range(SEEDS):
        storm = play(seed)
        assert isinstance(storm, CrashStorm), storm
        told += storm.book.told
    assert told > 4, "hardly anybody waited"


@pytest.mark.parametrize("mutant", [LetsThemCrashOn, ForgetsTheWaitAtTheNextTick])
def test_a_pool_that_keeps_nobody_waiting_is_caught(mutant: type) -> None:
    stories = (play(seed, machine_with(mutant)) for seed in range(SEEDS))
    story = next((story for story in stories if isinstance(story, StoryTold)), None)
    assert story is not None and isinstance(story.__cause__, Caught), story
