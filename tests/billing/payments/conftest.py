"""Real books, the real exporter and the real client, on a clock that moves when told, against the emulator."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest
from forebay_billing.payments import metering, objects, webhook_inbox
from forebay_billing.payments.exporter import Exporter
from forebay_billing.payments.gateway import Gateway
from forebay_billing.payments.reconciliation import Ours, Reader, Report, compare
from forebay_billing.payments.source import BooksSource
from forebay_billing.payments.terms import Terms
from forebay_billing.tables import payments
from forebay_billing.tables.engines import Engines, open_engines, reading, writing
from forebay_billing.tables.payments import events
from forebay_billing.writes import payment_outbox
from forebay_billing.writes.payment_orders import CreditGrant, CreditNote, Customer, Invoice, InvoiceLine, Order, order_of
from sqlalchemy import Connection, select
from stripe_emulator import Emulator

T = TypeVar("T")
HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
ROUNDS_MAX = 400


class HandedOver(BooksSource):
    """For tests that write orders by themselves, without the invoices that would cause them: Stripe ought to hold what was handed over."""

    def invoices(self, connection: Connection, since_ns: int, until_ns: int) -> list[Invoice]:
        return [order for order in _orders(connection) if isinstance(order, Invoice)]

    def credit_notes(self, connection: Connection, since_ns: int, until_ns: int) -> list[CreditNote]:
        return [order for order in _orders(connection) if isinstance(order, CreditNote)]

    def credit_grants(self, connection: Connection, since_ns: int, until_ns: int) -> list[CreditGrant]:
        return [order for order in _orders(connection) if isinstance(order, CreditGrant)]


def _orders(connection: Connection) -> list[Order]:
    bodies = connection.execute(select(payments.outbox.c.body).order_by(payments.outbox.c.id)).scalars()
    return [order_of(body) for body in bodies]


class Books:
    """Transactions on real engines."""

    def __init__(self, engines: Engines) -> None:
        self.engines = engines

    def write(self, job: Callable[[Connection], T]) -> T:
        with writing(self.engines) as connection:
            return job(connection)

    def read(self, work: Callable[[Connection], T]) -> T:
        with reading(self.engines) as connection:
            return work(connection)


class Shop:
    """Everything between an order and Stripe."""

    def __init__(self, engines: Engines, emulator: Emulator, clock: Any, terms: Terms) -> None:
        self.books, self.emulator, self.clock, self.terms = Books(engines), emulator, clock, terms
        self.heard: list[tuple[str, str | None, str]] = []
        self.chance = random.Random(7)
        self.usage: Any = BooksSource()
        self.exporter = self.start()

    def start(self) -> Exporter:
        """A new exporter on the same books, as after a restart."""
        self.gateway = Gateway(Emulator.api_key, self.emulator.url)
        return Exporter(self.books, self.gateway, self.terms, self.clock, self.chance.random, self._sink)

    def _sink(self, _: Connection, before: objects.Known | None, after: objects.Known) -> None:
        self.heard.append((after.subject, before and before.status, after.status))

    def put(self, *orders: Order) -> None:
        self.books.write(lambda connection: [payment_outbox.put(connection, order, self.clock.now_ns) for order in orders])

    def rows(self, state: str | None = None) -> list[Any]:
        return list(reversed(self.books.read(lambda connection: payment_outbox.rows(connection, state, None))))

    def run(self) -> None:
        """Steps until nothing waits any more, or only behind a dead letter; moves the clock to what is due next."""
        for _ in range(ROUNDS_MAX):
            done = self.exporter.step()
            waiting = [row.next_at_ns for row in self.rows("waiting")] + self.books.read(_events_due)
            if not waiting or (done.sent + done.failed + done.events == 0 and max(waiting) <= self.clock.now_ns):
                return
            if done.sent + done.events == 0:
                self.clock.now_ns = min([due for due in waiting if due > self.clock.now_ns], default=self.clock.now_ns)
        raise AssertionError(f"still waiting: {self.rows('waiting')}")

    def hear(self, payload: bytes, header: str) -> int:
        """A webhook, as the endpoint takes it."""
        notice = webhook_inbox.verified(payload, header, [Emulator.secret, Emulator.thin_secret], self.clock.now_ns)
        return 200 if self.books.write(lambda connection: webhook_inbox.note(connection, notice, self.clock.now_ns)) else 208

    def hear_all(self, **how: Any) -> list[int]:
        """All webhooks that wait, then what they ask for."""
        answers = self.emulator.deliver(self.hear, **how)
        self.run()
        return answers

    def known(self, kind: str, subject: str) -> objects.Known:
        found = self.books.read(lambda connection: objects.find(connection, kind, subject))
        assert found is not None
        return found

    def reconcile(self) -> Report:
        metered = self.terms.mode == "meters"
        source, ever = HandedOver(), (0, 2**62)

        def read(connection: Connection) -> tuple[Ours, list[objects.Known]]:
            ours = Ours(
                source.customers(connection), [] if metered else source.invoices(connection, *ever),
                [] if metered else source.credit_notes(connection, *ever), source.credit_grants(connection, *ever),
                metering.due_at_stripe(connection, self.usage.meter_hours(connection, *ever), *ever) if metered else [],
                metering.late_minor(connection) if metered else {},
            )  # fmt: skip
            return ours, objects.of_kind(connection, "customer", None)

        ours, known = self.books.read(read)
        return compare(ours, Reader(self.gateway).theirs(ours, known))


def _events_due(connection: Connection) -> list[int]:
    return list(connection.execute(select(events.c.next_at_ns).where(events.c.state == "waiting")).scalars())


@pytest.fixture
def emulator(clock: Any) -> Iterator[Emulator]:
    with Emulator(clock) as running:
        yield running
    assert sorted(set(running.shape_faults)) == []


@pytest.fixture
def engines(migrated_url: str) -> Iterator[Engines]:
    opened = open_engines(migrated_url, 5)
    yield opened
    opened.dispose()


@pytest.fixture
def open_shop(engines: Engines, emulator: Emulator, clock: Any) -> Iterator[Callable[..., Shop]]:
    """Opens a shop under the terms given."""
    opened: list[Shop] = []

    def open_one(**terms: Any) -> Shop:
        opened.append(Shop(engines, emulator, clock, Terms(**terms)))
        return opened[-1]

    yield open_one
    for shop in opened:
        shop.exporter.close()


@pytest.fixture
def shop(open_shop: Callable[..., Shop]) -> Shop:
    return open_shop()


@pytest.fixture(scope="session")
def customer() -> Callable[..., Customer]:
    def make(tenant: str = "acme", version: int = 1, **changes: Any) -> Customer:
        return Customer(
            **{"tenant": tenant, "name": "Acme Ltd", "email": "pay@acme.example", "currency": "USD", "version": version} | changes
        )

    return make


@pytest.fixture
def invoice(clock: Any) -> Callable[..., Invoice]:
    def make(
        number: str = "2026-000001", amounts: tuple[int, ...] = (85, 1234, -100), tenant: str = "acme", currency: str = "USD"
    ) -> Invoice:
        start, end = clock.now_ns - 20 * DAY_NS, clock.now_ns
        lines = (InvoiceLine(f"line-{n}", f"Line {n}", amount, "usage", start, end) for n, amount in enumerate(amounts))
        return Invoice(number, tenant, currency, tuple(lines))

    return make


@pytest.fixture
def grant(clock: Any) -> Callable[..., CreditGrant]:
    def make(id: str = "grant-1", **changes: Any) -> CreditGrant:
        values: dict[str, Any] = {
            "tenant": "acme", "name": "Welcome", "category": "promotional", "currency": "USD", "amount_minor": 5000, "priority": 10,
            "valid_from_ns": clock.now_ns, "expires_at_ns": clock.now_ns + 90 * DAY_NS,
        }  # fmt: skip
        return CreditGrant(id=id, **(values | changes))

    return make
