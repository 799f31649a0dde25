"""A bad week of the whole house: the storm over the pool, and its money on the way to Stripe while every service dies again and again."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Literal

from forebay_billing import failpoints as billing_failpoints
from forebay_billing.engines import open_engines
from forebay_billing.errors import BillingError
from forebay_billing.payments.exporter import WINDOW_NS
from forebay_billing.payments.outbox import CLAIM_NS, unsettled
from forebay_billing.store import Store as BillingStore
from forebay_pool import failpoints as pool_failpoints
from forebay_pool.state_machine import StateMachine
from forebay_pool.store import Store as PoolStore
from sqlalchemy import text
from stripe_emulator import Emulator, Fault
from tornado.httpclient import AsyncHTTPClient

from simulation.agenda import SECOND_NS
from simulation.auditor import Caught
from simulation.money.accountant import HOUR_NS, PARKED_PRICES, Accountant, month_after, month_of, prices_of
from simulation.money.bills import Bill
from simulation.money.errands import Errands
from simulation.money.fate import Killed
from simulation.money.pool_books import BEAT_NS, POOL_FILE, REFUSED_RETRY_NS, SOURCE, PoolBooks
from simulation.money.till import BILLING_FILE, OPERATOR, Clerk, Till
from simulation.money.wires import DirectHttp, Request, Response
from simulation.storm import Machine, Storm

NEW_YEAR_NS = 1_704_067_200 * SECOND_NS
DAY_NS = 24 * HOUR_NS
ROUNDS_MAX = 60
"""So often things are tried again before they count as stuck."""
LINES_TOLD = 60
LOST_ANSWERS = 0.3
"""Of an operator's errands: each is sent again until an answer comes."""
CALM_ROUND_NS = 15 * SECOND_NS
"""How often billing's loops turn when nothing goes wrong any more: the pool takes its time to come to rest."""
STRIPE_FAULTS = ("busy", "conflict", "error_before", "error_after", "lost_before", "lost_after", "denied")


@cache
def _databases() -> dict[str, bytes]:
    """Those of an installation that was never used, to be copied."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / name for name in (POOL_FILE, BILLING_FILE)}
        pool = PoolStore(f"sqlite:///{files[POOL_FILE]}")
        pool.migrate()
        pool.close()
        BillingStore(open_engines(f"sqlite:///{files[BILLING_FILE]}", 1), lambda: 1, writer=Clerk).close()
        return {name: path.read_bytes() for name, path in files.items()}


def _folder() -> Path:
    """An empty one, at the same place for every seed of this process: so statements need not be compiled anew."""
    memory = Path("/dev/shm")
    folder = (memory if memory.is_dir() else Path(tempfile.gettempdir())) / f"forebay-week-{os.getpid()}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    return folder


class _Clock:
    """The emulator's."""

    def __init__(self, week: Week) -> None:
        self._week = week

    @property
    def now_ns(self) -> int:
        return self._week.billing_ns()


