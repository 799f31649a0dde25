"""The loop that empties the outbox and the inbox of webhooks. Calls are made outside of transactions; what came of them is written only by
whoever still holds the row."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from sqlalchemy import Connection

from forebay_billing import failpoints
from forebay_billing.errors import BillingError
from forebay_billing.payments import metering, objects, webhook_inbox
from forebay_billing.payments.delivery import Delivered, Delivery, Facts
from forebay_billing.payments.gateway import Gateway
from forebay_billing.payments.terms import Terms
from forebay_billing.payments.webhook_inbox import PaymentSink
from forebay_billing.rules.retries import OF_ALL_CALLS, Dead, StripeFailure, next_step
from forebay_billing.writes import payment_outbox
from forebay_billing.writes.payment_orders import CreditNote, ExportSource, Mark, MeterEvent
from forebay_billing.writes.payment_outbox import Claim

log = logging.getLogger(__name__)

CALLS_AT_ONCE = 4
"""Tenants served at the same time; Stripe allows far more calls a second than these make."""
SETTLE_NS = 300 * 10**9
"""Usage of an hour is read this long after its end, so that most of its records are there and one event carries them."""
WINDOW_NS = 40 * 86_400 * 10**9
"""Hours this old are looked at again for late records; of older ones those to which something came."""
LOOK_AGAIN_NS = 6 * 3600 * 10**9
"""An open invoice of which no webhook has told for so long is read again."""
LOOKED_AT_MAX = 64
REPORTS_KEPT_NS = 30 * 86_400 * 10**9
"""So long Stripe lists its events."""
REPORTS_AGAIN_NS = 86_400 * 10**9
"""Reports are asked for again from so long before the last time on: clocks differ, and one may be listed late."""

T = TypeVar("T")


class Books(Protocol):
    """Transactions, as the service or a test gives them."""

    def write(self, job: Callable[[Connection], T]) -> T:
        """Runs ``job`` and returns after its commit."""

    def read(self, work: Callable[[Connection], T]) -> T:
        """Runs ``work`` in a snapshot."""


@dataclass(frozen=True)
class Round:
    """What one step did."""

    sent: int
    failed: int
    events: int


class Exporter:
    """``clock_ns``, ``chance`` (uniform in [0, 1)) and all that does I/O are given, so that a simulator can be them.

    ``sink(connection, before, after)`` hears of every change of an object that Stripe told of, in the transaction that notes it.
    """

    def __init__(
        self, books: Books, gateway: Gateway, terms: Terms, clock_ns: Callable[[], int], chance: Callable[[], float],
        sink: PaymentSink = webhook_inbox.nobody, calls_at_once: int = CALLS_AT_ONCE,
    ) -> None:  # fmt: skip
        self._books = books
        self._delivery = Delivery(gateway, terms, self._begin)
        self._inbox = webhook_inbox.Inbox(gateway, sink)
        self._clock_ns = clock_ns
        self._chance = chance
        self._collected: tuple[Mark, int, int] | None = None
        """What was read last: no hour has ended since, and nothing came, where it is the same again."""
        self._reports_read_ns = 0
        """When Stripe was last asked for reports."""
        self._threads = ThreadPoolExecutor(calls_at_once, thread_name_prefix="billing-payments")

    def close(self) -> None:
        """Waits for the calls that are under way."""
        self._threads.shutdown()

    def step(self) -> Round:
        """Sends what is due, once each, and handles the events that wait. What fails is tried again by a later step."""
        claims = self._books.write(lambda connection: payment_outbox.claim(connection, self._clock_ns()))
        failpoints.reach("payments.claimed")
        sent = list(self._threads.map(self._send, claims))
        handled = self._handle_events()
        return Round(sum(sent), len(sent) - sum(sent), handled)

    def collect(self, source: ExportSource) -> int:
        """Hands over what the meters have not been told of; gives the number of new rows."""
        now_ns = self._clock_ns()
        since_ns, until_ns = (now_ns - WINDOW_NS) // metering.HOUR_NS * metering.HOUR_NS, now_ns - SETTLE_NS

        def read(connection: Connection) -> metering.News | None:
            head = source.mark(connection)
            if self._collected == (head, since_ns, until_ns // metering.HOUR_NS):
                return None
            mark = metering.mark_of(connection)
            changed = [] if mark is None else source.changed_hours(connection, since_ns, mark)
            return metering.News(source.meter_hours(connection, since_ns, until_ns), changed, head)

        news = self._books.read(read)
        if news is None:
            return 0
        made = self._books.write(lambda connection: metering.collect(connection, news, since_ns, until_ns))
        failpoints.reach("payments.collected")
        self._collected = (news.mark, since_ns, until_ns // metering.HOUR_NS)
        return made

    def look_again(self) -> int:
        """Reads the open invoices of which nothing was heard for LOOK_AGAIN_NS: webhooks may be lost for good. How many had changed."""
        now_ns = self._clock_ns()
        unread = self._books.read(lambda connection: objects.unread(connection, now_ns - LOOK_AGAIN_NS, LOOKED_AT_MAX))
        changed = 0
        for known in unread:
            try:
                found = self._inbox.look(known, self._clock_ns())
            except StripeFailure as failure:
                fields = {"action": "payments.look.failed", "invoice": known.subject, "cause": failure.cause, "error": str(failure)}
                log.warning("an invoice could not be looked at", extra=fields)
                if failure.cause in OF_ALL_CALLS:
                    break
                continue
            if self._books.write(partial(self._inbox.take_looked, known=found)):
                changed += 1
                fields = {"action": "payments.looked", "tenant": known.tenant, "invoice": known.subject, "status": found.status}
                log.info("an invoice was looked at", extra=fields)
            failpoints.reach("payments.looked")
        return changed

    def fetch_reports(self) -> int:
        """Notes the reports of meters of which no webhook told, to be handled as if it had. How many they were. Raises StripeFailure."""
        now_ns = self._clock_ns()
        reports = self._inbox.reports(max(now_ns - REPORTS_KEPT_NS, self._reports_read_ns - REPORTS_AGAIN_NS))
        noted = self._books.write(lambda books: sum(webhook_inbox.note(books, report, now_ns) for report in reports)) if reports else 0
        failpoints.reach("payments.reports.noted")
        self._reports_read_ns = now_ns
        if noted:
            log.warning("reports came by no webhook, and were fetched", extra={"action": "payments.reports.fetched", "count": noted})
        return noted

    def _send(self, held: Claim) -> bool:
        now_ns = self._clock_ns()
        try:
            facts = self._books.read(lambda connection: _facts(connection, held, now_ns))
            delivered = self._delivery.send(held, facts, now_ns)
        except StripeFailure as failure:
            self._failed(held, failure)
            return False
        except BillingError:
            raise
        except Exception as error:
            fields = {"action": "payments.fault", "tenant": held.order.tenant, "kind": held.order.kind, "subject": held.order.subject}
            log.exception("an order failed by a fault of ours", extra=fields)
            self._failed(held, StripeFailure("unreachable", f"This service failed with {type(error).__name__}; its log has the cause."))
            return False
        if not self._books.write(lambda connection: _settle(connection, held, facts, delivered, self._clock_ns())):
            self._failed(held, _changed(held))
            return False
        failpoints.reach("payments.settled")
        fields = {"action": "payments.sent", "tenant": held.order.tenant, "kind": held.order.kind, "subject": held.order.subject}
        log.info("an order is sent to Stripe", extra=fields)
        return True

    def _begin(self, held: Claim, facts: Facts) -> None:
        """Notes that the event may be counted from now on; whoever looks at the hour's sum must know."""

        def note(connection: Connection) -> bool:
            return _still(connection, held, facts) and payment_outbox.CLAIMS.note(connection, held, sent_at_ns=self._clock_ns())

        if not self._books.write(note):
            raise _changed(held)

    def _failed(self, held: Claim, failure: StripeFailure) -> None:
        now_ns = self._clock_ns()
        step = next_step(failure, held.attempt, now_ns - held.first_tried_at_ns, self._chance())
        fields = {
            "action": "payments.failed", "tenant": held.order.tenant, "kind": held.order.kind, "subject": held.order.subject,
            "attempt": held.attempt, "cause": failure.cause, "error": str(failure),
        }  # fmt: skip
        log.warning("Stripe did not take an order", extra=fields)
        if isinstance(step, Dead):
            self._books.write(lambda connection: payment_outbox.CLAIMS.give_up(connection, held, now_ns, str(failure)))
        else:
            at_ns = now_ns + int(step.seconds * 10**9)
            self._books.write(lambda connection: payment_outbox.later(connection, held, at_ns, step.look, str(failure)))

    def _handle_events(self) -> int:
        now_ns = self._clock_ns()
        waiting: Sequence[Any] = self._books.read(lambda connection: webhook_inbox.waiting(connection, now_ns))
        for event in waiting:
            try:
                change = self._inbox.read(event, now_ns)
            except StripeFailure as failure:
                self._event_failed(event, failure)
                continue
            self._books.write(partial(self._inbox.apply, event=event, change=change, now_ns=now_ns))
            failpoints.reach("payments.event.handled")
        return len(waiting)

    def _event_failed(self, event: Any, failure: StripeFailure) -> None:
        now_ns = self._clock_ns()
        step = next_step(failure, event.attempts + 1, now_ns - event.received_at_ns, self._chance())
        fields = {"action": "payments.event.failed", "event": event.id, "type": event.type, "cause": failure.cause, "error": str(failure)}
        log.warning("an event of Stripe could not be handled", extra=fields)
        at_ns = None if isinstance(step, Dead) else now_ns + int(step.seconds * 10**9)
        self._books.write(lambda connection: webhook_inbox.later(connection, event, at_ns, str(failure)))


