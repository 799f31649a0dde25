"""Payments as the rest of the service sees them: what handlers ask, and the loop that runs beside them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Mapping
from typing import TypeVar

import stripe
from sqlalchemy import Connection

from forebay_billing.errors import BadWebhook, BillingError, PaymentsOff, PaymentsUnavailable
from forebay_billing.ledger.books import Books
from forebay_billing.payments import metering, objects, webhook_inbox
from forebay_billing.payments.exporter import CALLS_AT_ONCE, Exporter
from forebay_billing.payments.gateway import Gateway
from forebay_billing.payments.reconciliation import Ours, Reader, Report, compare
from forebay_billing.payments.terms import Terms
from forebay_billing.payments.webhook_inbox import PaymentSink
from forebay_billing.rules.retries import StripeFailure
from forebay_billing.settings import Settings
from forebay_billing.writes import payment_outbox
from forebay_billing.writes.payment_orders import ExportSource
from forebay_billing.writes.store import Store

log = logging.getLogger(__name__)

STEP_SECONDS = 1.0
COLLECT_SECONDS = 300.0
LOOK_SECONDS = 60.0
REPORTS_SECONDS = 3600.0
REFUSALS_AUDITED_PER_MINUTE = 30
"""Anybody can send webhooks that are refused; the audit must not grow as fast as they like. All are counted and logged."""

T = TypeVar("T")


def _with(books: Books, job: Callable[[Connection], T]) -> T:
    """``job`` may post to the ledger through books of its own, so that these look again."""
    done = job(books.connection)
    books.look_again()
    return done


class _StoreBooks:
    """The store's transactions for the exporter's threads."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def write(self, job: Callable[[Connection], T]) -> T:
        return self._store.submit(lambda books: _with(books, job)).result()

    def read(self, work: Callable[[Connection], T]) -> T:
        return self._store.snapshot(work)


