"""Our finalised invoices as Stripe's: one item a line to the cent, the same total or nothing, our number in sight."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import stripe

from forebay_billing.payments.amounts import iso_minor, stripe_minor
from forebay_billing.payments.gateway import PAGE_OBJECTS, Gateway, first_tagged, tag
from forebay_billing.payments.objects import Known
from forebay_billing.payments.terms import Terms
from forebay_billing.rules.retries import StripeFailure
from forebay_billing.writes.payment_orders import CreditNote, Invoice, InvoiceLine, LateUsage
from forebay_billing.writes.payment_outbox import Claim

ITEMS_MAX = 250
"""Stripe's bound for the items of an invoice."""
DESCRIPTION_CHARS_MAX = 500


@dataclass(frozen=True)
class Item:
    """An invoice item that names itself by one metadata entry."""

    tag: str
    value: str
    currency: str
    amount_minor: int
    description: str
    started_at_ns: int | None
    ended_at_ns: int | None


def send(gateway: Gateway, terms: Terms, held: Claim, order: Invoice, customer: str, now_ns: int) -> Known | None:
    """Draft, items, the check of the total, finalised. Whatever was done before a failure is found again or replayed."""
    if not order.lines:
        return None
    draft = _look_for_invoice(gateway, held, order, customer) if held.look else None
    if draft is None:
        draft = _create_invoice(gateway, terms, held, order, customer)
    if draft.status == "draft":
        present = _lines_present(gateway, draft.id) if held.look else set()
        for item in _items(order):
            if item.value not in present:
                _create_item(gateway, held, item, customer, draft.id)
        draft = _finalise(gateway, terms, held, order, draft.id)
    return known_invoice(draft, order.number, order.tenant, now_ns)


def send_extras(gateway: Gateway, terms: Terms, held: Claim, order: Invoice, customer: str, now_ns: int) -> Known | None:
    """Where meters tell Stripe of usage and grants of credits: the other lines, as items of the next invoice that Stripe makes."""
    for line in order.lines:
        if line.role == "other":
            send_item(gateway, held, _item_of_line(order, line, "forebay_extra"), customer)
    return None


def known_invoice(invoice: stripe.Invoice, number: str, tenant: str, now_ns: int) -> Known:
    """What we remember of an invoice as it was just read."""
    currency = invoice.currency.upper()
    return Known(
        "invoice", number, tenant, invoice.id, str(invoice.status), now_ns, currency,
        iso_minor(invoice.total, currency), iso_minor(invoice.amount_paid, currency), invoice.hosted_invoice_url,
    )  # fmt: skip


def item_of_late_usage(order: LateUsage) -> Item:
    """Usage that a meter no longer takes."""
    return Item(
        "forebay_late", order.id, order.currency, order.amount_minor, order.description, order.started_at_ns, order.ended_at_ns
    )  # fmt: skip


def item_of_credit_note(order: CreditNote) -> Item:
    """A credit note against an invoice that Stripe made by itself: less on the next one."""
    return Item("forebay_credit_note", order.number, order.currency, -order.amount_minor, _memo(order), None, None)


def send_item(gateway: Gateway, held: Claim, item: Item, customer: str) -> str:
    """An item that waits for the customer's next invoice; its id."""

    def read(client: stripe.StripeClient) -> str | None:
        since: stripe.params.InvoiceItemListParams = {
            "customer": customer,
            "created": {"gte": held.created_since},
            "limit": PAGE_OBJECTS,
        }
        return first_tagged(client.v1.invoice_items.list(since).auto_paging_iter(), item.tag, item.value)

    found = gateway.call("item.look", read) if held.look else None
    return found or _create_item(gateway, held, item, customer, None)


def send_credit_note(gateway: Gateway, held: Claim, order: CreditNote, invoice: Known | None, now_ns: int) -> Known | None:
    """Takes back what is still open first; of what was paid the rest goes to the customer's balance. None of an invoice that is void."""
    if invoice is None or invoice.status == "deleted":
        raise StripeFailure("refused", f"The invoice {order.invoice} is not at Stripe, so nothing can be taken back from it there.")
    target = invoice.stripe_id

    def read(client: stripe.StripeClient) -> str | None:
        notes = client.v1.credit_notes.list({"invoice": target, "limit": PAGE_OBJECTS}).auto_paging_iter()
        return first_tagged(notes, "forebay_credit_note", order.number)

    stripe_id = gateway.call("credit_note.look", read) if held.look else None
    if stripe_id is None:
        amount = stripe_minor(order.amount_minor, order.currency)
        current = gateway.call("invoice.read", lambda client: client.v1.invoices.retrieve(target))
        if current.status == "void":
            return None
        params: stripe.params.CreditNoteCreateParams = {
            "invoice": target,
            "amount": amount,
            "memo": _memo(order),
            "metadata": {"forebay_credit_note": order.number, "forebay_key": held.idempotency},
        }
        paid_part = amount - min(amount, current.amount_remaining)
        if paid_part:
            params["credit_amount"] = paid_part
        note = gateway.call(
            "credit_note.create", lambda client: client.v1.credit_notes.create(params, {"idempotency_key": held.key("credit-note")})
        )
        stripe_id = note.id
    return Known("credit_note", order.number, order.tenant, stripe_id, "issued", now_ns, order.currency, order.amount_minor)


