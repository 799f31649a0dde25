"""Starts jobs, follows their servers, and removes those; the state is in the database, and another pool goes on with it.

Decisions are those of :mod:`forebay_pool.model.jobs`; each is made in the transaction that writes it, of the job as it then is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from forebay_pool.errors import HubRefused, HubUnavailable, ScheduleUnreadable, StoreUnavailable
from forebay_pool.jobs.cron import next_time
from forebay_pool.jobs.file_transfers import FileTransfers
from forebay_pool.jobs.hub import Servers
from forebay_pool.model import jobs as decisions
from forebay_pool.model.jobs import Job, JobLimits, JobReason, Schedule
from forebay_pool.store.jobs import JobStore

LOOK_SECONDS = 2.0
"""How often jobs are looked after, beside whenever there is news."""
UNREADABLE_SECONDS = 86_400
"""A schedule that cannot be read any more, as its time zone is gone, is tried again so late."""

log = logging.getLogger(__name__)
T = TypeVar("T")
Write = Callable[[Callable[[], Any]], Awaitable[Any]]


class Dispatcher:
    """One for each pool that leads. ``write`` makes a call on the writer's thread."""

    def __init__(
        self,
        store: JobStore,
        servers: Servers,
        write: Write,
        limits: JobLimits,
        clock_ns: Callable[[], int],
        awake_seconds: Callable[[], float] = time.monotonic,
        files: FileTransfers | None = None,
    ) -> None:
        """``clock_ns`` tells dates; ``awake_seconds`` is a clock that is never set, by which silence is judged."""
        self.store = store
        self.files = files
        """None where no files are taken along."""
        self.servers = servers
        self._write = write
        self._limits = limits
        self.clock_ns = clock_ns
        self._silences = decisions.Silences(awake_seconds)
        self._wake = asyncio.Event()
        self._news: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.look()
            except StoreUnavailable as error:
                log.warning("jobs wait for the database: %s", error, extra={"action": "jobs_wait"})
            await self.wait(self._wake, LOOK_SECONDS)

    def told(self, job: Job) -> None:
        """There is news of a job: whoever waits for it is woken, and what follows is done at once."""
        self.printed(job.id)
        self._wake.set()

    def printed(self, number: int) -> None:
        """A job printed something: who waits for it is woken."""
        event = self._news.pop(number, None)
        if event is not None:
            event.set()

    def news_of(self, number: int) -> asyncio.Event:
        """Is set with the next news of a job."""
        return self._news[number]

    async def wait(self, news: asyncio.Event, seconds: float) -> None:
        """At most for so long. ``asyncio.wait_for`` would lose a cancellation that comes with the news, in Python 3.11."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await news.wait()

    async def look(self) -> None:
        """Does all that is to be done now. Raises StoreUnavailable."""
        for schedule in await self._read(self.store.due_schedules, self.clock_ns()):
            await self._repeat(schedule)
        there = await self._read(self.store.with_servers)
        self._silences.forget_but(there)
        await _all(self._follow(job) for job in there)
        there = await self._read(self.store.with_servers)
        due = await self._read(self.store.due, self.clock_ns())
        await _all(self._start(job) for job in startable(due, there, self._limits))

    async def _repeat(self, schedule: Schedule) -> None:
        now_ns = self.clock_ns()
        try:
            next_ns = next_time(schedule.cron, schedule.zone, now_ns)
        except ScheduleUnreadable as error:
            fields = {"action": "schedule_unreadable", "schedule": schedule.id, "tenant": schedule.tenant, "user": schedule.user}
            log.error("schedule %d: %s", schedule.id, error, extra=fields)
            next_ns = now_ns + UNREADABLE_SECONDS * 10**9
        job = await self._write(lambda: self.store.repeat(schedule, next_ns, now_ns))
        if job is not None:
            _tell("job_repeated", job)

    async def _start(self, job: Job) -> None:
        """The database knows of the server before JupyterHub does, so that none is forgotten."""
        now_ns = self.clock_ns()
        job = await self._decide(job, lambda now: decisions.started(now, now_ns))
        _tell("job_starting", job)
        try:
            await self.servers.start(job.user, job.server_name)
        except HubRefused as error:
            log.warning("job %d is refused by JupyterHub: %s", job.id, error, extra={"action": "job_refused", "job": job.id})
            await self._decide(job, lambda now: decisions.closed(now, "failed", "refused", now_ns))
        except HubUnavailable as error:
            log.warning("job %d waits: %s", job.id, error, extra={"action": "job_waits", "job": job.id})
            await self._decide(job, lambda now: decisions.put_back(now, now_ns))

    async def _follow(self, job: Job) -> None:
        try:
            if job.state in ("starting", "running"):
                await self._check(job)
            elif await self.servers.remove(job.user, job.server_name):
                await self._decide(job, decisions.gone)
        except HubUnavailable as error:
            log.warning("job %d: %s", job.id, error, extra={"action": "hub_unavailable", "job": job.id})

    async def _check(self, job: Job) -> None:
        silent_seconds = self._silences.of(job)
        if not await self.servers.is_there(job.user, job.server_name):
            await self._lose(job, "server_lost" if job.state == "running" else "not_started")
        elif decisions.overdue(job, silent_seconds):
            await self._lose(job, "silent" if job.state == "running" else "not_started")

    async def _lose(self, job: Job, reason: JobReason) -> None:
        now_ns = self.clock_ns()
        _tell("job_lost", await self._decide(job, lambda now: decisions.lost(now, reason, now_ns)), reason=reason)

    async def write(self, call: Callable[[], T]) -> T:
        """Makes a call on the writer's thread. Raises StoreUnavailable."""
        found: T = await self._write(call)
        return found

    async def _decide(self, seen: Job, decide: Callable[[Job], Job]) -> Job:
        """What the job becomes, unless something happened to it since it was seen. Raises StoreUnavailable."""

        def unless_changed(now: Job) -> Job:
            return decide(now) if (now.state, now.attempt) == (seen.state, seen.attempt) else now

        found: Job | None = await self._write(lambda: self.store.change(seen.id, unless_changed))
        if found is None:
            return seen
        if found != seen:
            self.told(found)
        return found

    async def _read(self, call: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.to_thread(partial(call, *arguments))


def startable(due: Sequence[Job], there: Sequence[Job], limits: JobLimits) -> list[Job]:
    """Which of those that wait may start now: the users who have fewest running first, and of a user the oldest. Pure."""
    running = Counter((job.tenant, job.user) for job in there)
    waiting: defaultdict[tuple[str, str], list[Job]] = defaultdict(list)
    for job in due:
        waiting[job.tenant, job.user].append(job)
    chosen: list[Job] = []
    while len(there) + len(chosen) < limits.running_max:
        ready = [owner for owner, jobs in waiting.items() if jobs and running[owner] < limits.running_per_user_max]
        if not ready:
            break
        owner = min(ready, key=lambda one: (running[one], waiting[one][0].id))
        chosen.append(waiting[owner].pop(0))
        running[owner] += 1
    return chosen


async def _all(calls: Iterable[Awaitable[None]]) -> None:
    await asyncio.gather(*calls)


def _tell(action: str, job: Job, **fields: object) -> None:
    told = {"action": action, "job": job.id, "tenant": job.tenant, "user": job.user, "attempt": job.attempt, **fields}
    log.info("job %d of %s is %s (run %d)", job.id, job.user, job.state, job.attempt, extra=told)
