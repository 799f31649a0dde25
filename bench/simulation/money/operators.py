"""What operators do to billing while things break, each as an errand, and what of it was taken."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Protocol

from forebay_billing.payments.exporter import WINDOW_NS

from simulation.agenda import SECOND_NS
from simulation.auditor import Caught
from simulation.money.accountant import CURRENCIES, HOUR_NS, PARKED_PRICES
from simulation.money.billing_process import OPERATOR, BillingProcess
from simulation.money.bills import Rules
from simulation.money.errands import Errand, Errands
from simulation.money.limits import Limited, limited
from simulation.money.months import month_of
from simulation.money.pool_books import SOURCE, PoolBooks
from simulation.operator import Operator, Site
from simulation.people import NOTEBOOKS, notebook_of

DAY_NS = 24 * HOUR_NS
AMOUNT_MINOR_MAX = 2000


class Office(Site, Protocol):
    """What operators of billing work on."""

    billing: BillingProcess
    disk: PoolBooks
    flavor_names: list[str]
    operators: Operators
    unix_offset_ns: int

    def billing_ns(self) -> int: ...


class Inspector(Operator):
    """The storm's operator, whose budgets are billing's."""

    def __init__(self, scenario: Office, chance: random.Random) -> None:
        super().__init__(scenario, chance)
        self._scenario = scenario

    def _set_budget(self) -> None:
        self._scenario.operators.set_budget(*self._somebody())

    def lets_all(self) -> None:
        super().lets_all()
        self._scenario.operators.raise_budgets()


class Operators:
    """Of one scenario."""

    def __init__(self, scenario: Office, chance: random.Random) -> None:
        self.errands = Errands()
        self._scenario = scenario
        self._chance = chance
        self._budgets: dict[Limited, dict[str, Any]] = {}
        """As they were asked for last."""

    def deeds(self) -> list[Callable[[], None]]:
        """What may be done at any time, the usual things more often."""
        usual = [self.set_price] * 6 + [self.set_surcharge] * 3 + [self.close_month, self.grant, self.set_plan, self.set_some_budget] * 2
        return [*usual, self.correct, self.take_back, self.set_tax, self.refund_credit, self.settle, self.set_channel]

    def set_first_prices(self) -> None:
        """For all time; some only after usage has come that needs them. Parked bytes have theirs before anything is parked."""
        for currency, price in PARKED_PRICES.items():
            body = {"price_nano_per_gib_hour": price, "valid_from_ns": 0}
            headers = {"Authorization": f"token {OPERATOR}"}
            response = self._scenario.billing.call("PUT", f"/api/parked-prices/{currency}", body, headers)
            if response is None or response.status != 200:
                raise Caught(f"billing does not take the price of parked bytes: {response and response.body!r}")
        for flavor in self._scenario.flavor_names:
            delay_ns = 0
            for currency in ("USD", "JPY"):
                body = {"price_nano_per_hour": 3601 * self._chance.randrange(10**10), "currency": currency, "valid_from_ns": 0}
                body |= {"new": True} if currency == "USD" else {}
                delay_ns += 0 if self._chance.random() < 0.7 else self._chance.randrange(1, 40 * SECOND_NS)
                self._scenario.agenda.after(delay_ns, lambda f=flavor, b=body: self.errands.add("PUT", f"/api/prices/{f}", b))

    def set_price(self) -> None:
        body = {"price_nano_per_hour": 3601 * self._chance.randrange(10**10), "currency": self._chance.choice(("USD", "JPY"))}
        soon_ns = self._scenario.agenda.now_ns + self._scenario.unix_offset_ns + self._chance.randrange(4 * SECOND_NS)
        body |= {"valid_from_ns": soon_ns} if soon_ns > self._scenario.billing_ns() + SECOND_NS else {}
        flavor = self._chance.choice(self._scenario.flavor_names)
        if any(answer["flavor"] == flavor and answer["currency"] == body["currency"] for answer in self.errands.answers("/api/prices/")):
            self.errands.add("PUT", f"/api/prices/{flavor}", body)

    def set_surcharge(self) -> None:
        """From now on or a little later; before the first one there is none."""
        body = {"surcharge_nano_per_hour": 3601 * self._chance.randrange(10**10), "currency": self._chance.choice(("USD", "JPY"))}
        soon_ns = self._scenario.agenda.now_ns + self._scenario.unix_offset_ns + self._chance.randrange(4 * SECOND_NS)
        body |= {"valid_from_ns": soon_ns} if soon_ns > self._scenario.billing_ns() + SECOND_NS else {}
        model = self._chance.choice(sorted({device.model for device in self._scenario.devices}))
        self.errands.add("PUT", f"/api/surcharges/{model}", body)

    def correct(self) -> None:
        """Of a record that is not older than the hours at which the exporter looks again."""
        since_ns = self._scenario.billing_ns() - WINDOW_NS + DAY_NS
        young = sorted(id for id, record in self._scenario.disk.metered.items() if record.started_at_unix_ns > since_ns)
        if young:
            id = self._chance.choice(young)
            self.errands.add("POST", "/api/corrections", {"source": SOURCE, "id": id, "reason": "a complaint"})

    def grant(self) -> None:
        """Credit that is good for ever, or lapses within the week or the month."""
        now_ns = self._scenario.billing_ns()
        lapses_ns = now_ns + self._chance.choice((20 * SECOND_NS, 5 * HOUR_NS, 3 * DAY_NS, 20 * DAY_NS, 45 * DAY_NS))
        begins_ns = self._chance.choice((0, 0, now_ns, now_ns + 10 * SECOND_NS))
        body: dict[str, Any] = {"tenant": self._chance.choice(self._scenario.tenants), "name": "a gift", "effective_at_ns": begins_ns}
        body |= {"kind": self._chance.choice(("prepaid", "promotional")), "priority": self._chance.choice((0, 50, 50, 100))}
        body |= {"expires_at_ns": lapses_ns} if self._chance.random() < 0.6 else {}
        self.errands.add("POST", "/api/credits", body | {"amount_minor": self._chance.randrange(1, AMOUNT_MINOR_MAX)})

    def close_month(self) -> None:
        """Refused where it is not over, or another before it is open; usage that comes later counts in the next."""
        month = month_of(self._scenario.billing_ns() - self._chance.choice((0, 20 * DAY_NS, 20 * DAY_NS)))
        self.errands.add("POST", "/api/invoices", {"tenant": self._chance.choice(self._scenario.tenants), "month": month})

    def take_back(self) -> None:
        """A part of an invoice, or all of it."""
        made = self._made()
        if made:
            invoice = self._chance.choice(made)
            amount = self._chance.choice((invoice["total_minor"], self._chance.randint(1, invoice["total_minor"])))
            self.errands.add("POST", f"/api/invoices/{invoice['number']}/credit-notes", {"amount_minor": amount, "reason": "a complaint"})

    def set_plan(self) -> None:
        """From this month on, or one that is not far."""
        tenant = self._chance.choice(self._scenario.tenants)
        month = month_of(self._scenario.billing_ns() + self._chance.choice((-20, 0, 0, 20)) * DAY_NS)
        body: dict[str, Any] = {"currency": CURRENCIES[tenant][0], "valid_from": month, "new": True}
        body["discount_bps"] = self._chance.choice((0, 0, 333, 1250, 10_000))
        body["free_nano"] = self._chance.choice((0, 0, self._chance.randrange(30 * 10**9)))
        body["commitment_nano"] = self._chance.choice((0, 0, self._chance.randrange(500 * 10**9)))
        priced = {answer["flavor"] for answer in self.errands.answers("/api/prices/")}
        body["free_seconds"] = {flavor: self._chance.randrange(20) for flavor in sorted(priced) if self._chance.random() < 0.3}
        starts = sorted({self._chance.randrange(200 * 10**9) for _ in range(self._chance.choice((0, 0, 1, 3)))})
        body["tiers"] = [{"from_nano": start, "discount_bps": self._chance.randrange(10_001)} for start in starts]
        self.errands.add("PUT", f"/api/plans/{tenant}", body)

    def set_tax(self) -> None:
        tenant = self._chance.choice(self._scenario.tenants)
        bps = self._chance.choice((0, 700, 1900, 2125))
        self.errands.add("PUT", f"/api/profiles/{tenant}", {"tax_label": "VAT", "tax_bps": bps})

    def refund_credit(self) -> None:
        """All of one, or a part: refused where it is not there any more."""
        prepaid = [errand.answer for errand in self.errands.taken("/api/credits") if errand.answer["kind"] == "prepaid"]
        if prepaid:
            body: dict[str, Any] = {"reason": "a farewell"}
            body |= {} if self._chance.random() < 0.5 else {"amount_minor": self._chance.randrange(1, AMOUNT_MINOR_MAX)}
            self.errands.add("POST", f"/api/credits/{self._chance.choice(prepaid)['id']}/refund", body)

    def settle(self) -> None:
        """Money by bank, where Stripe does not collect; or nothing is asked for any more."""
        made = self._made()
        if made and self._scenario.billing.mode == "meters":
            invoice = self._chance.choice(made)
            target = f"/api/invoices/{invoice['number']}"
            if self._chance.random() < 0.2:
                self.errands.add("POST", f"{target}/void", {"reason": "a gesture"})
                return
            amount = self._chance.choice((invoice["total_minor"], self._chance.randint(1, invoice["total_minor"])))
            body = {"amount_minor": amount, "method": "bank", "reference": f"slip {len(self.errands.done) + len(self.errands.waiting)}"}
            self.errands.add("POST", f"{target}/payments", body | {"kind": self._chance.choice(("payment", "payment", "refund"))})

    def set_first_budgets(self) -> None:
        """A tenant, or somebody of it, or a notebook that has little money from the beginning on, in most weeks."""
        tenant = self._chance.choice(self._scenario.tenants)
        if self._chance.random() < 0.7:
            limit, grace = self._chance.randrange(5 * 10**9, 60 * 10**9), self._chance.choice((0, 5, 20))
            body = {"tenant": tenant, "window": self._window(), "limit_nano": limit, "on_limit": "drain", "grace_seconds": grace}
            self._ask_for_budget(body | self._whose(self._chance.choice((None, None, f"{tenant}-{self._chance.randrange(3)}"))))

    def _window(self) -> str:
        return self._chance.choice(("total", "total", "month"))

    def _whose(self, user: str | None) -> dict[str, Any]:
        """A user's notebook is as good as the user."""
        if user is None:
            return {}
        notebook = self._chance.choice((None, notebook_of(user, self._chance.randrange(NOTEBOOKS))))
        return {"user": user} | ({} if notebook is None else {"notebook": notebook})

    def set_some_budget(self) -> None:
        tenant = self._chance.choice(self._scenario.tenants)
        self.set_budget(tenant, self._chance.choice([None, f"{tenant}-{self._chance.randrange(3)}"]))

    def set_budget(self, tenant: str, user: str | None) -> None:
        """One that is soon used up, or another limit of it."""
        limit = self._chance.randrange(1, self._chance.choice((20, 60, 150)) * 10**9)
        body = {"tenant": tenant, "window": self._window(), "limit_nano": limit} | self._whose(user)
        body["on_limit"] = self._chance.choice(("notify", "refuse", "drain", "drain", "drain"))
        body["grace_seconds"] = self._chance.choice((0, 5, 20))
        self._ask_for_budget(body)

    def raise_budgets(self) -> None:
        """They stop nobody any more."""
        for body in list(self._budgets.values()):
            self._ask_for_budget(body | {"limit_nano": 10**24})

    def _ask_for_budget(self, body: dict[str, Any]) -> None:
        self._budgets[limited(body)] = body
        self.errands.add("PUT", "/api/budgets", body | {"new": True})

    def limits_in_force(self) -> dict[Limited, dict[str, Any]]:
        """The budgets that billing surely has, as it took them; none of which a change is on its way."""
        found = {limited(errand.body): errand.body for errand in self.errands.taken("/api/budgets")}
        changing = {limited(errand.body) for errand in self.errands.waiting if errand.target == "/api/budgets"}
        return {limit: body for limit, body in found.items() if limit not in changing}

    def set_channel(self) -> None:
        body = {"kind": "webhook", "target": "https://alerts.example/hook"}
        body |= {} if self._chance.random() < 0.5 else {"tenant": self._chance.choice(self._scenario.tenants)}
        self.errands.add("POST", "/api/alerts/channels", body)

    def rules(self) -> Rules:
        """All that was taken."""
        plans = {(answer["tenant"], answer["version"]): answer for answer in self.errands.answers("/api/plans/")}
        credits = [self.errands.taken(f"/api/credits{rest}") for rest in ("", "/[^/]+/refund")]
        refunded = [(int(errand.target.split("/")[3]), errand.body.get("amount_minor")) for errand in credits[1]]
        taxes = [(errand.target.split("/")[3], errand.body["tax_bps"]) for errand in self.errands.taken("/api/profiles/[^/]+")]
        return Rules(
            {tenant: coin for tenant, (_, coin) in CURRENCIES.items()},
            [errand.body["amount_minor"] for errand in credits[0]],
            [errand.body["amount_minor"] for errand in self.errands.taken("/api/invoices/[^/]+/credit-notes")],
            refunded, list(plans.values()), taxes, [*map(_settlement, self.errands.taken("/api/invoices/[^/]+/(payments|void)"))],
        )  # fmt: skip

    def _made(self) -> list[Any]:
        """The invoices of which an errand was told that ask for something."""
        return [invoice for errand in self.errands.taken("/api/invoices") for invoice in errand.answer if invoice["total_minor"]]


def _settlement(errand: Errand) -> tuple[str, str, int]:
    return errand.body.get("kind", "void"), errand.target.split("/")[3], errand.body.get("amount_minor", 0)
