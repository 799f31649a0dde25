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
from forebay_billing.errors import BillingError
from forebay_billing.tables.engines import open_engines
from forebay_billing.writes import alerts as alerts_writes
from forebay_billing.writes.payment_outbox import CLAIMS
from forebay_billing.writes.store import Store as BillingStore
from forebay_pool import failpoints as pool_failpoints
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.store.database import Store as PoolStore
from sqlalchemy import text
from stripe_emulator import Emulator, Fault
from tornado.httpclient import AsyncHTTPClient

from simulation.agenda import SECOND_NS
from simulation.auditor import Caught
from simulation.money.accountant import HOUR_NS, Accountant, prices_of
from simulation.money.billing_process import BILLING_FILE, OPERATOR, BillingProcess, Clerk
from simulation.money.bills import Bill
from simulation.money.deaths import Killed
from simulation.money.months import month_after, month_of
from simulation.money.operators import DAY_NS, Inspector, Operators
from simulation.money.pool_books import BEAT_NS, POOL_FILE, REFUSED_RETRY_NS, PoolBooks
from simulation.money.wires import DirectHttp, Doorbell, Request, Response
from simulation.storm import Machine, Storm

NEW_YEAR_NS = 1_704_067_200 * SECOND_NS
ROUNDS_MAX = 60
"""So often things are tried again before they count as stuck."""
LINES_TOLD = 60
LOST_ANSWERS = 0.3
"""Of an operator's errands: each is sent again until an answer comes."""
GIVEN_UP = 0.5
"""Of Stripe's webhooks: they never come."""
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

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    @property
    def now_ns(self) -> int:
        return self._scenario.billing_ns()


