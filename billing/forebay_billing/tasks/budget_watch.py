"""Budgets as the rest of the service sees them: what heartbeats are answered, what pages are shown, and the loop that tells of alerts."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import Connection

from forebay_billing.documents.messages import Message, of_alert
from forebay_billing.ledger.access import Scope
from forebay_billing.ledger.books import Books
from forebay_billing.model.types import UsageRecord
from forebay_billing.reads.alerts import missing
from forebay_billing.reads.budgets import active
from forebay_billing.reads.job_costs import JobCost, job_costs, merged, run_of
from forebay_billing.reads.rollups import heads_of
from forebay_billing.reads.spending import marks_of, spent_by
from forebay_billing.rules.budgets import (
    IDLE,
    NOTHING,
    Accrued,
    Budget,
    Due,
    Running,
    Standing,
    Subject,
    Verdict,
    alerts_due,
    standing,
    verdicts,
)
from forebay_billing.settings import Settings
from forebay_billing.tables.heartbeats import ORIGIN_CHARS_MAX
from forebay_billing.tasks.delivery import Courier, Outbox
from forebay_billing.tasks.election import Leads, always
from forebay_billing.tasks.loop import run_until_stopped
from forebay_billing.tasks.open_leases import Accrual, OpenLease, OpenLeases, accruals, running_by
from forebay_billing.writes import alerts, heartbeats, spending
from forebay_billing.writes.alerts import AlertDelivery
from forebay_billing.writes.store import Store

log = logging.getLogger(__name__)

T = TypeVar("T")

STEP_SECONDS = 1.0
"""How often the marks move on, thresholds are looked at, and what is due is delivered."""



def _message(_connection: Connection, parcel: AlertDelivery, language: str) -> Message:
    return of_alert(parcel.alert, parcel.channel.id, language)


ALERTS = Outbox("alert", alerts.CLAIMS, alerts.claim, _message)


@dataclass(frozen=True)
class Picture:
    """All budgets at a moment, and every threshold that is reached."""

    standings: tuple[Standing, ...]
    due: tuple[Due, ...]
    missing: tuple[Due, ...]
    """The thresholds of which no alert was written yet."""
    rates: dict[int, int]
    """What an hour of what runs costs, by budget."""


@dataclass(frozen=True)
class Beat:
    """What became of a heartbeat. ``tell`` writes it down for other services, in the transaction that makes its holds."""

    verdicts: list[Verdict]
    tell: Callable[[Books], None]


class BudgetWatch:
    """Owns what is known of open leases, and from :meth:`start` on the loop, until :meth:`close`."""

    def __init__(
        self,
        store: Store,
        settings: Settings,
        clock_ns: Callable[[], int],
        courier: Courier,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``clock_ns`` tells dates; by ``monotonic_ns``, which nobody sets, it is judged which pools are silent."""
        self._store = store
        self._monotonic_ns = monotonic_ns
        self._clock_ns = clock_ns
        self._currency_of = settings.currency_of
        self._leases = OpenLeases()
        self._origin = secrets.token_hex(ORIGIN_CHARS_MAX // 2)
        """What this service is called among several on one database."""
        self._told = 0
        """The last row of the heartbeats that others heard."""
        self._last_rates: dict[int, int] = {}
        """By budget: what a second cost when something last ran."""
        self._changed = True
        self._courier = courier
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._leads: Leads = always

    def start(self, leads: Leads = always) -> None:
        """Begins to move the marks, to look at thresholds and to deliver; while ``leads`` says no, only to hear what other services do."""
        self._leads = leads
        rounds = run_until_stopped(self.step, self._stop, STEP_SECONDS, log, "budgets")
        self._task = asyncio.create_task(rounds, name="billing-budgets")

    async def close(self) -> None:
        """Lets the deliveries that are under way come to their end."""
        self._stop.set()
        if self._task is not None:
            await self._task

    async def beat(self, source: str, sent_at_ns: int, records: Sequence[UsageRecord]) -> Beat:
        """Hears a heartbeat; what the budgets do that are not open, and where those stand that it concerns."""
        await self._catch_up()
        heard = self._leases.hear(source, sent_at_ns, records, self._monotonic_ns())
        picture = await self._look()
        tenants = {record.tenant for record in records}
        found = [found for found in verdicts(picture.standings) if found.state != "open" or found.subject.tenant in tenants]

        def tell(books: Books) -> None:
            if heard:
                heartbeats.tell(books.connection, source, sent_at_ns, records, self._origin, self._clock_ns())

        return Beat(found, tell)

    async def standings(self, scope: Scope) -> list[Standing]:
        """How the budgets stand that concern the scope: a user's own, and those of the tenant as a whole."""
        if scope.tenant is None:
            await self._catch_up()
            found = (await self._look()).standings
        else:
            only = [scope.tenant]
            found = tuple(await self.beside(lambda connection, accrued: self.standings_of(connection, accrued, only)))
        return [one for one in found if concerns(scope, one.budget.subject)]

    async def beside(self, work: Callable[[Connection, Accrued], T]) -> T:
        """Reads in one snapshot, with what runs and is not posted yet, by subject and currency."""
        await self._catch_up()
        leases = self._leases.all()
        return await self._store.read(lambda connection: work(connection, _accrued(connection, leases, self._currency_of)))

    async def job_costs(self, scope: Scope, jobs: Collection[int], since_ns: int) -> list[JobCost]:
        """What runs of jobs have cost so far, with the leases that are open."""
        await self._catch_up()
        leases = [lease for lease in self._leases.all() if sees(scope, lease.record)]

        def work(connection: Connection) -> list[JobCost]:
            posted = job_costs(connection, scope, jobs, since_ns)
            found = accruals(connection, leases, _currencies(connection, self._currency_of))
            return merged([*posted, *_open_costs(found, jobs)])

        return await self._store.read(work)

    def standings_of(self, connection: Connection, accrued: Accrued, tenants: Sequence[str]) -> list[Standing]:
        """How all budgets of some tenants stand, in the snapshot of :meth:`beside`."""
        budgets, now_ns = active(connection, tenants), self._clock_ns()
        spent = spent_by(connection, budgets, now_ns)
        return [
            standing(one, spent.get(one.id, NOTHING), _running(one, accrued), self._last_rates.get(one.id, 0), now_ns) for one in budgets
        ]

    async def step(self) -> int:
        """One round of the loop: moves the marks, writes alerts, delivers; returns how many deliveries were tried."""
        moved, leads = await self._catch_up(), self._leads()
        while leads and await self._moves_on():
            moved = True
        if moved or self._changed:
            await self._look()
        if not leads:
            return 0
        return await self._courier.deliver(ALERTS)

    def changed(self) -> None:
        """A budget was set: its thresholds are looked at soon."""
        self._changed = True

    async def _catch_up(self) -> bool:
        """Hears what other services heard; whether there was anything."""
        told, now_ns = self._told, self._clock_ns()
        rows = await self._store.read(lambda connection: heartbeats.heard_since(connection, told, now_ns))
        others = [row for row in rows if row.id > self._told and row.origin != self._origin]
        self._told = max([self._told, *(row.id for row in rows)])
        for row in others:
            self._leases.hear(row.source, row.sent_at_ns, row.leases, self._monotonic_ns())
        return bool(others)

    async def _moves_on(self) -> bool:
        """Whether there was anything new; a writer that has nothing to do is not asked."""
        marks, heads = await self._store.read(lambda connection: (marks_of(connection), heads_of(connection)))
        if marks == heads:
            return False
        return await self._write(lambda books: spending.catch_up(books.connection, active(books.connection)))

    async def _look(self) -> Picture:
        """Looks at all budgets, and writes the alerts that are owed."""
        self._changed = False
        now_ns, leases, last_rates = self._clock_ns(), self._leases.all(), dict(self._last_rates)
        picture = await self._store.read(lambda connection: look(connection, leases, last_rates, self._currency_of, now_ns))
        self._last_rates.update({id: rate for id, rate in picture.rates.items() if rate})
        if picture.missing:
            count = await self._write(lambda books: alerts.write(books, picture.missing, now_ns))
            log.info("budgets gave alerts", extra={"action": "budget.alerts", "count": count})
        return picture

    async def _write(self, job: Callable[[Books], T]) -> T:
        return await asyncio.wrap_future(self._store.submit(job))


def look(
    connection: Connection, leases: Sequence[OpenLease], last_rates: dict[int, int], currency_of: Callable[[str], str], now_ns: int
) -> Picture:
    """All budgets in one snapshot."""
    budgets = active(connection)
    spent = spent_by(connection, budgets, now_ns)
    running = _accrued(connection, leases, currency_of) if budgets else {}
    standings, due, rates = [], [], {}
    for budget in budgets:
        of_budget, runs = spent.get(budget.id, NOTHING), _running(budget, running)
        standings.append(standing(budget, of_budget, runs, last_rates.get(budget.id, 0), now_ns))
        due += alerts_due(budget, of_budget, runs, now_ns)
        rates[budget.id] = runs.rate_nano_per_hour
    return Picture(tuple(standings), tuple(due), tuple(missing(connection, due)), rates)


def _accrued(connection: Connection, leases: Sequence[OpenLease], currency_of: Callable[[str], str]) -> Accrued:
    return running_by(accruals(connection, leases, _currencies(connection, currency_of)))


def _currencies(connection: Connection, currency_of: Callable[[str], str]) -> Callable[[str], str]:
    books = Books(connection)
    return lambda tenant: books.currency_of(tenant, currency_of(tenant))


def _open_costs(found: Iterable[Accrual], jobs: Collection[int]) -> Iterator[JobCost]:
    for accrual in found:
        record, grains = accrual.record, sum(accrual.by_period.values())
        run = run_of(record.span.id, record.span.label)
        if run is not None and run[0] in jobs:
            yield JobCost(*run, accrual.currency, record.duration_ns, grains, grains)


def _running(budget: Budget, running: Accrued) -> Running:
    return running.get((budget.subject, budget.currency), IDLE)


def sees(scope: Scope, record: UsageRecord) -> bool:
    """Whether the scope may see the lease."""
    return scope.tenant in (None, record.tenant) and scope.user in (None, record.user)


def concerns(scope: Scope, subject: Subject) -> bool:
    """Whether a budget for the subject bears on those whom the scope may see."""
    if scope.tenant not in (None, subject.tenant):
        return False
    return scope.user is None or subject.user in (None, scope.user)
