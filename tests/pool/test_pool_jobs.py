"""Jobs: what becomes of one is decided by pure functions, kept in the database, and never run twice at a time whatever fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from forebay_pool.billing.job_notices import JobNotices
from forebay_pool.errors import BillingRefused, BillingUnavailable, HubRefused, HubUnavailable, JobConflict, ScheduleUnreadable
from forebay_pool.jobs.cron import next_time
from forebay_pool.jobs.dispatcher import Dispatcher, startable
from forebay_pool.model import jobs as decisions
from forebay_pool.model.jobs import Job, JobLimits, Program
from forebay_pool.store.database import Store
from forebay_pool.store.job_output import Piece
from forebay_pool.store.jobs import JobStore

SECOND = 10**9
NOW = 1_700_000_000 * SECOND
KEY, OTHER_KEY = "a" * 32, "b" * 32
LIMITS = JobLimits(
    running_max=3,
    running_per_user_max=2,
    waiting_per_user_max=5,
    schedules_per_user_max=2,
    kept_per_user_max=3,
    output_run_bytes_max=10_000,
    output_job_bytes_max=20_000,
    output_user_bytes_max=40_000,
    output_bytes_max=100_000,
)
PROGRAM = Program("script", "train.py", ("--epochs", "3"), "work", "train.py", None, 2, None)


def job(number: int = 1, user: str = "ada", **more: Any) -> Job:
    return replace(Job(number, "acme", user, PROGRAM, NOW), **more)


def running(key: str = KEY) -> Job:
    return decisions.begun(decisions.started(job(), NOW), key, NOW)


@pytest.fixture
def jobs(store: Store) -> JobStore:
    return JobStore(store, LIMITS)


# What becomes of a job


def test_a_run_that_ends_well_has_succeeded_and_one_that_does_not_has_failed() -> None:
    assert decisions.ended(running(), KEY, 0, None, NOW).state == "succeeded"
    failed = decisions.ended(running(), KEY, 3, "exit_status", NOW)
    assert (failed.state, failed.exit_status, failed.reason) == ("failed", 3, "exit_status")


def test_what_was_lost_is_run_again_later_each_time_and_has_failed_where_it_was_lost_too_often() -> None:
    one, pauses = job(), []
    while not one.over:
        one = decisions.gone(decisions.lost(decisions.begun(decisions.started(one, NOW), KEY, NOW), "server_lost", NOW))
        pauses.append((one.not_before_ns - NOW) // SECOND)
    assert (one.state, one.reason, one.attempt) == ("failed", "server_lost", 3)
    assert pauses[:2] == [10, 20]


def test_a_job_has_one_runner_which_may_say_everything_twice() -> None:
    one = running()
    assert decisions.begun(one, KEY, NOW + SECOND) == one
    with pytest.raises(JobConflict, match="is running: no runner is expected"):
        decisions.begun(one, OTHER_KEY, NOW)
    over = decisions.ended(one, KEY, 0, None, NOW)
    assert replace(decisions.ended(over, KEY, 0, None, NOW), heard_ns=None) == replace(over, heard_ns=None)


def test_a_runner_whose_run_was_given_up_speaks_for_no_later_one() -> None:
    lost = decisions.lost(running(), "silent", NOW)
    for speak in (lambda: decisions.heard(lost, KEY, NOW), lambda: decisions.ended(lost, KEY, 0, None, NOW)):
        with pytest.raises(JobConflict, match="This run of job 1 is over"):
            speak()


def test_a_job_that_was_cancelled_stays_so_whatever_its_runner_says() -> None:
    cancelled = decisions.cancelled(running(), True, NOW)
    assert decisions.ended(cancelled, KEY, 0, None, NOW).state == "cancelled"
    with pytest.raises(JobConflict, match="Job 1 is cancelled already"):
        decisions.cancelled(cancelled, True, NOW)


def test_a_user_is_told_of_ends_failures_budgets_and_repeated_runs_and_not_of_what_they_did_themselves() -> None:
    before = running()
    found = {
        "ended": decisions.ended(before, KEY, 0, None, NOW), "failed": decisions.ended(before, KEY, 3, "exit_status", NOW),
        "budget": decisions.ended(before, KEY, 1, "budget", NOW), "retried": decisions.lost(before, "worker_lost", NOW),
    }  # fmt: skip
    assert {kind: decisions.notice_kind(before, after) for kind, after in found.items()} == {kind: kind for kind in found}
    assert decisions.notice_kind(before, decisions.cancelled(before, True, NOW)) is None
    assert decisions.notice_kind(before, decisions.cancelled(before, False, NOW)) == "failed"
    started = decisions.started(job(), NOW)
    assert decisions.notice_kind(job(), started) is None, "it only started"
    assert decisions.notice_kind(started, decisions.put_back(started, NOW)) is None, "JupyterHub was away: nothing was lost"


# The database


@pytest.mark.parametrize(("environment", "label"), [(None, None), ("work", "experiment first")])
def test_a_job_is_kept_as_it_was_given(jobs: JobStore, environment: str | None, label: str | None) -> None:
    program = replace(PROGRAM, environment=environment, label=label)
    made = jobs.add("acme", "ada", program, NOW)
    assert made == Job(made.id, "acme", "ada", program, NOW, not_before_ns=NOW, since_ns=NOW)
    assert jobs.job(made.id) == made
    assert made.label == (label or f"job {made.id}: train.py")
    assert jobs.jobs("acme", "ada", 10, None) == [made]
    assert jobs.jobs("globex", "ada", 10, None) == []


class Billing:
    """Takes what it is told, unless it is away, or refuses it."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.error: Exception | None = None

    async def send_notice(self, body: Any) -> None:
        if self.error is not None:
            raise self.error
        self.told.append(body)


