"""The pool's database, for real: what the pool of :mod:`simulation.storm` writes, and the outbox that brings it to billing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

from forebay_pool.billing.client import BillingClient
from forebay_pool.billing.heartbeats import Budget, Heartbeats
from forebay_pool.billing.outbox import RETRY_SECONDS_FIRST, RETRY_SECONDS_MAX, Outbox
from forebay_pool.errors import StoreUnavailable
from forebay_pool.hosts.process_identity import boot_id
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.events import Event
from forebay_pool.model.instructions import Instruction, Meter, MeterParked
from forebay_pool.model.snapshot import Snapshot
from forebay_pool.model.types import UsageRecord
from forebay_pool.store import snapshot_rows
from forebay_pool.store.batch import Batch
from forebay_pool.store.database import Store
from forebay_pool.store.tables import OUTBOX, WORKERS
from sqlalchemy import func, select

from simulation.agenda import MILLISECOND_NS, SECOND_NS, Agenda
from simulation.auditor import Auditor
from simulation.disk import Disk
from simulation.money.billing_process import POOL
from simulation.money.deaths import Deaths, Killed
from simulation.money.limits import Beat, LimitBook, Limited
from simulation.outages import GATHER_NS

T = TypeVar("T")
POOL_FILE = "pool.sqlite3"
SOURCE = "pool"
REFUSED_RETRY_NS = 10 * SECOND_NS
BEAT_NS = 3 * SECOND_NS
AGAIN_NS = 100 * MILLISECOND_NS


@cache
def _store_of(url: str) -> Store:
    """Of a database's place, for all that are there one after the other: it knows statements that were compiled before."""
    return Store(url)


class LimitsInForce(Protocol):
    """Whoever knows the budgets that billing surely has."""

    def limits_in_force(self) -> dict[Limited, dict[str, Any]]: ...


class Pool(Protocol):
    """The scenario, as the pool's books see it."""

    agenda: Agenda
    auditor: Auditor
    chance: random.Random
    down: bool
    machine: StateMachine
    told_ns: int
    unix_offset_ns: int

    @property
    def operators(self) -> LimitsInForce: ...

    def apply(self, event: Event) -> None: ...

    def note(self, line: str) -> None: ...

    def pool_dies(self, where: str) -> None: ...

    def see_to_billing(self) -> None: ...


class _Shell:
    """What heartbeats need of the pool's shell."""

    def __init__(self, scenario: Pool) -> None:
        self._scenario = scenario
        self.apply = scenario.apply

    @property
    def machine(self) -> StateMachine:
        return self._scenario.machine

    def clock_ns(self) -> int:
        return self._scenario.agenda.now_ns


class _Messenger(BillingClient):
    """Tells what billing answered."""

    def __init__(self, books: PoolBooks) -> None:
        super().__init__("http://billing", POOL)
        self._books = books

    async def send_heartbeat(self, body: Mapping[str, Any]) -> list[Budget]:
        asked_ns, overtaken = self._books.scenario.told_ns, self._books.seems_late(body["sent_at_ns"])
        budgets = await super().send_heartbeat(body)
        self._books.answered(body, asked_ns, budgets, overtaken)
        return budgets


