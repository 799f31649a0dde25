"""The one thread that writes to the database: group commit, order, and patience with a full disk."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from forebay_service.errors import RequestError
from forebay_service.processes.leadership import reason
from sqlalchemy.exc import SQLAlchemyError

from forebay_pool.errors import Deposed, StoreUnavailable
from forebay_pool.model.snapshot import LeaseSnapshot, ParkingSnapshot, SessionSnapshot, WorkerSnapshot
from forebay_pool.model.types import UsageRecord
from forebay_pool.store.batch import Batch

BATCH_RECORDS_MAX = 500
"""Most records in one commit."""
GATHER_SECONDS = 0.02
"""How long the first record of a commit waits for others: a commit costs far more than a row, and nobody waits for it."""
RETRY_SECONDS_FIRST = 0.1
RETRY_SECONDS_MAX = 5.0
JOBS_MAX = 1_000
"""Most other writes waiting for the thread."""

UNAVAILABLE = "The database cannot be written at present; try again in a minute, or tell an operator."

log = logging.getLogger(__name__)
T = TypeVar("T")


class BatchStore(Protocol):
    """What the writer needs of the store."""

    def write(self, batch: Batch, deliver: bool) -> None: ...


class Writer:
    """Takes usage records from memory to disk, in order, with how sessions, workers and open leases stand, and makes other writes
    between two commits. Records wait in memory as long as they must; of all else the last word is enough, so it cannot pile up.

    ``on_backlog(accepting)`` is called from the thread when the backlog passes ``backlog_max`` and when it has gone down to half;
    ``on_committed(count)`` after each commit of records; ``on_failure()`` after each that failed; ``on_deposed()`` once, when
    another pool leads: nothing is written after that.
    """

    def __init__(
        self,
        store: BatchStore,
        *,
        deliver: bool,
        backlog_max: int,
        on_backlog: Callable[[bool], None],
        on_committed: Callable[[int], None],
        on_failure: Callable[[], None],
        on_deposed: Callable[[], None],
    ) -> None:
        self._store = store
        self._deliver = deliver
        self._backlog_max = backlog_max
        self._on_backlog = on_backlog
        self._on_committed = on_committed
        self._on_failure = on_failure
        self._on_deposed = on_deposed
        self._standing = Batch()
        self._records: deque[UsageRecord] = deque()
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._deposed = False
        self._accepting = True
        self.trouble: str | None = None
        """Why the last commit failed, in a sentence for everybody; None: it did not."""
        self._thread = threading.Thread(target=self._run, name="forebay-writer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def backlog(self) -> int:
        """Records in memory that are not on disk."""
        return len(self._records)

    def put(self, record: UsageRecord) -> None:
        """Takes a record; never waits, never refuses."""
        with self._wake:
            self._records.append(record)
            self._forget(record)
            if len(self._records) in (1, BATCH_RECORDS_MAX):
                self._wake.notify()
        if self._accepting and len(self._records) > self._backlog_max:
            self._accepting = False
            self._on_backlog(False)

    def keep_session(self, name: str, session: SessionSnapshot | None) -> None:
        """How the session stands; None once it is over. Like the next three, never waits."""
        with self._wake:
            self._wake_for_first()
            self._standing.sessions[name] = session

    def keep_worker(self, name: str, worker: WorkerSnapshot | None) -> None:
        with self._wake:
            self._wake_for_first()
            self._standing.workers[name] = worker

    def keep_lease(self, lease: LeaseSnapshot) -> None:
        """A lease opened, or its clock started; its record ends it."""
        with self._wake:
            self._wake_for_first()
            self._standing.keep_lease(lease)

    def keep_parking(self, name: str, parking: ParkingSnapshot | None) -> None:
        """A session was parked; its last record ends it, or None."""
        with self._wake:
            self._wake_for_first()
            self._standing.parkings[name] = parking

    def confirm(self, held_ns: Mapping[str, int]) -> None:
        """For how long workers have confirmed to hold these leases."""
        with self._wake:
            self._wake_for_first()
            self._standing.confirmed_ns |= held_ns

    def _wake_for_first(self) -> None:
        """Whoever comes after the first is gathered with it."""
        if not self._standing:
            self._wake.notify()

    def call(self, job: Callable[[], T]) -> Future[T]:
        """Runs ``job`` on the thread. The future fails with StoreUnavailable, or with what the job refuses."""
        future: Future[T] = Future()
        with self._wake:
            if self._stopping or self._deposed or len(self._jobs) >= JOBS_MAX:
                future.set_exception(StoreUnavailable("the database is busy; try again later"))
                return future
            self._jobs.append((job, future))
            self._wake.notify()
        return future

    def close(self, timeout_seconds: float) -> int:
        """Writes what is left, at most for so long; how many records stay unwritten."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join(timeout_seconds)
        left = len(self._records)
        if left and not self._deposed:
            fields = {"action": "records_lost", "records": left}
            log.error("%d usage records lost: the database did not take them before the end", left, extra=fields)
        return left

    def _run(self) -> None:
        pause_seconds = 0.0
        while self._await_work(pause_seconds):
            try:
                self._run_jobs()
                pause_seconds = 0.0 if self._commit() else min(RETRY_SECONDS_MAX, max(RETRY_SECONDS_FIRST, 2 * pause_seconds))
            except Deposed as error:
                log.error("%s", error, extra={"action": "deposed"})
                self._give_up()
                return

    def _await_work(self, pause_seconds: float) -> bool:
        """Waits for something to do; after a failure only jobs cut the pause short. False once all is done and nothing will come."""
        with self._wake:
            if pause_seconds:
                self._wake.wait_for(lambda: bool(self._jobs), RETRY_SECONDS_FIRST if self._stopping else pause_seconds)
            else:
                self._wake.wait_for(lambda: bool(self._jobs or self._records or self._standing) or self._stopping)
                self._wake.wait_for(lambda: bool(self._jobs) or self._stopping or len(self._records) >= BATCH_RECORDS_MAX, GATHER_SECONDS)
            return bool(self._jobs or self._records or self._standing) or not self._stopping

    def _run_jobs(self) -> None:
        while self._jobs:
            job, future = self._jobs.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(job())
            except SQLAlchemyError as error:
                log.warning("a write failed: %s", reason(error), extra={"action": "store_failed"})
                self._on_failure()
                future.set_exception(StoreUnavailable(UNAVAILABLE))
            except Deposed as error:
                future.set_exception(StoreUnavailable(str(error)))
                raise
            except RequestError as error:
                future.set_exception(error)

    def _take(self) -> Batch:
        """The next commit. What it says of standing things is taken out, its records stay in the queue until they are written."""
        with self._wake:
            batch, self._standing = self._standing, Batch()
            count = min(len(self._records), BATCH_RECORDS_MAX)
            batch.records = [self._records[index] for index in range(count)]
            return batch

    def _commit(self) -> bool:
        batch = self._take()
        if not batch:
            return True
        try:
            self._store.write(batch, self._deliver)
        except SQLAlchemyError as error:
            fields = {"action": "store_failed", "records": len(self._records)}
            log.error("%d usage records wait in memory: %s", len(self._records), reason(error), extra=fields)
            self._take_back(batch)
            self.trouble = "The database cannot be written: what is metered waits in memory."
            self._on_failure()
            return False
        self.trouble = None
        for _ in batch.records:
            self._records.popleft()
        if batch.records:
            self._on_committed(len(batch.records))
        if not self._accepting and len(self._records) <= self._backlog_max // 2:
            self._accepting = True
            self._on_backlog(True)
        return True

    def _take_back(self, batch: Batch) -> None:
        """A lease that closed meanwhile needs no row any more: its record waits."""
        with self._wake:
            batch.older_than(self._standing)
            for record in self._records:
                self._forget(record)

    def _forget(self, record: UsageRecord) -> None:
        """A lease, or a stretch of parked time, needs no row any more once its last record waits."""
        if record.is_last and record.parked_bytes is not None:
            self._standing.parkings.pop(record.lease, None)
        elif record.is_last:
            self._standing.leases.pop(record.lease, None)
            self._standing.confirmed_ns.pop(record.lease, None)

    def _give_up(self) -> None:
        with self._wake:
            self._deposed = True
            jobs, self._jobs = self._jobs, deque()
            self._standing = Batch()
        for _, future in jobs:
            future.set_exception(StoreUnavailable(UNAVAILABLE))
        self._on_deposed()