class Payments:
    """Owns the exporter until :meth:`close`, and from :meth:`start` on the loop that runs it. ``source`` tells of the books; ``on_counts``
    is told how many orders wait or are dead, and how many a step sent and failed to send; a ``gateway`` and its ``calls_at_once`` are
    given where Stripe is not over a network."""

    def __init__(
        self, store: Store, settings: Settings, clock_ns: Callable[[], int], source: ExportSource,
        on_counts: Callable[[Mapping[str, int], int, int], None], gateway: Gateway | None = None,
        chance: Callable[[], float] = random.random, calls_at_once: int = CALLS_AT_ONCE, sink: PaymentSink = webhook_inbox.nobody,
    ) -> None:  # fmt: skip
        mode = settings.stripe_mode
        if mode == "off":
            raise PaymentsOff("stripe_mode is off.")
        self._store = store
        self._clock_ns = clock_ns
        self._source = source
        self._on_counts = on_counts
        self._secrets = settings.stripe_webhook_secret_texts()
        self._return_url = settings.stripe_return_url
        self._gateway = gateway or Gateway(settings.stripe_key_text(), settings.stripe_api_url)
        terms = Terms(
            mode, settings.stripe_auto_advance, settings.stripe_collection, settings.stripe_days_until_due, settings.stripe_meter_price
        )  # fmt: skip
        self._terms = terms
        self.exporter = Exporter(_StoreBooks(store), self._gateway, terms, clock_ns, chance, sink, calls_at_once)
        self._stop = asyncio.Event()
        self._audited: list[int] = []
        self._task: asyncio.Task[None] | None = None

    def start(self, leads: Callable[[], bool] = lambda: True) -> None:
        """Collects and sends, until :meth:`close`, while ``leads`` says that no other service does."""
        self._task = asyncio.create_task(self._run(leads), name="billing-payments")

    async def close(self) -> None:
        """Lets the calls that are under way come to their end."""
        self._stop.set()
        if self._task is not None:
            await self._task
        await asyncio.to_thread(self.exporter.close)

    async def hear(self, payload: bytes, header: str | None, sender: str) -> bool:
        """A webhook; false for one that was heard before. Raises BadWebhook, of which the audit tells."""
        now_ns = self._clock_ns()
        try:
            notice = webhook_inbox.verified(payload, header, self._secrets, now_ns)
        except BadWebhook as error:
            await self._audit_refusal(str(error), sender, now_ns)
            raise
        return await self._write(lambda books: webhook_inbox.note(books.connection, notice, now_ns))

    async def portal(self, tenant: str) -> str:
        """A link for the tenant's admin to Stripe's customer portal. Raises PaymentsOff, PaymentsUnavailable."""
        known = await self._store.read(lambda connection: objects.find(connection, "customer", tenant))
        if known is None or known.status != "active":
            raise PaymentsOff(f"The tenant {tenant} has no customer at Stripe; an operator sets its contact with api/payments/contacts.")
        try:
            return await asyncio.to_thread(self._open_portal, known.stripe_id)
        except StripeFailure as failure:
            raise PaymentsUnavailable(str(failure)) from None

    async def reconcile(self, since_ns: int, until_ns: int) -> Report:
        """Ours against Stripe's, of what was finalised, granted or used in that time. Raises PaymentsUnavailable.

        Reports of meters that no webhook brought are fetched, and handled a moment later.
        """
        metered = self._terms.mode == "meters"
        truth = self._source

        def read(connection: Connection) -> tuple[Ours, list[objects.Known]]:
            hours = truth.meter_hours(connection, since_ns, until_ns) if metered else []
            unsent = payment_outbox.never_mirrored(connection)
            ours = Ours(
                truth.customers(connection),
                [] if metered else truth.invoices(connection, since_ns, until_ns),
                [] if metered else [note for note in truth.credit_notes(connection, since_ns, until_ns) if note.number not in unsent],
                [grant for grant in truth.credit_grants(connection, since_ns, until_ns) if grant.id not in unsent],
                metering.due_at_stripe(connection, hours, since_ns, until_ns),
                metering.late_minor(connection) if metered else {},
            )
            return ours, objects.of_kind(connection, "customer", None)

        ours, known = await self._store.read(read)
        if metered:
            await asyncio.to_thread(self._fetch_reports)
        try:
            theirs = await asyncio.to_thread(Reader(self._gateway).theirs, ours, known)
        except StripeFailure as failure:
            raise PaymentsUnavailable(str(failure)) from None
        return compare(ours, theirs)

    def _fetch_reports(self) -> None:
        """Where it fails, the next time is as good."""
        try:
            self.exporter.fetch_reports()
        except StripeFailure as failure:
            fields = {"action": "payments.reports.failed", "cause": failure.cause, "error": str(failure)}
            log.warning("reports could not be fetched", extra=fields)

    def _open_portal(self, customer: str) -> str:
        params: stripe.params.billing_portal.SessionCreateParams = {"customer": customer}
        if self._return_url is not None:
            params["return_url"] = self._return_url
        return self._gateway.call("portal", lambda client: client.v1.billing_portal.sessions.create(params)).url

    async def _audit_refusal(self, reason: str, sender: str, now_ns: int) -> None:
        log.warning("a webhook is refused", extra={"action": "payments.webhook.refused", "sender": sender, "reason": reason})
        self._audited = [at_ns for at_ns in self._audited if now_ns - at_ns < 60 * 10**9]
        if len(self._audited) < REFUSALS_AUDITED_PER_MINUTE:
            self._audited.append(now_ns)
            after = {"refused": reason, "sender": sender}
            await self._write(lambda books: books.append_audit(now_ns, "webhook", "payments.webhook", sender, None, after))

    async def _write(self, job: Callable[[Books], T]) -> T:
        return await asyncio.wrap_future(self._store.submit(job))

    async def _run(self, leads: Callable[[], bool]) -> None:
        loop = asyncio.get_running_loop()
        collect_at = look_at = reports_at = loop.time()
        while not self._stop.is_set():
            busy = False
            try:
                if not leads():
                    self._on_counts({}, 0, 0)
                    await self._rest()
                    continue
                if self._terms.mode == "meters" and loop.time() >= collect_at:
                    collect_at = loop.time() + COLLECT_SECONDS
                    await asyncio.to_thread(self.exporter.collect, self._source)
                if self._terms.mode == "meters" and loop.time() >= reports_at:
                    reports_at = loop.time() + REPORTS_SECONDS
                    await asyncio.to_thread(self._fetch_reports)
                if loop.time() >= look_at:
                    look_at = loop.time() + LOOK_SECONDS
                    await asyncio.to_thread(self.exporter.look_again)
                done = await asyncio.to_thread(self.exporter.step)
                busy = done.sent > 0 or done.events > 0
                self._on_counts(await self._store.read(payment_outbox.CLAIMS.unsettled), done.sent, done.failed)
            except BillingError as error:
                log.warning("a step failed and is tried again", extra={"action": "payments.step.failed", "error": str(error)})
            except Exception:
                log.exception("a step failed and is tried again", extra={"action": "payments.step.failed"})
            if not busy:
                await self._rest()

    async def _rest(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), STEP_SECONDS)