class AtOnce:
    """A writer that makes each write where it is asked."""

    def call(self, write: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(write())
        return future


def test_what_a_user_is_to_be_told_waits_for_billing_and_is_told_once_it_has_it(store: Store) -> None:
    jobs, billing = JobStore(store, LIMITS, tells=True), Billing()
    outbox = JobNotices(jobs, AtOnce(), billing, "pool")  # type: ignore[arg-type] # all that it needs of a writer
    for notify in (None, "failures", "none"):
        made = jobs.add("acme", "ada", replace(PROGRAM, notify=notify), NOW)
        jobs.change(made.id, lambda one: decisions.begun(decisions.started(one, NOW), KEY, NOW))
        jobs.append(made.id, lambda one: decisions.heard(one, KEY, NOW), [], waits=True)
        jobs.change(made.id, lambda one: decisions.ended(one, KEY, 0, None, NOW + 75 * SECOND))
    billing.error = BillingUnavailable("away")
    assert not asyncio.run(outbox.deliver()) and billing.told == []
    billing.error = None
    assert asyncio.run(outbox.deliver()) and asyncio.run(outbox.deliver())
    assert [(one["job"], one["kind"], one["notify"]) for one in billing.told] == [
        (1, "budget", None), (1, "ended", None), (2, "budget", "failures")
    ]  # fmt: skip
    assert (billing.told[0]["why"], billing.told[0]["cause"]["code"]) == ("A budget is used up.", "budget")
    assert (billing.told[1]["seconds"], billing.told[1]["key"], billing.told[1]["why"]) == (75.0, "pool/job-1/1/ended", None)
    made = jobs.add("acme", "ada", PROGRAM, NOW)
    jobs.change(made.id, lambda one: decisions.cancelled(one, False, NOW))
    billing.error = BillingRefused("60 notices went out")
    assert asyncio.run(outbox.deliver()) and jobs.notices() == [], "what is refused is told nowhere, and nothing waits behind it"


def test_nothing_waits_where_nobody_tells(jobs: JobStore) -> None:
    made = jobs.add("acme", "ada", replace(PROGRAM, notify="all"), NOW)
    jobs.change(made.id, lambda one: decisions.cancelled(one, False, NOW))
    assert jobs.notices() == []


def test_who_has_too_many_jobs_gets_no_more_until_one_is_over(jobs: JobStore) -> None:
    made = [jobs.add("acme", "ada", PROGRAM, NOW) for _ in range(LIMITS.waiting_per_user_max)]
    with pytest.raises(JobConflict, match="ada has 5 jobs that are not over"):
        jobs.add("acme", "ada", PROGRAM, NOW)
    jobs.add("acme", "ben", PROGRAM, NOW)
    jobs.change(made[0].id, lambda one: decisions.cancelled(one, True, NOW))
    jobs.add("acme", "ada", PROGRAM, NOW)


def test_the_newest_jobs_that_are_over_are_kept_and_the_others_forgotten_with_their_output(jobs: JobStore, store: Store) -> None:
    for _ in range(6):
        made = jobs.add("acme", "ada", PROGRAM, NOW)
        jobs.change(made.id, lambda one: decisions.begun(decisions.started(one, NOW), KEY, NOW))
        jobs.append(made.id, lambda one: decisions.heard(one, KEY, NOW), [Piece(1, "printed")])
        jobs.change(made.id, lambda one: decisions.gone(decisions.ended(one, KEY, 0, None, NOW)))
    assert len(jobs.jobs("acme", "ada", 10, None)) == LIMITS.kept_per_user_max
    with store.engine.connect() as connection:
        assert connection.exec_driver_sql("select count(*) from job_output").scalar_one() == LIMITS.kept_per_user_max


def test_what_is_printed_is_kept_once_and_in_order(jobs: JobStore) -> None:
    made = jobs.add("acme", "ada", PROGRAM, NOW)
    jobs.change(made.id, lambda one: decisions.begun(decisions.started(one, NOW), KEY, NOW))
    pieces = [Piece(number, f"{number:030}") for number in range(1, 7)]
    heard: Callable[[Job], Job] = lambda one: decisions.heard(one, KEY, NOW + SECOND)  # noqa: E731
    jobs.append(made.id, heard, pieces[:2])
    jobs.append(made.id, heard, pieces[:4])
    jobs.append(made.id, heard, pieces[4:])
    assert jobs.output(made.id, 1, 0) == pieces
    assert jobs.output(made.id, 1, 4) == pieces[4:]
    with pytest.raises(JobConflict):
        jobs.append(made.id, lambda one: decisions.heard(one, OTHER_KEY, NOW), [Piece(7, "of another")])
    assert jobs.output(made.id, 1, 6) == []


# Schedules


@pytest.mark.parametrize(
    ("cron", "zone", "after", "expected"),
    [
        ("30 2 * * 1-5", "UTC", "2026-11-27T02:30:00", "2026-11-30T02:30:00"),
        ("0 9 * * *", "Asia/Seoul", "2026-11-27T00:00:00", "2026-11-28T00:00:00"),
        ("*/15 * * * *", "UTC", "2026-11-27T10:07:30", "2026-11-27T10:15:00"),
    ],
)
def test_a_schedule_comes_due_at_the_times_of_its_zone(cron: str, zone: str, after: str, expected: str) -> None:
    at, then = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (after, expected))
    assert next_time(cron, zone, int(at.timestamp()) * SECOND) == int(then.timestamp()) * SECOND


