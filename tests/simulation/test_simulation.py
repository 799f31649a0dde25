"""The pool under a seeded simulator with faults: the auditor finds nothing in the real one, and something in every broken one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from broken_machines import machine_with
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.preparing import Preparing
from forebay_pool.machine.leasing.queue_positions import QueuePositions
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.machine.operations import Operations
from forebay_pool.machine.sessions.client_returns import ClientReturns
from forebay_pool.machine.sessions.restoring import Restoring
from forebay_pool.machine.sessions.rules import Rules
from forebay_pool.machine.sessions.takeover import Takeover
from forebay_pool.machine.sessions.worker_returns import WorkerReturns
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.machine.workers.closing import Closing
from forebay_pool.machine.workers.draining import Draining
from forebay_pool.machine.workers.ending import Ending
from forebay_pool.machine.workers.evacuation import Evacuation
from forebay_pool.machine.workers.failing import Failing
from forebay_pool.model.events import BudgetSet, Event, PricesSet, QuotaSet, Tick
from forebay_pool.model.instructions import Instruction, Kill, Meter, Note
from forebay_pool.model.metering import HOUR_NS
from forebay_pool.model.node_events import NodeDrain
from forebay_pool.model.snapshot import LeaseSnapshot, ReplaySnapshot, SessionSnapshot, Snapshot
from forebay_pool.model.types import CloseReason, Lease, Loss, Replay, Request, Seat, Session, UsageRecord, Worker
from forebay_wire import messages as wire
from simulation.agenda import SECOND_NS
from simulation.auditor import Caught
from simulation.seeds import play, play_many
from simulation.storm import Storm, StoryTold

ROOT = Path(__file__).resolve().parents[2]
CAUGHT_BY = Path(__file__).with_name("caught_by.json")
Play = Callable[[int], StoryTold | None]
FirstCaught = Callable[[int, Play, Play], tuple[int, StoryTold] | None]
"""As ``conftest.py`` has it."""

SEEDS = 200
"""With --full-sweep; else FEW_SEEDS."""
FEW_SEEDS = 36
FOUND = (
    211, 254, 267, 273, 331, 336, 371, 413, 432, 436, 460, 521, 523, 537, 554, 596, 654, 694, 707, 765, 790, 795, 1010, 1138, 1159,
    1379, 1478, 1518, 2387, 2589, 2670, 2987, 3557, 3804, 3895, 4057, 4220, 4368, 4571, 4734, 4811, 4815, 4967, 5497, 5577, 7383, 8102,
    9910,
)
"""Seeds beyond those that found something once."""
AMNESIA_SEEDS = 60
FEW_AMNESIA_SEEDS = 10
"""Without --full-sweep."""
MUTANT_SEEDS = 120
"""A broken state machine must be caught within so many."""


def test_seeds_of_faults_find_nothing(full_sweep: bool) -> None:
    assert play_many(0, SEEDS if full_sweep else FEW_SEEDS, os.cpu_count() or 1) == 0


@pytest.mark.parametrize("seed", FOUND)
def test_what_a_seed_found_once_it_finds_no_more(seed: int) -> None:
    assert play(seed)[2] is None


def test_workers_that_stand_still_and_go_on_cost_nobody_what_is_theirs(full_sweep: bool) -> None:
    seen: set[str] = set()
    for seed in range(400 if full_sweep else 8):
        storm = Storm(seed, stalls=True)
        storm.watchers.append(Tally(seen))
        storm.run()
    assert {"worker_silent", "worker_heard_again", "Kill", "drained", "failed"} <= seen


def test_the_storm_does_what_it_says() -> None:
    """Or the seeds prove nothing: sessions park, workers die, the database refuses, and leases end in every way."""
    wanted = {"drained", "idle", "released", "moved", "failed", "revoked", "Kill", "Park", "parked", "SessionLost", "Refused"}
    wanted |= {"StoreChanged", "Restored", "ResumeWorker", "ResumeSession", "SessionAway", "WorkerAway", "Leave", "Carry"}
    wanted |= {"QuotaSet", "BudgetSet", "NodeDrain", "WorkerLost", "Arrived"}
    seen: set[str] = set()
    for seed in range(30):
        if not wanted <= seen:
            storm = Storm(seed, strict=False)
            storm.watchers.append(Tally(seen))
            storm.run()
    assert wanted <= seen, f"never seen: {sorted(wanted - seen)}"


class Tally:
    """Collects names of what happened."""

    def __init__(self, seen: set[str]) -> None:
        self.seen = seen

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        self.seen.add(type(event).__name__)
        for instruction in instructions:
            self.seen.add(instruction.action if isinstance(instruction, Note) else type(instruction).__name__)
            if isinstance(instruction, Meter):
                self.seen.add(instruction.record.close_reason)
            message = getattr(instruction, "message", None)
            if message is not None:
                self.seen.add(type(message).__name__)
        message = getattr(event, "message", None)
        self.seen.add(type(message).__name__)
        if isinstance(message, wire.Parked) and message.bytes:
            self.seen.add("parked")


def test_a_seed_plays_the_same_history_again() -> None:
    histories = []
    for _ in range(2):
        storm = Storm(7)
        history = History()
        storm.watchers.append(history)
        storm.run()
        histories.append(history.lines)
    assert len(histories[0]) > 100
    assert histories[0] == histories[1]


class History:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        self.lines.append(f"{now_ns} {event} {[type(instruction).__name__ for instruction in instructions]}")


class ByTurns:
    """Lets two storms, each in a thread of its own, go on by turns: an event each, until one is over."""

    def __init__(self, *storms: Storm) -> None:
        self._storms = storms
        self._gates = [threading.Semaphore(1), threading.Semaphore(0)]
        self._over = [False, False]
        self.changes = 0
        for own, storm in enumerate(storms):
            storm.watchers.append(Turn(self, own))

    def run(self) -> None:
        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(self._play, own) for own in range(2)]:
                done.result()

    def _play(self, own: int) -> None:
        self._gates[own].acquire()
        try:
            self._storms[own].run()
        finally:
            self._over[own] = True
            self._gates[1 - own].release()

    def hand_over(self, own: int) -> None:
        if not self._over[1 - own]:
            self.changes += 1
            self._gates[1 - own].release()
            self._gates[own].acquire()


class Turn:
    def __init__(self, turns: ByTurns, own: int) -> None:
        self._turns = turns
        self._own = own

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        self._turns.hand_over(self._own)


def test_two_machines_in_one_process_share_nothing() -> None:
    """Each tells the story that it tells alone, event by event by turns with another one of the same name and the same sessions."""
    stories: list[list[History]] = []
    for _ in range(2):
        storms, histories = (Storm(7), Storm(8)), [History(), History()]
        for storm, history in zip(storms, histories, strict=True):
            storm.watchers.append(history)
        if stories:
            turns = ByTurns(*storms)
            turns.run()
            assert turns.changes > 200
        else:
            for storm in storms:
                storm.run()
        stories.append(histories)
    alone, together = stories
    assert [history.lines for history in together] == [history.lines for history in alone]
    assert alone[0].lines != alone[1].lines


# Broken state machines: each a part that is broken


class BillsTheIdleTime(Closing):
    def close_for(self, worker: Worker, epoch: int, reason: CloseReason, idle_ns: int, interrupted: bool = False) -> None:
        super().close_for(worker, epoch, reason, 0, interrupted)


class BillsTheDead(Leases):
    def close(self, lease: Lease, reason: CloseReason, until_ns: int) -> None:
        super().close(lease, reason, self._step.now_ns)


class BillsOneNanosecondMore(Leases):
    def close(self, lease: Lease, reason: CloseReason, until_ns: int) -> None:
        lease.opened_ns -= 1
        super().close(lease, reason, until_ns)


class MetersTwice(StateMachine):
    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        out = super().handle(event, now_ns)
        return out + [instruction for instruction in out if isinstance(instruction, Meter)]


class ForgetsToMeter(StateMachine):
    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        out = super().handle(event, now_ns)
        return [i for i in out if not (isinstance(i, Meter) and i.record.close_reason == "failed")]


class MetersAnother(StateMachine):
    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        out = super().handle(event, now_ns)
        return [Meter(renamed(i.record)) if isinstance(i, Meter) else i for i in out]


def renamed(record: UsageRecord) -> UsageRecord:
    values = {name: getattr(record, name) for name in UsageRecord.__dataclass_fields__}
    return UsageRecord(**(values | {"session": "s001"}))


class KeepsTheOldClock(StateMachine):
    def _tick(self, event: Tick) -> None:
        super()._tick(Tick(self.step.unix_offset_ns))


class LetsTensorsGoBeforeTheyAreCarried(Evacuation):
    def carry(self, worker: Worker, session: Session) -> None:
        image = session.image
        super().carry(worker, session)
        if image is not None and worker.state == "carrying":
            self._processes.dismiss(image, drains_milli=0)


class DoesNotWaitForTheDrain(WorkerProcesses):
    def dismiss(self, worker: Worker, drains_milli: int) -> None:
        super().dismiss(worker, 0)


class LeasesBeforeTheDeadAreGone(Failing):
    def _part(self, worker: Worker, cause: str, drains: bool, by_program: bool = False) -> None:
        super()._part(worker, cause, False, by_program)


class DoesNotWaitForTheParking(Preparing):
    def _make_room(self, seat: Seat, session: Session) -> bool:
        super()._make_room(seat, session)
        return True


class SaysNothing(QueuePositions):
    def send(self, request: Request) -> None: ...


class ForgetsWhoWaits(Granting):
    def _place(self, request: Request) -> None:
        super()._place(request)
        if request.place is None and request.order % 7 == 0:
            self._queue.remove(request)


class LetsTheHungLive(StateMachine):
    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        return [i for i in super().handle(event, now_ns) if not (isinstance(i, Kill) and isinstance(event, Tick))]


class KeepsLeasesOfTheDeparted(Ending):
    def end(self, session: Session, reason: CloseReason, cause: str | None) -> None:
        if session.lease is None:
            super().end(session, reason, cause)


class RoundsUp(Step):
    def send(self, session: str, message: wire.ToClient) -> None:
        if isinstance(message, wire.LeaseClosed) and message.cost_nano:
            message = message.model_copy(update={"cost_nano": message.cost_nano + 1})
        super().send(session, message)


class ForgetsQuotas(Rules):
    def quota_set(self, event: QuotaSet) -> None: ...


class ForgetsWindows(Rules):
    def quota_set(self, event: QuotaSet) -> None:
        super().quota_set(replace(event, quota=replace(event.quota, device_seconds=None)))


class SpendsWithoutABudget(Rules):
    def budget_set(self, event: BudgetSet) -> None: ...


class StartsOnDrainedNodes(Operations):
    def node_drain(self, event: NodeDrain) -> None: ...


class LetsThemRestOnDrainedNodes(Draining):
    def empty(self, *seats: Seat) -> None: ...

    def settle_resident(self, lease: Lease) -> None: ...


class ForgetsTheGraceOfADrain(Operations):
    def check_deadlines(self) -> None: ...


class MetersWhatGoesOnAfterARestart(Restoring):
    def _restore_lease(self, kept: LeaseSnapshot) -> None:
        super()._restore_lease(kept)
        self._step.out += (Meter(record) for record in kept.failed(HOUR_NS))


class ForgetsLeasesOverARestart(Restoring):
    def _restore_lease(self, kept: LeaseSnapshot) -> None: ...


class BillsTheAbsence(WorkerReturns):
    def _resume_lease(self, worker: Worker, session: Session, message: wire.ResumeWorker) -> None:
        if message.ended is not None:
            message = message.model_copy(update={"ended": message.ended.model_copy(update={"ago_ns": 0})})
        super()._resume_lease(worker, session, message)


class MetersBeforeItIsCertain(Leases):
    """As if no worker could say later that it had been idle."""

    def meter_passed(self) -> None:
        limits, self._limits = self._limits, replace(self._limits, idle_release_seconds=-1.0)
        super().meter_passed()
        self._limits = limits


class ForgetsFirstWorkers(Takeover):
    def adopt(self, worker: Worker | None, session: Session | None, shown: str | None) -> None: ...


class SkipsWhatWasMetered(Restoring):
    def _restore_lease(self, kept: LeaseSnapshot) -> None:
        super()._restore_lease(replace(kept, segment=kept.segment + 1))


class BillsAllInOneCurrency(StateMachine):
    def _prices_set(self, event: PricesSet) -> None:
        super()._prices_set(PricesSet(replace(event.tariff, currencies={})))


class LosesASegment(Leases):
    def meter_passed(self) -> None:
        count = len(self._step.out)
        super().meter_passed()
        del self._step.out[count:]


class MetersInOnePiece(Leases):
    def close(self, lease: Lease, reason: CloseReason, until_ns: int) -> None:
        limits, self._limits = self._limits, replace(self._limits, segment_seconds=3_600.0)
        super().close(lease, reason, until_ns)
        self._limits = limits


class BillsReplays(Leases):
    def close(self, lease: Lease, reason: CloseReason, until_ns: int) -> None:
        lease.replays = False
        super().close(lease, reason, until_ns)


class NeverBillsAfterADeath(Leases):
    def start_clock(self, lease: Lease) -> None: ...


class LosesWhomItCouldKeep(Failing):
    def _can_replay(self, session: Session, lease: Lease | None) -> bool:
        return False


class ReplaysAnyAmount(Failing):
    def _has_short_replay(self, session: Session) -> bool:
        return session.replay.possible


class ForgetsHowManyDied(Failing):
    def _go_on(self, session: Session, lease: Lease | None, loss: Loss) -> None:
        super()._go_on(session, lease, replace(loss, tries=0))


class ForgetsHowManyDiedOverARestart(Restoring):
    def _restored(self, saved: ReplaySnapshot) -> Replay:
        return super()._restored(replace(saved, loss=saved.loss and replace(saved.loss, tries=0)))


class DoesNotSayWhatDied(Failing):
    def _go_on(self, session: Session, lease: Lease | None, loss: Loss) -> None:
        count = len(self._step.out)
        super()._go_on(session, lease, loss)
        self._step.out[count:] = [one for one in self._step.out[count:] if not isinstance(getattr(one, "message", None), wire.WorkerLost)]


class ForgetsLossesOfTheAbsent(ClientReturns):
    def resume_session(self, session: Session, message: wire.ResumeSession) -> None:
        session.replay.loss = None
        super().resume_session(session, message)


class ForgetsReplaysOverARestart(Restoring):
    def _restore_session(self, saved: SessionSnapshot, snapshot: Snapshot) -> None:
        super()._restore_session(replace(saved, replay=None), snapshot)


MUTANTS: list[type] = [
    BillsReplays,
    NeverBillsAfterADeath,
    LosesWhomItCouldKeep,
    ReplaysAnyAmount,
    ForgetsHowManyDied,
    ForgetsHowManyDiedOverARestart,
    DoesNotSayWhatDied,
    ForgetsLossesOfTheAbsent,
    ForgetsReplaysOverARestart,
    BillsTheIdleTime,
    BillsTheDead,
    BillsOneNanosecondMore,
    MetersTwice,
    ForgetsToMeter,
    MetersAnother,
    KeepsTheOldClock,
    LetsTensorsGoBeforeTheyAreCarried,
    DoesNotWaitForTheDrain,
    LeasesBeforeTheDeadAreGone,
    DoesNotWaitForTheParking,
    SaysNothing,
    ForgetsWhoWaits,
    LetsTheHungLive,
    KeepsLeasesOfTheDeparted,
    RoundsUp,
    BillsAllInOneCurrency,
    ForgetsQuotas,
    ForgetsWindows,
    SpendsWithoutABudget,
    StartsOnDrainedNodes,
    LetsThemRestOnDrainedNodes,
    ForgetsTheGraceOfADrain,
    MetersWhatGoesOnAfterARestart,
    ForgetsLeasesOverARestart,
    BillsTheAbsence,
    MetersBeforeItIsCertain,
    SkipsWhatWasMetered,
    LosesASegment,
    MetersInOnePiece,
]


class Misery(Storm):
    """Workers and their links, and the pool now and then, die far more often: also while something is done again."""

    def _strike(self) -> None:
        if not self.calm:
            self.chance.choice([self._kill_worker] * 6 + [self._break_link] * 2 + [self.kill_pool])()
            self.agenda.after(int(self.chance.expovariate(3) * SECOND_NS), self._strike)


def test_what_dies_again_and_again_costs_nobody_what_is_theirs(full_sweep: bool) -> None:
    failed = {seed: story for seed in range(120 if full_sweep else 6) if (story := story_of(Misery(seed))) is not None}
    assert not failed


MISERABLE = (ForgetsHowManyDied, ForgetsHowManyDiedOverARestart)
"""Of these, what is broken matters seldom where less dies."""


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_broken_state_machine_is_caught_by_the_auditor_alone(mutant: type, first_caught: FirstCaught) -> None:
    world = Misery if mutant in MISERABLE else Storm
    broken = machine_with(mutant)
    caught = first_caught(MUTANT_SEEDS, lambda seed: story_of(world(seed, broken, strict=False)), lambda seed: story_of(world(seed)))
    assert caught is not None, f"{MUTANT_SEEDS} seeds found nothing"
    seed, story = caught
    assert isinstance(story.__cause__, Caught), "the state machine noticed by itself"
    assert f"--seed {seed}" in str(story) and f"seed {seed}, " in str(story)


class Amnesia(Storm):
    """The database refuses, and soon after that the pool dies: again and again the next one knows less than workers and clients."""

    def _strike(self) -> None:
        if not self.calm:
            self.disk.stopped_ns = self.agenda.now_ns
            self.agenda.after(int(self.chance.uniform(0.05, 1) * SECOND_NS), self._forget_it)
            self.agenda.after(int(self.chance.uniform(2, 4) * SECOND_NS), self._strike)

    def _forget_it(self) -> None:
        if not self.calm:
            self.kill_pool()
        self.disk.stopped_ns = None


@pytest.mark.parametrize(
    "first",
    [
        *range(0, FEW_AMNESIA_SEEDS, 10),
        *(pytest.param(first, marks=pytest.mark.full_sweep) for first in range(FEW_AMNESIA_SEEDS, AMNESIA_SEEDS, 10)),
    ],
)
def test_what_a_pool_had_not_written_costs_nobody_a_session_that_was_written(first: int) -> None:
    failed = {seed: story for seed in range(first, first + 10) if (story := story_of(Amnesia(seed))) is not None}
    assert not failed


def test_a_pool_that_forgets_first_workers_is_caught(first_caught: FirstCaught) -> None:
    broken = machine_with(ForgetsFirstWorkers)
    caught = first_caught(MUTANT_SEEDS, lambda seed: story_of(Amnesia(seed, broken, strict=False)), lambda seed: story_of(Amnesia(seed)))
    assert caught is not None and isinstance(caught[1].__cause__, Caught)


def whole(seed: int) -> StoryTold | None:
    """With nothing broken."""
    return story_of(Storm(seed))


def story_of(storm: Storm) -> StoryTold | None:
    try:
        storm.run()
    except StoryTold as story:
        return story
    return None


def test_a_story_names_what_happened_to_the_objects_concerned(first_caught: FirstCaught) -> None:
    caught = first_caught(MUTANT_SEEDS, lambda seed: story_of(Storm(seed, machine_with(DoesNotWaitForTheDrain), strict=False)), whole)
    assert caught is not None
    story = str(caught[1])
    assert "is leased to " in story
    assert "Open(" in story and "Launch(" in story


def test_seeds_are_played_in_order_until_one_catches_what_is_broken(first_caught: FirstCaught) -> None:
    played: list[int] = []
    assert first_caught(3, lambda seed: played.append(seed), lambda seed: None) is None  # type: ignore[func-returns-value]
    assert played == [0, 1, 2]
    story = StoryTold("caught")
    assert first_caught(3, lambda seed: story if seed == 1 else None, lambda seed: None) == (1, story)


def test_a_seed_that_finds_something_in_what_is_whole_proves_nothing(first_caught: FirstCaught) -> None:
    story = StoryTold("caught")
    assert first_caught(3, lambda seed: story, lambda seed: story if seed < 2 else None) == (2, story)


def test_seeds_that_are_written_down_find_nothing_in_what_is_whole() -> None:
    written = {seed for test, seed in json.loads(CAUGHT_BY.read_text()).items() if "state_machine" in test}
    assert {seed: story for seed in written if seed >= FEW_SEEDS and (story := whole(seed)) is not None} == {}


def test_a_seed_can_be_played_alone() -> None:
    environment = os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT / 'bench'}"}
    command = [sys.executable, "-m", "simulation.seeds", "--seed", "3"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    _, steps, _, _ = play(3)
    assert done.stdout == f"seed 3: {steps} events, nothing amiss\n", done.stderr
