"""Webhooks: verified and written down at once, handled after, each by reading the object's present state from Stripe.

So their order does not matter, and neither does it how often one arrives. An event is a hint that something changed. Stripe gives up
sending one after three days: what can still change there is read again now and then without any, and reports of meters are asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import stripe
from sqlalchemy import Connection, insert, select, update

from forebay_billing.errors import BadWebhook
from forebay_billing.payments import objects
from forebay_billing.payments.amounts import iso_minor
from forebay_billing.payments.gateway import Gateway, id_of, masked, tag
from forebay_billing.payments.invoicing import known_invoice
from forebay_billing.payments.objects import Known
from forebay_billing.rules.retries import StripeFailure
from forebay_billing.tables.payments import events
from forebay_billing.writes import payment_outbox

TOLERANCE_SECONDS = 300
"""A signature's time may differ so much from ours, in either direction."""
HANDLED_MAX = 64
METER_EVENTS = ("v1.billing.meter.error_report_triggered", "v1.billing.meter.no_meter_found")
INVOICE_EVENTS = (
    "invoice.finalized", "invoice.paid", "invoice.payment_failed", "invoice.voided", "invoice.marked_uncollectible", "invoice.overpaid",
)  # fmt: skip
CREDIT_NOTE_EVENTS = ("credit_note.created", "credit_note.updated", "credit_note.voided")
_SIGNED_AT = re.compile(r"(?:^|,)t=(\d{1,12})(?:,|$)")

PaymentSink = Callable[[Connection, Known | None, Known], None]


def nobody(connection: Connection, before: Known | None, after: Known) -> None:
    """The sink where nothing else depends on payments."""


@dataclass(frozen=True)
class Notice:
    """What we keep of an event: what happened to which object."""

    id: str
    type: str
    object_id: str | None