@pytest.mark.parametrize(
    ("cron", "zone", "why"),
    [
        ("@daily", "UTC", "it has five fields"),
        ("0 0 0 * * *", "UTC", "it has five fields"),
        ("61 * * * *", "UTC", "Bad minute"),
        ("0 0 31 2 *", "UTC", "(never comes due|Bad day)"),
        ("0 0 * * *", "Mars/Olympus", "is no time zone"),
        ("0 0 * * *", "../../etc/passwd", "is no time zone"),
    ],
)
def test_what_is_no_schedule_is_refused(cron: str, zone: str, why: str) -> None:
    with pytest.raises(ScheduleUnreadable, match=why):
        next_time(cron, zone, NOW)


def test_a_schedule_makes_one_job_when_due_and_none_while_its_job_before_goes_on(jobs: JobStore) -> None:
    made = jobs.add_schedule("acme", "ada", PROGRAM, "0 * * * *", "UTC", NOW + 60 * SECOND, NOW)
    assert jobs.due_schedules(NOW) == []
    first = jobs.repeat(made, NOW + 120 * SECOND, NOW + 60 * SECOND)
    assert first is not None and first.schedule == made.id
    assert jobs.repeat(made, NOW + 120 * SECOND, NOW + 60 * SECOND) is None  # as another pool would that read the same row
    (due,) = jobs.due_schedules(NOW + 120 * SECOND)
    assert jobs.repeat(due, NOW + 180 * SECOND, NOW + 120 * SECOND) is None
    assert jobs.schedules("acme", "ada")[0].skipped_ns == NOW + 120 * SECOND
    jobs.change(first.id, lambda one: decisions.cancelled(one, True, NOW))
    (due,) = jobs.due_schedules(NOW + 180 * SECOND)
    assert jobs.repeat(due, NOW + 240 * SECOND, NOW + 180 * SECOND) is not None
    assert len(jobs.jobs("acme", "ada", 10, None)) == 2