class Week(Storm):
    """One seed. Nothing is written outside of a folder of its own, in memory where the host has such a place."""

    def __init__(self, seed: int, machine: Machine = StateMachine) -> None:
        super().__init__(seed, machine, strict=False)
        self.chance = random.Random(f"week {seed}")
        self._early_ns = self.chance.choice([0, self.chance.randrange(60) * SECOND_NS, 40 * DAY_NS])
        self.unix_offset_ns = NEW_YEAR_NS - self._early_ns
        self.diary: list[str] = []
        self.errands = Errands()
        self.kinds: set[str] = set()
        """Of transactions that there were."""
        self.bills: list[Bill] = []
        """What was invoiced, once all is over."""
        self._leaps = self.chance.random() < 0.5
        """Whether billing is down for a day now and then, and its clock ahead of the pool's."""
        self._leap_ns = 0
        self._told_ns = 0
        self._roughness = self.chance.choice([0.0, 0.05, 0.2])
        self.folder = _folder()
        for name, content in _databases().items():
            (self.folder / name).write_bytes(content)
        self.loop = asyncio.new_event_loop()
        self.disk: PoolBooks = PoolBooks(self, self.folder, self.loop)
        self.watchers = [self.auditor, self.disk, self]
        self.emulator = Emulator(_Clock(self))
        mode: Literal["meters", "invoices"] = self.chance.choice(("meters", "meters", "invoices"))
        self.till = Till(self.folder, self.loop, self._billing_clock, self.emulator, self.chance, mode)

    # Time: the pool's clock jumps about, billing's only goes ahead

    def billing_ns(self) -> int:
        return NEW_YEAR_NS - self._early_ns + self.agenda.now_ns + self._leap_ns

    def _billing_clock(self) -> int:
        self._told_ns = max(self._told_ns + 1, self.billing_ns())
        return self._told_ns

    def _leap(self, by_ns: int) -> None:
        """What Stripe has taken it counts meanwhile."""
        self.emulator.meters.process()
        self._leap_ns += by_ns

    def note(self, line: str) -> None:
        self.diary.append(f"{self.agenda.now_ns / SECOND_NS:10.6f} {line}")

    def _story(self, what: str, *ids: str) -> str:
        again = f"PYTHONPATH=bench:tests/billing python -m simulation.seeds --world money --seed {self.seed}"
        story = self.machine.story.of(*ids) if ids else ""
        money = "\n".join(self.diary[-LINES_TOLD:])
        return f"seed {self.seed}, {self.agenda.now_ns / SECOND_NS:.3f} s: {what}\n{story}\n{money}\nreplay it: {again}"

    # A seed's life

    def run(self) -> None:
        """Raises StoryTold."""
        logging.disable(logging.CRITICAL)
        kept = AsyncHTTPClient._save_configuration()
        AsyncHTTPClient.configure(DirectHttp, carry=self._carry)
        try:
            with ExitStack() as stack:
                stack.enter_context(billing_failpoints.armed(self.till.fate.reach))
                stack.enter_context(pool_failpoints.armed(self.disk.fate.reach))
                super().run()
        finally:
            AsyncHTTPClient._restore_configuration(kept)
            logging.disable(logging.NOTSET)
            self._close()

    def _close(self) -> None:
        self.till.fate.spares()
        if self.till.running:
            self.till.dies()
        self.disk.store.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder)

    def _play(self) -> None:
        self.till.start()
        self._set_first_prices()
        self.agenda.after(SECOND_NS, self._strike_money)
        self.agenda.after(SECOND_NS, self._bill)
        self.agenda.after(REFUSED_RETRY_NS, self._retry_refused)
        self.agenda.after(BEAT_NS, self._beat)
        super()._play()
        self._settle()
        self._account()

    def _retry_refused(self) -> None:
        self.disk.retry_refused()
        self.agenda.after(REFUSED_RETRY_NS, self._retry_refused)

    def _beat(self) -> None:
        self.disk.beat()
        self.agenda.after(BEAT_NS, self._beat)

    # Deaths

    def pool_dies(self, where: str) -> None:
        self.note(f"the pool dies {where}")
        self.disk.fate.spares()
        self.kill_pool()

    def see_to_billing(self) -> None:
        """Buries billing if it died just now; somebody starts it again."""
        if self.till.running and self.till.fate.died_at is not None:
            self.note(f"billing dies at {self.till.fate.died_at}")
            self.till.dies()
            if self._leaps and self.chance.random() < 0.3:
                self._leap(25 * HOUR_NS)
            self.agenda.after(int(self.chance.expovariate(1) * SECOND_NS), self._start_billing)

    def _start_billing(self) -> None:
        if not self.till.running:
            self.note("billing starts")
            self.till.start()

    def _kill_billing(self) -> None:
        self.till.fate.died_at = "no particular point"
        self.see_to_billing()

    # The network between pool and billing

    async def _carry(self, request: Request) -> Response:
        """Loses requests and answers, and brings some requests once more, later."""
        rough = 0.0 if self.calm else self._roughness
        if self.chance.random() < rough:
            raise ConnectionResetError("the request was lost")
        if self.chance.random() < rough:
            self.agenda.after(int(self.chance.expovariate(0.5) * SECOND_NS), lambda: self._arrives_again(request))
        response = await self.till.ask(request)
        self.note(f"{request.method} {request.target}: {response.status} {response.body[:80]!r}")
        if self.chance.random() < rough:
            raise ConnectionResetError("the answer was lost")
        return response

    def _arrives_again(self, request: Request) -> None:
        self.till.call(request.method, request.target, request.body, dict(request.headers))
        self.see_to_billing()

    # What goes wrong

    def _strike_money(self) -> None:
        if self.calm:
            return
        fates: list[Callable[[], None]] = [
            lambda: self.disk.fate.comes_after(self.chance.randrange(1, 8)),
            lambda: self.disk.fate.comes_after(self.chance.randrange(1, 8)),
            lambda: self.till.fate.comes_after(self.chance.randrange(1, 12)),
            lambda: self.till.fate.comes_after(self.chance.randrange(1, 12)),
            self._kill_billing,
            self._trouble_stripe,
            self._trouble_stripe,
            *[self._set_price] * 6,
            *[self._set_surcharge] * 3,
            self._correct,
            self._grant,
            self._close_month,
            self._close_month,
            self._take_back,
            lambda: self._leap(self.chance.choice([HOUR_NS // 2, HOUR_NS]) if self._leaps else 0),
        ]
        self.chance.choice(fates)()
        self.agenda.after(int(self.chance.expovariate(1.2) * SECOND_NS), self._strike_money)

    def _trouble_stripe(self) -> None:
        kinds = self.chance.choices(STRIPE_FAULTS, k=self.chance.randrange(1, 4))
        self.emulator.faults.add(*(Fault(kind, self.chance.choice(("POST ", "GET ", ""))) for kind in kinds))  # type: ignore[arg-type]

    # The operator

    def _set_first_prices(self) -> None:
        """For all time; some only after usage has come that needs them. Parked bytes have theirs before anything is parked."""
        for currency, price in PARKED_PRICES.items():
            body = {"price_nano_per_gib_hour": price, "valid_from_ns": 0}
            headers = {"Authorization": f"token {OPERATOR}"}
            response = self.till.call("PUT", f"/api/parked-prices/{currency}", body, headers)
            if response is None or response.status != 200:
                raise Caught(f"billing does not take the price of parked bytes: {response and response.body!r}")
        for flavor in self.flavor_names:
            delay_ns = 0
            for currency in ("USD", "JPY"):
                body = {"price_nano_per_second": self.chance.randrange(10**10), "currency": currency, "valid_from_ns": 0}
                body |= {"new": True} if currency == "USD" else {}
                delay_ns += 0 if self.chance.random() < 0.7 else self.chance.randrange(1, 40 * SECOND_NS)
                self.agenda.after(delay_ns, lambda f=flavor, b=body: self.errands.add("PUT", f"/api/prices/{f}", b))

    def _set_price(self) -> None:
        body = {"price_nano_per_second": self.chance.randrange(10**10), "currency": self.chance.choice(("USD", "JPY"))}
        soon_ns = self.agenda.now_ns + self.unix_offset_ns + self.chance.randrange(4 * SECOND_NS)
        body |= {"valid_from_ns": soon_ns} if soon_ns > self.billing_ns() + SECOND_NS else {}
        flavor = self.chance.choice(self.flavor_names)
        if any(answer["flavor"] == flavor and answer["currency"] == body["currency"] for answer in self.errands.answers("/api/prices/")):
            self.errands.add("PUT", f"/api/prices/{flavor}", body)

    def _set_surcharge(self) -> None:
        """From now on or a little later; before the first one there is none."""
        body = {"surcharge_nano_per_second": self.chance.randrange(10**10), "currency": self.chance.choice(("USD", "JPY"))}
        soon_ns = self.agenda.now_ns + self.unix_offset_ns + self.chance.randrange(4 * SECOND_NS)
        body |= {"valid_from_ns": soon_ns} if soon_ns > self.billing_ns() + SECOND_NS else {}
        model = self.chance.choice(sorted({device.model for device in self.devices}))
        self.errands.add("PUT", f"/api/surcharges/{model}", body)

    def _correct(self) -> None:
        """Of a record that is not older than the hours at which the exporter looks again."""
        since_ns = self.billing_ns() - WINDOW_NS + DAY_NS
        young = sorted(id for id, record in self.disk.metered.items() if record.started_at_unix_ns > since_ns)
        if young:
            id = self.chance.choice(young)
            self.errands.add("POST", "/api/corrections", {"source": SOURCE, "id": id, "reason": "a complaint"})

    def _grant(self) -> None:
        """Credit that is good for ever."""
        body = {"tenant": self.chance.choice(self.tenants), "kind": self.chance.choice(("prepaid", "promotional")), "name": "a gift"}
        self.errands.add("POST", "/api/credits", body | {"amount_minor": self.chance.randrange(1, 2000), "effective_at_ns": 0})

    def _close_month(self) -> None:
        """Refused where it is not over, or another before it is open; usage that comes later counts in the next."""
        month = month_of(self.billing_ns() - self.chance.choice((0, 20 * DAY_NS, 20 * DAY_NS)))
        self.errands.add("POST", "/api/invoices", {"tenant": self.chance.choice(self.tenants), "month": month})

    def _take_back(self) -> None:
        """A part of an invoice, or all of it."""
        made = [invoice for errand in self.errands.taken("/api/invoices") for invoice in errand.answer if invoice["total_minor"]]
        if made:
            invoice = self.chance.choice(made)
            amount = self.chance.choice((invoice["total_minor"], self.chance.randint(1, invoice["total_minor"])))
            self.errands.add("POST", f"/api/invoices/{invoice['number']}/credit-notes", {"amount_minor": amount, "reason": "a complaint"})

    # Billing's own work

    def _bill(self) -> None:
        self._work()
        self.agenda.after(CALM_ROUND_NS if self.calm else int(self.chance.uniform(0.5, 3.0) * SECOND_NS), self._bill)

    def _work(self) -> None:
        """A round of each of its loops, and what comes from Stripe."""
        if self.till.running:
            try:
                if self.calm or self.chance.random() < 0.4:
                    self.till.collect()
                self.till.step()
                self.till.expire()
            except (Killed, BillingError) as end:
                self.note(f"billing's loop ends: {end!r}")
        self.see_to_billing()
        if self.till.running:
            self.errands.run(self.till, lambda: not self.calm and self.chance.random() < LOST_ANSWERS)
        self.see_to_billing()
        if self.calm or self.chance.random() < 0.5:
            self.emulator.meters.process()
        self._hear_stripe()

    def _hear_stripe(self) -> None:
        """Webhooks come in any order, until one was taken."""
        waiting, self.emulator.webhooks = self.emulator.webhooks, []
        self.chance.shuffle(waiting)
        for payload, secret in waiting:
            header = {"Stripe-Signature": self.emulator.signature(payload, secret)}
            response = self.till.call("POST", "/api/payments/webhook", payload.encode(), header)
            self.see_to_billing()
            if response is None or response.status >= 500:
                self.emulator.webhooks.append((payload, secret))

    # The end

    def _clear_up(self) -> None:
        super()._clear_up()
        self.disk.fate.spares()
        self.till.fate.spares()
        self._start_billing()
        while self.emulator.faults.take("POST GET "):
            pass

    def _settle(self) -> None:
        """All comes to rest, after an outage of weeks in some seeds; then all months end, and are invoiced."""
        self._leap(self.chance.choice([13 * HOUR_NS, 13 * HOUR_NS, 60 * HOUR_NS, 36 * DAY_NS]))
        self._rest()
        month, last = month_of(NEW_YEAR_NS - self._early_ns - DAY_NS), month_of(self.billing_ns())
        while month_of(self.billing_ns()) == last:
            self._leap(DAY_NS)
        while month <= last:
            for tenant in self.tenants:
                self.errands.add("POST", "/api/invoices", {"tenant": tenant, "month": month})
            month = month_after(month)
        self._rest()
        self._take_back()
        self._correct()
        self._rest()

    def _rest(self) -> None:
        """Time passes until nothing waits any more."""
        for _ in range(ROUNDS_MAX):
            self.disk.retry_refused()
            self.agenda.run(self.agenda.now_ns + 5 * SECOND_NS)
            self._work()
            counts = self.till.read(unsettled)
            if not (counts.get("waiting") or self.errands.waiting or self.disk.undelivered() or self.emulator.webhooks):
                self._work()
                if not self.till.read(unsettled):
                    return
            self._retry_dead()
            self._leap(max(CLAIM_NS, 2 * HOUR_NS))
        left = [(errand.method, errand.target) for errand in self.errands.waiting]
        raise Caught(f"still waiting: {self.disk.undelivered()} records, {counts} orders, errands {left}")

    def _retry_dead(self) -> None:
        headers = {"Authorization": f"token {OPERATOR}"}
        response = self.till.call("GET", "/api/payments/outbox?state=dead", None, headers)
        if response is None:
            raise Caught("billing does not answer in a calm moment")
        for id in [row["id"] for row in json.loads(response.body)["rows"]]:
            self.till.call("POST", f"/api/payments/outbox/{id}", {"action": "retry", "reason": "calm"}, headers)

    def _account(self) -> None:
        corrected = {answer["id"]: answer["transaction"] for answer in self.errands.answers("/api/corrections")}
        prices = list(prices_of([*self.errands.answers("/api/prices/"), *self.errands.answers("/api/surcharges/")]))
        granted = [errand.body["amount_minor"] for errand in self.errands.taken("/api/credits")]
        noted = [errand.body["amount_minor"] for errand in self.errands.taken("/api/invoices/[^/]+/credit-notes")]
        accountant = Accountant(self.disk.metered, prices, corrected, granted, noted)
        with self.disk.store.engine.connect() as connection:
            accountant.check_pool(connection)
        now_ns = self.billing_ns()
        hours = self.till.read(lambda connection: accountant.check_billing(connection, now_ns))
        self.bills = accountant.bills
        kinds = text("SELECT DISTINCT kind FROM transactions")
        self.kinds = set(self.till.read(lambda connection: connection.execute(kinds).scalars().all()))
        response = self.till.call("GET", "/api/check", None, {"Authorization": f"token {OPERATOR}"})
        if response is None or json.loads(response.body) != {"differences": []}:
            raise Caught(f"billing's own check finds {response and response.body!r:.500}")
        self.till.read(lambda connection: accountant.check_stripe(self.emulator, connection, hours, self.till.mode))