class PoolBooks(Disk):
    """Commits in groups and delivers, as ``Writer`` and ``Outbox`` do; each pool has an outbox of its own."""

    def __init__(self, scenario: Pool, folder: Path, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self.scenario = scenario
        self.deaths = Deaths()
        self.store = _store_of(f"sqlite:///{folder / POOL_FILE}")
        self.metered: dict[str, UsageRecord] = {}
        """What a pool metered and has not lost since: what is to be billed."""
        self._loop = loop
        self._pending = Batch(records=[])
        self._due = False
        self._pause_seconds = 0.0
        self.outbox = self._new_outbox()
        self.limits = LimitBook()
        self.began: dict[str, int] = {}
        """When each record began, by the simulator's clock."""
        self._latest_sent_ns = 0
        self._heartbeats = self._new_heartbeats()

    def _new_heartbeats(self) -> Heartbeats:
        shell: Any = _Shell(self.scenario)
        clock_ns = lambda: self.scenario.agenda.now_ns + self.scenario.unix_offset_ns  # noqa: E731 - reads better
        return Heartbeats(shell, _Messenger(self), SOURCE, BEAT_NS / SECOND_NS, unix_ns=clock_ns)

    def seems_late(self, sent_ns: int) -> bool:
        """Whether a heartbeat that is sent now seems older than one that billing may have heard, be that answered or not."""
        latest_ns, self._latest_sent_ns = self._latest_sent_ns, max(self._latest_sent_ns, sent_ns)
        return sent_ns < latest_ns

    def answered(self, body: Mapping[str, Any], asked_ns: int, budgets: Sequence[Budget], overtaken: bool) -> None:
        """Billing answered a heartbeat."""
        now_ns = self.scenario.agenda.now_ns
        told = {
            (one.tenant, one.user, one.span): (one.state, round(one.grace_seconds * SECOND_NS)) for one in budgets if one.state != "open"
        }
        named = {lease["record"]: lease for lease in body["leases"]}
        self.limits.heard(Beat(now_ns, asked_ns, self.scenario.told_ns, named, told, self.scenario.operators.limits_in_force(), overtaken))

    def _new_outbox(self) -> Outbox:
        return Outbox(self.store, self, BillingClient("http://billing", POOL), SOURCE, lambda count, taken: None)

    # What the pool writes

    def saw(self, now_ns: int, event: Event, instructions: list[Instruction]) -> None:
        self._gather(self._pending, event, instructions)
        for instruction in instructions:
            if isinstance(instruction, Meter | MeterParked):
                record = self.metered[instruction.record.id] = instruction.record
                self._begins(record)
        self.limits.saw(now_ns, event)
        if self._pending and not self._due:
            self._due = True
            self.scenario.agenda.after(GATHER_NS, self._commit)

    def _begins(self, record: UsageRecord) -> None:
        """Clocks jump, and a lease has that of the moment in which it was opened."""
        auditor = self.scenario.auditor
        lease = auditor.leases.get(record.lease) or auditor.ended.get(record.lease)
        if lease is not None:
            self.began[record.id] = record.started_at_unix_ns - lease.opened_unix_ns + lease.opened_ns

    def _commit(self) -> None:
        self._due = False
        if self.stopped_ns is not None:
            self._due = True
            self.scenario.agenda.after(AGAIN_NS, self._commit)
        elif self._pending:
            batch, self._pending = self._pending, Batch(records=[])
            try:
                self.store.write(batch, deliver=True)
            except Killed as killed:
                if str(killed) == "commit.before":
                    self._loses(batch)
                else:
                    self.written_ns = self.scenario.agenda.now_ns
                self.scenario.pool_dies(f"at {killed} of {len(batch.records)} records")
                return
            self.written_ns = self.scenario.agenda.now_ns
            if batch.records:
                self.deliver_soon()

    def _loses(self, batch: Batch) -> None:
        for record in batch.records:
            del self.metered[record.id]
            self.scenario.note(f"lost {record.id} with the pool")

    def dies(self, until_ns: int) -> None:
        """What waited for its commit is lost. (Since when things waited does not matter: all of it was later than the last commit.)"""
        self.limits.pool_dies(self.scenario.agenda.now_ns)
        self._loses(self._pending)
        self._pending = Batch(records=[])

    @property
    def workers(self) -> set[str]:
        with self.store.engine.connect() as connection:
            return set(connection.execute(select(WORKERS.c.id)).scalars())

    def read(self, now_ns: int, now_unix_ns: int) -> Snapshot:
        """Also begins the next pool's deliveries."""
        self.deaths.spares()
        self.outbox, self._pause_seconds = self._new_outbox(), 0.0
        self._heartbeats = self._new_heartbeats()
        self.deliver_soon()
        with self.store.engine.connect() as connection:
            return snapshot_rows.read(connection, boot_id(), now_ns, now_unix_ns)

    # What it delivers

    def call(self, job: Callable[[], T]) -> Future[T]:
        """As ``Writer.call``."""
        future: Future[T] = Future()
        if self.stopped_ns is None:
            future.set_result(job())
        else:
            future.set_exception(StoreUnavailable("the database refuses"))
        return future

    def deliver_soon(self, again: bool = False) -> None:
        """Billing hears of what is there, in a moment; later if it did not take it just now."""
        seconds = self._pause_seconds if again else 0.0
        outbox = self.outbox
        delay_ns = int(seconds * SECOND_NS) + self.scenario.chance.randrange(1, 20 * MILLISECOND_NS)
        self.scenario.agenda.after(delay_ns, lambda: self._deliver(outbox))

    def _deliver(self, outbox: Outbox) -> None:
        if outbox is self.outbox and not self.scenario.down:
            took_all = self.deliver()
            self._pause_seconds = 0.0 if took_all else min(RETRY_SECONDS_MAX, max(RETRY_SECONDS_FIRST, 2 * self._pause_seconds))
            if not took_all and not self.scenario.down:
                self.deliver_soon(again=True)

    def deliver(self) -> bool:
        """Whether all was taken, or set aside."""
        try:
            return self._loop.run_until_complete(self.outbox.deliver())
        except Killed as killed:
            self.scenario.pool_dies(f"at {killed} of the outbox")
            return False
        finally:
            self.scenario.see_to_billing()

    def beat(self) -> None:
        """Tells billing of the leases that are open, as the pool's loop does."""
        if self.stopped_ns is not None or self.scenario.down:
            return
        try:
            self._loop.run_until_complete(self._heartbeats.beat())
        finally:
            self.scenario.see_to_billing()

    def retry_refused(self) -> None:
        """What billing refused goes back into the line."""
        if self.stopped_ns is None and not self.scenario.down:
            try:
                if self.store.retry_refused():
                    self.deliver_soon()
            except Killed as killed:
                self.scenario.pool_dies(f"at {killed} of what was refused")

    def undelivered(self) -> int:
        with self.store.engine.connect() as connection:
            return int(connection.execute(select(func.count()).select_from(OUTBOX)).scalar_one())