# Who starts


def test_who_has_fewest_running_starts_first_and_nobody_has_more_than_the_limits() -> None:
    due = [job(1), job(2), job(3), job(4, "ben"), job(5, "eva")]
    assert [one.id for one in startable(due, [], LIMITS)] == [1, 4, 5]
    there = [job(9, state="running", server=True)]
    assert [one.id for one in startable(due, there, LIMITS)] == [4, 5]
    assert startable(due, [job(number, user=f"u{number}") for number in (7, 8, 9)], LIMITS) == []


# Everything fails


@dataclass
class World:
    """JupyterHub and the runners of its servers, in virtual time: anything may fail at any step. It sees when two runs overlap."""

    jobs: JobStore
    chance: random.Random
    now_ns: int = NOW
    servers: dict[str, str] = field(default_factory=dict)
    """By name: the key of the runner, empty while it has not begun."""
    programs: dict[str, str] = field(default_factory=dict)
    """By name of the server: whose program runs."""
    runs: int = 0
    calm: bool = False

    def _fails(self, share: float) -> bool:
        return not self.calm and self.chance.random() < share

    async def start(self, user: str, name: str) -> None:
        if self._fails(0.1):
            raise HubUnavailable("away")
        if self._fails(0.01):
            raise HubRefused("no such user")
        if name not in self.servers and not self._fails(0.2):
            self.servers[name] = ""
        if self._fails(0.1):
            raise HubUnavailable("the answer was lost")

    async def is_there(self, user: str, name: str) -> bool:
        if self._fails(0.1):
            raise HubUnavailable("away")
        return name in self.servers

    async def remove(self, user: str, name: str) -> bool:
        if self._fails(0.1):
            raise HubUnavailable("away")
        if self._fails(0.3):
            return False
        self._kill(name)
        return True

    def _kill(self, name: str) -> None:
        self.servers.pop(name, None)
        self.programs.pop(name, None)

    def step(self) -> None:
        """Every runner goes on a little: begins, speaks, ends, dies, or hangs."""
        self.now_ns += self.chance.choice((1, 5, 40)) * SECOND
        for name, key in list(self.servers.items()):
            number = int(name.removeprefix("job-"))
            if self._fails(0.05):
                self._kill(name)
            elif self._fails(0.2):
                continue
            elif not key:
                self._begin(name, number)
            elif self.calm or self.chance.random() < 0.5:
                self._end(name, number, key)
            else:
                self._speak(name, lambda one, key=key: decisions.heard(one, key, self.now_ns), number)

    def _speak(self, name: str, decide: Callable[[Job], Job], number: int) -> bool:
        """A runner that is refused ends itself with its program."""
        try:
            return self.jobs.change(number, decide) is not None
        except JobConflict:
            self._kill(name)
            return False

    def _begin(self, name: str, number: int) -> None:
        key = f"{self.chance.getrandbits(128):032x}"
        if self._speak(name, lambda one: decisions.begun(one, key, self.now_ns), number):
            assert name not in self.programs, f"two programs of {name}"
            self.servers[name] = self.programs[name] = key
            self.runs += 1

    def _end(self, name: str, number: int, key: str) -> None:
        reason: Any = "worker_lost" if self._fails(0.2) else None
        status = 0 if reason is None else 1
        if self._speak(name, lambda one: decisions.ended(one, key, status, reason, self.now_ns), number):
            self._kill(name)