@dataclass(frozen=True)
class Change:
    """What an event led to: an object's state, and meter events that Stripe threw away, by identifier with the reason."""

    note: str
    known: tuple[Known, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    deleted_customer: str | None = None
    ignored: bool = False


def verified(payload: bytes, header: str | None, secrets: Sequence[str], now_ns: int) -> Notice:
    """The event of a body that one of ``secrets`` signed within the tolerance. Raises BadWebhook.

    The comparison is the library's, in constant time. The time is compared here, with our clock and in both directions.
    """
    if not any(_signed(payload, header, secret) for secret in secrets):
        raise BadWebhook("The signature is missing, or made with none of our secrets.")
    signed_at = _SIGNED_AT.search(header or "")
    if signed_at is None or abs(now_ns // 10**9 - int(signed_at[1])) > TOLERANCE_SECONDS:
        raise BadWebhook(f"The signature's time is more than {TOLERANCE_SECONDS} seconds from ours.")
    try:
        return _notice(json.loads(payload))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BadWebhook("The body is signed, but is not one of Stripe's events.") from None


def _signed(payload: bytes, header: str | None, secret: str) -> bool:
    try:
        return bool(stripe.WebhookSignature.verify_header(payload, header, secret, tolerance=None))
    except (stripe.SignatureVerificationError, UnicodeDecodeError):
        return False


def _notice(event: dict[str, Any]) -> Notice:
    if event["object"] == "v2.core.event":
        related = event.get("related_object")
        return Notice(_text(event["id"]), _text(event["type"]), None if related is None else _text(related["id"]))
    if event["object"] != "event":
        raise ValueError("not an event")
    about = event["data"]["object"].get("id")
    return Notice(_text(event["id"]), _text(event["type"]), None if about is None else _text(about))


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 128:
        raise ValueError("not a name")
    return value


def note(connection: Connection, notice: Notice, now_ns: int) -> bool:
    """Writes the event down; false for one that was there before."""
    if connection.execute(select(events.c.id).where(events.c.id == notice.id)).first() is not None:
        return False
    state = "waiting" if _concerns_us(notice.type) else "ignored"
    values = {"id": notice.id, "type": notice.type, "object_id": notice.object_id, "received_at_ns": now_ns, "state": state}
    connection.execute(insert(events).values(**values, attempts=0, next_at_ns=now_ns))
    return True


def waiting(connection: Connection, now_ns: int) -> Sequence[Any]:
    """The events to be handled now, oldest first."""
    query = select(events).where(events.c.state == "waiting", events.c.next_at_ns <= now_ns)
    return connection.execute(query.order_by(events.c.received_at_ns, events.c.id).limit(HANDLED_MAX)).all()


def later(connection: Connection, event: Any, at_ns: int | None, error: str) -> None:
    """Tries again at ``at_ns``; None: never, an operator finds it in the list."""
    values: dict[str, Any] = {"attempts": event.attempts + 1, "note": error[: payment_outbox.NOTE_CHARS_MAX]}
    values |= {"state": "dead"} if at_ns is None else {"next_at_ns": at_ns}
    connection.execute(update(events).where(events.c.id == event.id, events.c.state == "waiting").values(**values))


def _concerns_us(type: str) -> bool:
    return type in (*METER_EVENTS, *INVOICE_EVENTS, *CREDIT_NOTE_EVENTS, "customer.deleted")


class Inbox:
    """Handles events that were written down."""

    def __init__(self, gateway: Gateway, sink: PaymentSink) -> None:
        self._gateway = gateway
        self._sink = sink

    def read(self, event: Any, now_ns: int) -> Change:
        """Asks Stripe how what the event is about stands now. Raises StripeFailure."""
        if event.type in METER_EVENTS:
            return self._read_meter_errors(event.id)
        if event.object_id is None:
            return Change("the event names no object", ignored=True)
        if event.type in INVOICE_EVENTS:
            return self._read_invoice(event.object_id, now_ns)
        if event.type in CREDIT_NOTE_EVENTS:
            return self._read_credit_note(event.object_id, now_ns)
        return self._read_customer(event.object_id)

    def apply(self, connection: Connection, event: Any, change: Change, now_ns: int) -> None:
        """Writes the change, once per event, and tells the sink of what differs from before."""
        state = "ignored" if change.ignored else "done"
        values = {"state": state, "attempts": event.attempts + 1, "note": change.note[: payment_outbox.NOTE_CHARS_MAX]}
        changed = connection.execute(update(events).where(events.c.id == event.id, events.c.state == "waiting").values(**values))
        if changed.rowcount != 1:
            return
        gone = None if change.deleted_customer is None else objects.find_stripe(connection, change.deleted_customer)
        for known in (*change.known, *([] if gone is None else [replace(gone, status="deleted", refreshed_at_ns=now_ns)])):
            self._take(connection, known)
        for identifier, reason in change.refused:
            payment_outbox.bury(connection, identifier.removeprefix("forebay-"), now_ns, reason)

    def reports(self, since_ns: int) -> list[Notice]:
        """What meters could not take since then, as far as Stripe lists it, whether a webhook told of it or not. Raises StripeFailure."""
        since = datetime.fromtimestamp(since_ns // 10**9, UTC).isoformat().replace("+00:00", "Z")

        def read(client: stripe.StripeClient) -> list[Notice]:
            found = client.v2.core.events.list({"types": list(METER_EVENTS), "created": {"gte": since}})
            return [_notice(event.to_dict()) for event in found.auto_paging_iter()]

        return self._gateway.call("event.list", read)

    def look(self, known: Known, now_ns: int) -> Known:
        """How an invoice stands at Stripe now. Raises StripeFailure."""
        found = self._read_invoice(known.stripe_id, now_ns).known
        return found[0] if found else replace(known, status="deleted", refreshed_at_ns=now_ns)

    def take_looked(self, connection: Connection, known: Known) -> bool:
        """Writes what :meth:`look` found, and tells the sink; false where it is not news, or was read again since."""
        before = objects.find(connection, known.kind, known.subject)
        if before is not None and before.refreshed_at_ns > known.refreshed_at_ns:
            return False
        return self._take(connection, known)

    def _take(self, connection: Connection, known: Known) -> bool:
        before = objects.find(connection, known.kind, known.subject)
        if before is not None and before.stripe_id != known.stripe_id:
            return False
        objects.save(connection, known)
        differs = before is None or replace(before, refreshed_at_ns=known.refreshed_at_ns) != known
        if differs:
            self._sink(connection, before, known)
        return differs

    def _read_invoice(self, stripe_id: str, now_ns: int) -> Change:
        invoice = self._retrieve("invoice", lambda client: client.v1.invoices.retrieve(stripe_id))
        number, tenant = tag(invoice, "forebay_invoice"), tag(invoice, "forebay_tenant")
        if invoice is None or number is None or tenant is None:
            return Change("not an invoice of ours", ignored=True)
        known = known_invoice(invoice, number, tenant, now_ns)
        return Change(f"invoice {number} is {known.status}", (known,))

    def _read_credit_note(self, stripe_id: str, now_ns: int) -> Change:
        credit_note = self._retrieve("credit_note", lambda client: client.v1.credit_notes.retrieve(stripe_id))
        if credit_note is None:
            return Change("the credit note is gone", ignored=True)
        invoice_id = id_of(credit_note.invoice)
        about = self._read_invoice(invoice_id, now_ns) if invoice_id is not None else Change("no invoice", ignored=True)
        number = tag(credit_note, "forebay_credit_note")
        if number is None or not about.known:
            return replace(about, note=f"{about.note}; not a credit note of ours")
        currency = credit_note.currency.upper()
        known = Known(
            "credit_note", number, about.known[0].tenant, credit_note.id, str(credit_note.status), now_ns, currency,
            iso_minor(credit_note.amount, currency),
        )  # fmt: skip
        return Change(f"credit note {number} is {known.status}", (known, *about.known))

    def _read_customer(self, stripe_id: str) -> Change:
        customer = self._retrieve("customer", lambda client: client.v1.customers.retrieve(stripe_id))
        gone = customer is None or bool(getattr(customer, "deleted", False))
        if not gone:
            return Change("the customer is there", ignored=True)
        return Change("the customer was deleted", deleted_customer=stripe_id)

    def _read_meter_errors(self, event_id: str) -> Change:
        event = self._gateway.call("event.read", lambda client: client.v2.core.events.retrieve(event_id))
        data = getattr(event, "data", None)
        if data is None:
            return Change("the event has no report", ignored=True)
        refused = tuple(
            (str(sample.request.identifier), masked(f"{kind.code}: {sample.error_message}"))
            for kind in data.reason.error_types
            for sample in kind.sample_errors
        )
        return Change(f"{data.reason.error_count} meter events refused: {data.developer_message_summary}", refused=refused)

    def _retrieve(self, name: str, work: Callable[[stripe.StripeClient], Any]) -> Any:
        """The object, None where Stripe has none of that id any more."""
        try:
            return self._gateway.call(f"{name}.read", work)
        except StripeFailure as failure:
            if failure.code == "resource_missing":
                return None
            raise