def _memo(order: CreditNote) -> str:
    return f"Credit note {order.number} to invoice {order.invoice}: {order.reason}"[:DESCRIPTION_CHARS_MAX]


def _look_for_invoice(gateway: Gateway, held: Claim, order: Invoice, customer: str) -> stripe.Invoice | None:
    def read(client: stripe.StripeClient) -> stripe.Invoice | None:
        since: stripe.params.InvoiceListParams = {
            "customer": customer,
            "created": {"gte": held.created_since},
            "limit": PAGE_OBJECTS,
        }
        invoices = client.v1.invoices.list(since).auto_paging_iter()
        return next((each for each in invoices if tag(each, "forebay_invoice") == order.number), None)

    return gateway.call("invoice.look", read)


def _create_invoice(gateway: Gateway, terms: Terms, held: Claim, order: Invoice, customer: str) -> stripe.Invoice:
    params: stripe.params.InvoiceCreateParams = {
        "customer": customer,
        "currency": order.currency.lower(),
        "auto_advance": False,
        "collection_method": terms.collection,
        "pending_invoice_items_behavior": "exclude",
        "custom_fields": [{"name": "Invoice", "value": order.number[:140]}],
        "metadata": {"forebay_invoice": order.number, "forebay_tenant": order.tenant, "forebay_key": held.idempotency},
    }
    if terms.collection == "send_invoice":
        params["days_until_due"] = terms.days_until_due
    return gateway.call("invoice.create", lambda client: client.v1.invoices.create(params, {"idempotency_key": held.key("invoice")}))


def _lines_present(gateway: Gateway, invoice: str) -> set[str]:
    def read(client: stripe.StripeClient) -> set[str]:
        items = client.v1.invoice_items.list({"invoice": invoice, "limit": PAGE_OBJECTS}).auto_paging_iter()
        return {value for item in items if (value := tag(item, "forebay_line")) is not None}

    return gateway.call("item.look", read)


def _items(order: Invoice) -> list[Item]:
    """One a line; what Stripe's bound has no room for is summed up in a last one."""
    if len(order.lines) <= ITEMS_MAX:
        return [_item_of_line(order, line, "forebay_line") for line in order.lines]
    head, rest = order.lines[: ITEMS_MAX - 1], order.lines[ITEMS_MAX - 1 :]
    rest_item = Item(
        "forebay_line", "rest", order.currency, sum(line.amount_minor for line in rest), f"{len(rest)} further lines of {order.number}",
        min(line.started_at_ns for line in rest), max(line.ended_at_ns for line in rest),
    )  # fmt: skip
    return [*(_item_of_line(order, line, "forebay_line") for line in head), rest_item]


def _item_of_line(order: Invoice, line: InvoiceLine, name: str) -> Item:
    value = line.key if name == "forebay_line" else f"{order.number}/{line.key}"
    return Item(name, value, order.currency, line.amount_minor, line.description, line.started_at_ns, line.ended_at_ns)


def _create_item(gateway: Gateway, held: Claim, item: Item, customer: str, invoice: str | None) -> str:
    params: stripe.params.InvoiceItemCreateParams = {
        "customer": customer,
        "currency": item.currency.lower(),
        "amount": stripe_minor(item.amount_minor, item.currency),
        "description": item.description[:DESCRIPTION_CHARS_MAX],
        "discountable": False,
        "metadata": {item.tag: item.value, "forebay_key": held.idempotency},
    }
    if item.started_at_ns is not None and item.ended_at_ns is not None:
        params["period"] = {"start": item.started_at_ns // 10**9, "end": max(item.started_at_ns, item.ended_at_ns - 1) // 10**9}
    if invoice is not None:
        params["invoice"] = invoice
    options: stripe.RequestOptions = {"idempotency_key": held.key(f"item-{hashlib.sha256(item.value.encode()).hexdigest()[:24]}")}
    return gateway.call("item.create", lambda client: client.v1.invoice_items.create(params, options)).id


def _finalise(gateway: Gateway, terms: Terms, held: Claim, order: Invoice, invoice: str) -> stripe.Invoice:
    """Finalises a draft whose total is ours, and refuses any other: it stays a draft, which nobody is asked to pay."""
    current = gateway.call("invoice.read", lambda client: client.v1.invoices.retrieve(invoice))
    if current.status != "draft":
        return current
    expected = stripe_minor(order.total_minor, order.currency)
    if current.total != expected:
        raise StripeFailure(
            "refused", f"Stripe's draft {invoice} of {order.number} asks for {current.total} instead of {expected}; it was left a draft."
        )
    params: stripe.params.InvoiceFinalizeInvoiceParams = {"auto_advance": terms.auto_advance}
    options: stripe.RequestOptions = {"idempotency_key": held.key("finalise")}
    return gateway.call("invoice.finalise", lambda client: client.v1.invoices.finalize_invoice(invoice, params, options))