def play(jobs: JobStore, seed: int) -> World:
    chance = random.Random(seed)
    world = World(jobs, chance)

    async def write(call: Callable[[], Any]) -> Any:
        return call()

    async def go() -> None:
        dispatcher = Dispatcher(jobs, world, write, LIMITS, lambda: world.now_ns, lambda: world.now_ns / 1e9)
        for step in range(400):
            if step < 40 and chance.random() < 0.3:
                user = chance.choice(("ada", "ben"))
                try:
                    jobs.add("acme", user, PROGRAM, world.now_ns)
                except JobConflict:
                    assert sum(not one.over for one in jobs.jobs("acme", user, 100, None)) == LIMITS.waiting_per_user_max
            if step < 100 and chance.random() < 0.03:
                known = jobs.jobs("acme", None, 100, None)
                if known:
                    number = chance.choice(known).id
                    try:
                        jobs.change(number, lambda one: decisions.cancelled(one, True, world.now_ns))
                    except JobConflict:
                        assert chance
            world.calm = step > 250
            if chance.random() < 0.1:
                dispatcher = Dispatcher(jobs, world, write, LIMITS, lambda: world.now_ns, lambda: world.now_ns / 1e9)  # another pool leads
            await dispatcher.look()
            there = jobs.with_servers()
            assert set(world.servers) <= {one.server_name for one in there}, "a server that the database does not know of"
            assert len(there) <= LIMITS.running_max
            world.step()

    asyncio.run(go())
    return world


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(one, marks=pytest.mark.full_sweep) for one in range(4, 60))])
def test_whatever_fails_no_job_runs_twice_at_a_time_and_each_comes_to_an_end(tmp_path: Any, seed: int) -> None:
    store = Store(f"sqlite:///{tmp_path / 'pool.sqlite'}")
    store.migrate()
    store.lead("http://here/")
    jobs = JobStore(store, replace(LIMITS, kept_per_user_max=100))
    world = play(jobs, seed)
    ended = jobs.jobs("acme", None, 100, None)
    store.close()
    assert ended and all(one.over and not one.server for one in ended), [one for one in ended if not one.over]
    assert all(one.attempt <= PROGRAM.retries_max + 1 for one in ended)
    assert not world.programs and world.runs >= sum(one.state == "succeeded" for one in ended) > 0


@pytest.mark.parametrize("turns", range(5))
def test_a_dispatcher_ends_when_it_is_cancelled_though_news_come_with_that(jobs: JobStore, turns: int) -> None:
    """Else a pool that is stopped as a job begins or ends would never end."""

    async def write(call: Callable[[], Any]) -> Any:
        return call()

    async def go() -> bool:
        world = World(jobs, random.Random(1), calm=True)
        dispatcher = Dispatcher(jobs, world, write, LIMITS, lambda: world.now_ns)
        task = asyncio.create_task(dispatcher.run())
        await asyncio.sleep(0.1)  # it waits for news
        dispatcher.told(jobs.add("acme", "ada", PROGRAM, world.now_ns))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        return task in (await asyncio.wait({task}, timeout=5))[0] and task.cancelled()

    assert asyncio.run(go())


@pytest.mark.parametrize("step_seconds", [3600, -3600, 86_400 * 365])
def test_a_clock_that_is_set_loses_no_job_and_one_that_runs_finds_the_silent(jobs: JobStore, step_seconds: int) -> None:
    """What a runner said last is written down by the wall clock, which an administrator or a time server may set."""
    world = World(jobs, random.Random(1), calm=True)
    awake = [50.0]

    async def write(call: Callable[[], Any]) -> Any:
        return call()

    async def go() -> None:
        dispatcher = Dispatcher(jobs, world, write, LIMITS, lambda: world.now_ns, lambda: awake[0])
        number = jobs.add("acme", "ada", PROGRAM, world.now_ns).id
        jobs.change(number, lambda one: decisions.started(one, world.now_ns))
        jobs.change(number, lambda one: decisions.begun(one, KEY, world.now_ns))
        world.servers[f"job-{number}"] = KEY
        await dispatcher.look()
        world.now_ns += step_seconds * SECOND
        for _ in range(3):
            awake[0] += decisions.SILENCE_SECONDS_MAX / 3
            await dispatcher.look()
            assert job_of(jobs, number).state == "running"
        jobs.change(number, lambda one: decisions.heard(one, KEY, world.now_ns))
        await dispatcher.look()
        awake[0] += decisions.SILENCE_SECONDS_MAX
        await dispatcher.look()
        assert job_of(jobs, number).state == "running"
        awake[0] += 0.1
        await dispatcher.look()
        assert (job_of(jobs, number).state, job_of(jobs, number).reason) == ("queued", "silent")

    asyncio.run(go())


def job_of(jobs: JobStore, number: int) -> Job:
    found = jobs.job(number)
    assert found is not None
    return found