def _facts(connection: Connection, held: Claim, now_ns: int) -> Facts:
    order = held.order
    hour = None
    if isinstance(order, MeterEvent) and (held.look or (held.attempt > 1 and metering.too_old(order.hour_ns, now_ns))):
        hour = metering.hour_facts(connection, order)
    return Facts(
        customer=objects.find(connection, "customer", order.tenant),
        invoice=objects.find(connection, "invoice", order.invoice) if isinstance(order, CreditNote) else None,
        hour=hour,
    )


def _still(connection: Connection, held: Claim, facts: Facts) -> bool:
    """Whether what is known of the event's hour is what the sum was read with; another event may have been sent meanwhile."""
    order = held.order
    return facts.hour is None or not isinstance(order, MeterEvent) or metering.hour_facts(connection, order) == facts.hour


def _changed(held: Claim) -> StripeFailure:
    return StripeFailure("conflict", f"While {held.order.subject} was looked for, others of its hour were sent, or somebody else sent it.")


def _settle(connection: Connection, held: Claim, facts: Facts, delivered: Delivered, now_ns: int) -> bool:
    """False where what it was decided by has changed."""
    if delivered.looked and not _still(connection, held, facts):
        return False
    if not payment_outbox.CLAIMS.done(connection, held, now_ns, delivered.note):
        return True
    if delivered.known is not None:
        objects.save_unless_later(connection, delivered.known)
    if delivered.as_item and isinstance(held.order, MeterEvent):
        metering.move_to_item(connection, held.order, now_ns)
    return True
