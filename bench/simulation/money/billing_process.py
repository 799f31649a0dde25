"""Billing as a process that dies: all of the service but its sockets and threads, on a database that outlives it."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from forebay_billing.http.handler import Context
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.writer import Committer, Job, JobWriter, OnCommit, Share
from forebay_billing.metrics import Metrics
from forebay_billing.payments.gateway import Gateway
from forebay_billing.payments.payment_sink import BookedPayments
from forebay_billing.payments.service import Payments
from forebay_billing.payments.source import BooksSource
from forebay_billing.rules.retries import StripeFailure
from forebay_billing.service import application_of
from forebay_billing.settings import Settings
from forebay_billing.tables.engines import Engines, open_engines
from forebay_billing.tasks.budget_watch import BudgetWatch
from forebay_billing.tasks.delivery import Courier
from forebay_billing.tasks.month_end import MonthEnd
from forebay_billing.writes import holds
from forebay_billing.writes.store import Store
from forebay_service.identity import OPERATE, SERVICE, Identity, TokenAuthenticator
from sqlalchemy import text
from stripe_emulator import Emulator

from simulation.money.deaths import Deaths, Killed
from simulation.money.wires import DirectStripe, Exchange, Request, Response

T = TypeVar("T")
BILLING_FILE = "billing.sqlite3"
POOL = "token-of-the-pool"
OPERATOR = "token-of-an-operator"
_AUTHENTICATOR = TokenAuthenticator(
    {
        POOL: Identity("pool", "service", None, frozenset({SERVICE})),
        OPERATOR: Identity("operator", "user", None, frozenset({OPERATE})),
    }
)


class Clerk:
    """Writes each job at once, on the caller's thread, as the writer's thread writes groups."""

    waiting = 0

    def __init__(self, engines: Engines, on_commit: OnCommit) -> None:
        self.committer = Committer(engines, on_commit)

    def submit(self, work: Callable[[Books], T], share: Share | None = None) -> Future[T]:
        future: Future[T] = Future()
        self.committer.commit([Job(work, future, share)])
        return future

    def close(self) -> None:
        """Nothing waits."""


@cache
def engines_of(url: str) -> Engines:
    """Those of a database's place, for all that are there one after the other: they know statements that were compiled before."""
    return open_engines(url, 1)


class OneThread(Store):
    """The store, with reads at once on the caller's thread, of a database that has this version's schema."""

    def __init__(
        self, engines: Engines, clock_ns: Callable[[], int], on_commit: OnCommit, writer: Callable[[Engines, OnCommit], JobWriter]
    ) -> None:
        super().__init__(engines, clock_ns, on_commit, writer, prepare=lambda _: None)

    async def read(self, work: Callable[[Any], T]) -> T:
        return self.snapshot(work)


class BillingProcess:
    """:meth:`start` it; when ``deaths.died_at`` is set after a call, :meth:`dies` and start it again."""

    def __init__(
        self, folder: Path, loop: asyncio.AbstractEventLoop, clock_ns: Callable[[], int], emulator: Emulator, chance: random.Random,
        mode: Literal["meters", "invoices"], doorbell: Any, clerk: Callable[[Engines, OnCommit], Clerk] = Clerk,
    ) -> None:  # fmt: skip
        self.mode = mode
        self.url = f"sqlite:///{folder / BILLING_FILE}"
        self.deaths = Deaths()
        self.running = False
        self._loop, self._clock_ns, self._emulator, self._chance, self._clerk = loop, clock_ns, emulator, chance, clerk
        self._doorbell = doorbell
        self._settings = Settings(
            database_url=self.url, tenant_currencies={"bolt": "JPY"}, stripe_mode=mode, stripe_key=Emulator.api_key,
            hold_margin_seconds=chance.choice((0.0, 60.0)), hold_silence_seconds=chance.choice((0.5, 300.0)),
            stripe_webhook_secrets=(Emulator.secret, Emulator.thin_secret),
        )  # fmt: skip
        self._under_way: set[Exchange] = set()
        loop.set_exception_handler(self._failed)

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Who waits for an answer of a process that died sees its connection end."""
        if not isinstance(context.get("exception"), Killed):
            loop.default_exception_handler(context)
        for exchange in self._under_way:
            exchange.breaks()

    def start(self) -> None:
        self.deaths.spares()
        metrics = Metrics()
        gateway = Gateway(Emulator.api_key, http_client=DirectStripe(self._emulator))
        self._store = OneThread(engines_of(self.url), self._clock_ns, metrics.committed, self._clerk)
        self.desk = Payments(
            self._store, self._settings, self._clock_ns, BooksSource(), metrics.paying, gateway, self._chance.random, calls_at_once=1,
            sink=BookedPayments(self._clock_ns),
        )
        courier = Courier(self._store, self._settings, self._clock_ns, self._chance.random, self._doorbell)
        self.budgets = BudgetWatch(self._store, self._settings, self._clock_ns, courier, self._clock_ns)
        context = Context(self._store, _AUTHENTICATOR, metrics, self._clock_ns, self._settings, self.desk, self.budgets)
        self._closer = MonthEnd(self._store, self._settings.conditions(), self._settings.invoice_grace_days, self._clock_ns)
        self._application = application_of(context, "/")
        self.running = True

    def dies(self) -> None:
        """Nothing is left of it but the database."""
        self.running = False
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self.desk.exporter.close()
        self._store.close()

    async def ask(self, request: Request) -> Response:
        """Raises ConnectionError where it does not run, or dies meanwhile."""
        if not self.running or self.deaths.died_at is not None:
            raise ConnectionRefusedError("billing does not run")
        exchange = Exchange()
        self._under_way.add(exchange)
        try:
            return await exchange.ask(self._application, request)
        finally:
            self._under_way.discard(exchange)

    def call(self, method: str, target: str, body: Any, headers: dict[str, str]) -> Response | None:
        """A request from outside, None without an answer."""
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        try:
            return self._loop.run_until_complete(self.ask(Request(method, target, headers, data)))
        except OSError:
            return None

    def collect(self) -> None:
        """Hands usage over to be sent, where Stripe is told of that. Raises Killed."""
        if self.mode == "meters":
            self.desk.exporter.collect(BooksSource())

    def step(self) -> None:
        """Sends what is due. Raises Killed."""
        self.desk.exporter.step()

    def look_again(self) -> None:
        """Reads at Stripe what no webhook has told of for long. Raises Killed."""
        self.desk.exporter.look_again()

    def fetch_reports(self) -> int:
        """Asks Stripe what meters could not take; how much of it no webhook had told. Raises Killed."""
        try:
            return self.desk.exporter.fetch_reports() if self.mode == "meters" else 0
        except StripeFailure:
            return 0

    def close_months(self) -> None:
        """Finalises what is due, and writes off credits. Raises Killed."""
        self._loop.run_until_complete(self._closer.sweep())

    def tell_alerts(self) -> None:
        """Looks at thresholds, and brings alerts to their channels. Raises Killed."""
        self._loop.run_until_complete(self.budgets.step())

    def expire(self) -> int:
        """Ends holds of which nobody speaks any more; how many are left that ought to have ended. Raises Killed."""
        now_ns = self._clock_ns()
        self._store.submit(lambda books: holds.expire(books, now_ns)).result()
        overdue = text("SELECT count(*) FROM holds WHERE closed_by IS NULL AND expires_at_ns <= :now_ns")
        return int(self.read(lambda connection: connection.execute(overdue, {"now_ns": now_ns}).scalar_one()))

    def read(self, work: Callable[[Any], T]) -> T:
        return self._store.snapshot(work)
