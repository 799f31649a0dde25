"""Group commit: jobs of many requests share one database transaction, because a commit costs far more than a row.

While one group is being made durable the next one gathers. A job that refuses its input takes only itself back; a database that
fails takes the whole group back, and every caller hears so. Callers are answered after the commit, never before.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from forebay_billing import failpoints
from forebay_billing.errors import CLOSING, BillingError, StoreUnavailable
from forebay_billing.ledger.books import Books, Memory
from forebay_billing.tables.engines import Engines, writing

GROUP_JOBS_MAX = 64
SHARED_JOBS_MAX = 16
"""The most callers for whom something is done at once."""
QUEUE_JOBS_MAX = 512

T = TypeVar("T")


OnCommit = Callable[[int, float], None]
"""Is told of every group that was committed: its jobs, and the seconds it took."""


@dataclass(frozen=True)
class Share:
    """A caller's ``part`` of what can be done for many callers at once: ``work`` gets all parts and returns what became of each."""

    work: Callable[[Books, Sequence[Any]], Sequence[Any]]
    part: Any


@dataclass(frozen=True)
class Job:
    """Something to write, and who waits for what becomes of it. With a ``share`` it may be done along with its neighbours."""

    work: Callable[[Books], Any]
    future: Future[Any]
    share: Share | None = None


class JobWriter(Protocol):
    """What the store needs of whoever writes."""

    @property
    def waiting(self) -> int: ...

    def submit(self, work: Callable[[Books], T], share: Share | None = None) -> Future[T]: ...

    def close(self) -> None: ...


class Committer:
    """Makes one transaction of a group of jobs, on the thread that asks; there is one at a time."""

    def __init__(self, engines: Engines, on_commit: OnCommit) -> None:
        self._engines = engines
        self._on_commit = on_commit
        self._memory = Memory()

    def commit(self, group: Sequence[Job]) -> None:
        """Does the jobs, commits, and then says to each what became of it."""
        started = time.monotonic()
        try:
            with writing(self._engines) as connection:
                books = Books(connection, self._memory)
                # one that is alone takes the whole transaction back where it refuses, and needs no savepoint
                alone = len(group) == 1
                outcomes = _work(books, group) if alone else [outcome for jobs in _runs(group) for outcome in self._do(books, jobs)]
                failpoints.reach("commit.before")
        except Exception as error:
            self._memory.forget()
            for job in group:
                job.future.set_exception(error)
            return
        failpoints.reach("commit.after")
        self._on_commit(len(group), time.monotonic() - started)
        for job, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, BillingError):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)

    def _do(self, books: Books, jobs: Sequence[Job]) -> Sequence[Any]:
        """What became of each job. Where one of several refuses, all are done again one by one, so that it takes only itself back."""
        savepoint = books.connection.begin_nested()
        try:
            done = _work(books, jobs)
        except BillingError as refusal:
            savepoint.rollback()
            self._memory.forget()
            books.look_again()
            return [refusal] if len(jobs) == 1 else [outcome for job in jobs for outcome in self._do(books, [job])]
        savepoint.commit()
        return done


def _work(books: Books, jobs: Sequence[Job]) -> Sequence[Any]:
    shares = [job.share for job in jobs if job.share is not None]
    if len(jobs) == 1 or len(shares) < len(jobs):
        return [job.work(books) for job in jobs]
    return shares[0].work(books, [share.part for share in shares])


def _runs(group: Sequence[Job]) -> list[list[Job]]:
    """The jobs in their order; those together that stand side by side and share their work."""
    runs: list[list[Job]] = []
    for job in group:
        before = runs[-1][-1].share if runs else None
        if before is not None and job.share is not None and before.work == job.share.work and len(runs[-1]) < SHARED_JOBS_MAX:
            runs[-1].append(job)
        else:
            runs.append([job])
    return runs


class Writer:
    """The one thread that writes."""

    def __init__(self, engines: Engines, on_commit: OnCommit) -> None:
        self._committer = Committer(engines, on_commit)
        self._queue: queue.Queue[Job | None] = queue.Queue(QUEUE_JOBS_MAX)
        self._closed = False
        self._closing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="billing-writer")
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that wait for their group."""
        return self._queue.qsize()

    def submit(self, work: Callable[[Books], T], share: Share | None = None) -> Future[T]:
        """Runs ``work`` in a later group; the future ends after its commit, with the result, a BillingError or StoreUnavailable."""
        future: Future[T] = Future()
        with self._closing:
            if self._closed:
                raise StoreUnavailable(CLOSING)
            try:
                self._queue.put_nowait(Job(work, future, share))
            except queue.Full:
                raise StoreUnavailable(f"{QUEUE_JOBS_MAX} writes are waiting; nothing was written, send the same again later.") from None
        return future

    def close(self) -> None:
        """Writes what was accepted, then ends the thread."""
        with self._closing:
            already, self._closed = self._closed, True
        if not already:
            self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        running = True
        while running:
            job = self._queue.get()
            group: list[Job] = []
            while job is not None:
                group.append(job)
                if len(group) == GROUP_JOBS_MAX:
                    break
                try:
                    job = self._queue.get_nowait()
                except queue.Empty:
                    break
            running = job is not None
            if group:
                self._committer.commit(group)