class Scenario(Storm):
    """One seed. Nothing is written outside of a folder of its own, in memory where the host has such a place."""

    def __init__(self, seed: int, machine: Machine = StateMachine) -> None:
        super().__init__(seed, machine, strict=False)
        self.chance = random.Random(f"week {seed}")
        self._early_ns = self.chance.choice([0, self.chance.randrange(60) * SECOND_NS, 40 * DAY_NS])
        self.unix_offset_ns = NEW_YEAR_NS - self._early_ns
        self.diary: list[str] = []
        self.operators = Operators(self, random.Random(f"office {seed}"))
        self.errands = self.operators.errands
        self.operator = Inspector(self, random.Random(f"inspector {seed}"))
        self._calm_ns = 0
        """Since when nothing goes wrong any more."""
        self.kinds: set[str] = set()
        """Of transactions that there were."""
        self.bills: list[Bill] = []
        """What was invoiced, once all is over."""
        self._leaps = self.chance.random() < 0.5
        """Whether billing is down for a day now and then, and its clock ahead of the pool's."""
        self._leap_ns = 0
        self.told_ns = 0
        self._roughness = self.chance.choice([0.0, 0.05, 0.2])
        self._meter_chance = random.Random(f"meters {seed}")
        self._deactivations = self._meter_chance.choice((0, 0, 1, 2, 4))
        """So often somebody deactivates a meter at Stripe, which then takes events and throws them away."""
        self._asks = self._deactivations > 0
        """Whether billing asks for what was thrown away."""
        self.folder = _folder()
        for name, content in _databases().items():
            (self.folder / name).write_bytes(content)
        self.loop = asyncio.new_event_loop()
        self.disk: PoolBooks = PoolBooks(self, self.folder, self.loop)
        self.watchers = [self.auditor, self.disk, self]
        self.emulator = Emulator(_Clock(self))
        mode: Literal["meters", "invoices"] = self.chance.choice(("meters", "meters", "invoices"))
        self.doorbell = Doorbell(random.Random(f"doorbell {seed}"), lambda: 0.0 if self.calm else LOST_ANSWERS)
        self.billing = BillingProcess(self.folder, self.loop, self._billing_clock, self.emulator, self.chance, mode, self.doorbell)

    # Time: the pool's clock jumps about, billing's only goes ahead

    def billing_ns(self) -> int:
        return NEW_YEAR_NS - self._early_ns + self.agenda.now_ns + self._leap_ns

    def _billing_clock(self) -> int:
        self.told_ns = max(self.told_ns + 1, self.billing_ns())
        return self.told_ns

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
                stack.enter_context(billing_failpoints.armed(self.billing.deaths.reach))
                stack.enter_context(pool_failpoints.armed(self.disk.deaths.reach))
                super().run()
        finally:
            AsyncHTTPClient._restore_configuration(kept)
            logging.disable(logging.NOTSET)
            self._close()

    def _close(self) -> None:
        self.billing.deaths.spares()
        if self.billing.running:
            self.billing.dies()
        self.disk.store.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder)

    def _play(self) -> None:
        self.billing.start()
        self.operators.set_first_prices()
        self.operators.set_first_budgets()
        self.operators.set_channel()
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
        self.reached[f"pool died {where.partition(' of ')[0]}"] += 1
        self.disk.deaths.spares()
        self.kill_pool()

    def see_to_billing(self) -> None:
        """Buries billing if it died just now; somebody starts it again."""
        if self.billing.running and self.billing.deaths.died_at is not None:
            self.note(f"billing dies at {self.billing.deaths.died_at}")
            self.reached[f"billing died at {self.billing.deaths.died_at}"] += 1
            self.billing.dies()
            if self._leaps and self.chance.random() < 0.3:
                self._leap(25 * HOUR_NS)
            self.agenda.after(int(self.chance.expovariate(1) * SECOND_NS), self._start_billing)

    def _start_billing(self) -> None:
        if not self.billing.running:
            self.note("billing starts")
            self.billing.start()

    def _kill_billing(self) -> None:
        self.billing.deaths.died_at = "no particular point"
        self.see_to_billing()

    # The network between pool and billing

    async def _carry(self, request: Request) -> Response:
        """Loses requests and answers, and brings some requests once more, later."""
        rough = 0.0 if self.calm else self._roughness
        if self.chance.random() < rough:
            raise ConnectionResetError("the request was lost")
        if self.chance.random() < rough:
            self.agenda.after(int(self.chance.expovariate(0.5) * SECOND_NS), lambda: self._arrives_again(request))
        response = await self.billing.ask(request)
        self.note(f"{request.method} {request.target}: {response.status} {response.body[:80]!r}")
        if self.chance.random() < rough:
            raise ConnectionResetError("the answer was lost")
        return response

    def _arrives_again(self, request: Request) -> None:
        self.billing.call(request.method, request.target, request.body, dict(request.headers))
        self.see_to_billing()

    # What goes wrong

    def _strike_money(self) -> None:
        if self.calm:
            return
        fates: list[Callable[[], None]] = [
            lambda: self.disk.deaths.comes_after(self.chance.randrange(1, 8)),
            lambda: self.disk.deaths.comes_after(self.chance.randrange(1, 8)),
            lambda: self.billing.deaths.comes_after(self.chance.randrange(1, 12)),
            lambda: self.billing.deaths.comes_after(self.chance.randrange(1, 12)),
            self._kill_billing,
            self._trouble_stripe,
            self._trouble_stripe,
            *self.operators.deeds(),
            self._pay_stripe,
            self._pay_stripe,
            lambda: self._leap(self.chance.choice([HOUR_NS // 2, HOUR_NS]) if self._leaps else 0),
        ]
        self.chance.choice(fates)()
        self.agenda.after(int(self.chance.expovariate(1.2) * SECOND_NS), self._strike_money)

    def _trouble_meters(self) -> None:
        """Before Stripe counts what it took somebody deactivates the meter now and then, and activates it again a while later."""
        if self._deactivations and self.emulator.meters.waiting and self._meter_chance.random() < 0.5:
            self._deactivations -= 1
            meters = self.emulator.account.of("billing.meter")
            self.emulator.meters.set_status(self._meter_chance.choice(meters)["id"], "inactive")
        elif not self._deactivations or self._meter_chance.random() < 0.5:
            self._activate_meters()

    def _activate_meters(self) -> None:
        for meter in self.emulator.account.of("billing.meter"):
            self.emulator.meters.set_status(meter["id"], "active")

    def _hear_reports(self) -> None:
        """Nothing that was thrown away is unheard of before Stripe forgets it."""
        self._activate_meters()
        self.reached["reports fetched"] += self.billing.fetch_reports()
        self.billing.step()

    def _pay_stripe(self) -> None:
        """People pay at Stripe, or cannot, and the operator makes an invoice void there; of all that webhooks tell."""
        asked = [invoice for invoice in self.emulator.account.of("invoice") if invoice["status"] == "open"]
        if asked:
            account = self.emulator.account
            act = self.chance.choice((account.pay, account.pay, account.pay, account.fail_payment, account.void))
            act(self.chance.choice(asked)["id"])

    def _trouble_stripe(self) -> None:
        kinds = self.chance.choices(STRIPE_FAULTS, k=self.chance.randrange(1, 4))
        self.emulator.faults.add(*(Fault(kind, self.chance.choice(("POST ", "GET ", ""))) for kind in kinds))  # type: ignore[arg-type]

    # Billing's own work

    def _bill(self) -> None:
        self._work()
        self.agenda.after(CALM_ROUND_NS if self.calm else int(self.chance.uniform(0.5, 3.0) * SECOND_NS), self._bill)

    def _work(self) -> None:
        """A round of each of its loops, and what comes from Stripe."""
        if self.billing.running:
            try:
                if self.calm or self.chance.random() < 0.4:
                    self.billing.collect()
                if self._asks and (self.calm or self._meter_chance.random() < 0.2):
                    self.reached["reports fetched"] += self.billing.fetch_reports()
                self.billing.step()
                if self.calm or self.chance.random() < 0.2:
                    self.billing.look_again()
                if self.billing.expire():
                    raise Caught("money is held of which nobody has spoken for too long")
                if self.calm or self.chance.random() < 0.2:
                    self.billing.close_months()
                if self.calm or self.chance.random() < 0.5:
                    self.billing.tell_alerts()
            except (Killed, BillingError) as end:
                self.note(f"billing's loop ends: {end!r}")
        self.see_to_billing()
        if self.billing.running:
            self.errands.run(self.billing, lambda: not self.calm and self.chance.random() < LOST_ANSWERS)
        self.see_to_billing()
        if self.calm or self.chance.random() < 0.5:
            self._trouble_meters()
            self.emulator.meters.process()
        self._hear_stripe()

    def _hear_stripe(self) -> None:
        """Webhooks come in any order, until one was taken, or Stripe gives it up."""
        waiting, self.emulator.webhooks = self.emulator.webhooks, []
        self.chance.shuffle(waiting)
        for payload, secret in waiting:
            given_up = self.chance if secret == Emulator.secret else self._meter_chance
            if given_up.random() < GIVEN_UP:
                self.reached["webhooks lost for good"] += 1
                continue
            header = {"Stripe-Signature": self.emulator.signature(payload, secret)}
            response = self.billing.call("POST", "/api/payments/webhook", payload.encode(), header)
            self.see_to_billing()
            if response is None or response.status >= 500:
                self.emulator.webhooks.append((payload, secret))

    # The end

    def _clear_up(self) -> None:
        self._calm_ns = self.agenda.now_ns
        super()._clear_up()
        self.disk.deaths.spares()
        self.billing.deaths.spares()
        self._start_billing()
        while self.emulator.faults.take("POST GET "):
            pass

    def _settle(self) -> None:
        """All comes to rest, after an outage of weeks in some seeds; then all months end, and are invoiced."""
        if self._asks:
            self._work()
            self._hear_reports()
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
        for _ in range(3):
            self._pay_stripe()
            self.operators.settle()
        self.operators.take_back()
        self.operators.correct()
        self._rest()
        self._leap(4 * DAY_NS)
        self._rest()

    def _rest(self) -> None:
        """Time passes until nothing waits any more."""
        for _ in range(ROUNDS_MAX):
            self.disk.retry_refused()
            self.agenda.run(self.agenda.now_ns + 5 * SECOND_NS)
            self._work()
            counts = self.billing.read(CLAIMS.unsettled)
            alerts = self.billing.read(alerts_writes.CLAIMS.unsettled)
            if not (alerts or counts.get("waiting") or self.errands.waiting or self.disk.undelivered() or self.emulator.webhooks):
                self._work()
                if not self.billing.read(CLAIMS.unsettled):
                    return
            self._retry_dead()
            self._leap(max(CLAIMS.claim_ns, 2 * HOUR_NS))
        left = [(errand.method, errand.target) for errand in self.errands.waiting]
        query = text("SELECT kind, subject, note FROM payment_outbox WHERE state IN ('dead', 'waiting')")
        dead = [tuple(row) for row in self.billing.read(lambda connection: connection.execute(query).all())]
        raise Caught(f"still waiting: {self.disk.undelivered()} records, {counts} orders, {alerts} alerts, errands {left}, dead {dead}")

    def _retry_dead(self) -> None:
        headers = {"Authorization": f"token {OPERATOR}"}
        response = self.billing.call("GET", "/api/payments/outbox?state=dead", None, headers)
        if response is None:
            raise Caught("billing does not answer in a calm moment")
        for id in {answer["id"] for answer in self.errands.answers("/api/alerts/channels")}:
            self.billing.call("POST", f"/api/alerts/channels/{id}", {"action": "retry"}, headers)
        for id in [row["id"] for row in json.loads(response.body)["rows"]]:
            self.billing.call("POST", f"/api/payments/outbox/{id}", {"action": "retry", "reason": "calm"}, headers)

    def _account(self) -> None:
        corrected = {answer["id"]: answer["transaction"] for answer in self.errands.answers("/api/corrections")}
        prices = list(prices_of([*self.errands.answers("/api/prices/"), *self.errands.answers("/api/surcharges/")]))
        accountant = Accountant(self.disk.metered, prices, corrected, self.operators.rules())
        with self.disk.store.engine.connect() as connection:
            accountant.check_pool(connection)
        now_ns = self.billing_ns()
        hours = self.billing.read(lambda connection: accountant.check_billing(connection, now_ns))
        self.bills = accountant.bills
        self.billing.read(lambda connection: accountant.check_limits(connection, self.disk.limits, self.disk.began, self._calm_ns))
        self.billing.read(lambda connection: accountant.check_alerts(connection, self.doorbell.heard))
        kinds = text("SELECT DISTINCT kind FROM transactions")
        self.kinds = set(self.billing.read(lambda connection: connection.execute(kinds).scalars().all()))
        self.billing.read(lambda connection: self.reached.update(accountant.reached(connection, self.disk.limits)))
        self.billing.read(lambda connection: accountant.check_stripe(self.emulator, connection, hours, self.billing.mode))
        self._find_no_differences("/api/check")
        self._find_no_differences(f"/api/payments/reconciliation?since_ns={NEW_YEAR_NS - self._early_ns - DAY_NS}&until_ns={now_ns}")

    def _find_no_differences(self, target: str) -> None:
        """Billing's own checks agree."""
        response = self.billing.call("GET", target, None, {"Authorization": f"token {OPERATOR}"})
        if response is None or response.status != 200 or json.loads(response.body)["differences"]:
            raise Caught(f"{target} finds {response and response.body!r:.500}")
