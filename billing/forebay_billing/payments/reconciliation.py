"""Ours against Stripe's: the comparison is pure, the reading beside it. No difference, or each one named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import stripe

from forebay_billing.payments.amounts import Unsendable, stripe_minor
from forebay_billing.payments.gateway import PAGE_OBJECTS, Gateway, tag
from forebay_billing.payments.metering import HOUR_NS
from forebay_billing.payments.objects import Known
from forebay_billing.writes.payment_orders import CreditGrant, CreditNote, Customer, Invoice, MeterHour

UNCOLLECTED = ("draft", "deleted")
T = TypeVar("T")


@dataclass(frozen=True)
class Difference:
    """``what`` of ``kind`` ``subject`` is ``ours`` with us and ``theirs`` with Stripe; None where one side has nothing."""

    kind: str
    subject: str
    what: str
    ours: str | int | None
    theirs: str | int | None


@dataclass(frozen=True)
class Ours:
    """What the books hold, as far as it is Stripe's to hold too."""

    customers: Sequence[Customer] = ()
    invoices: Sequence[Invoice] = ()
    credit_notes: Sequence[CreditNote] = ()
    credit_grants: Sequence[CreditGrant] = ()
    meter_hours: Sequence[MeterHour] = ()
    late_usage: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """What items of late usage ought to sum to, by tenant and currency, ever."""


@dataclass(frozen=True)
class TheirInvoice:
    """An invoice at Stripe with its items by our line, in the minor units of its API."""

    id: str
    number: str | None
    customer: str
    status: str
    currency: str
    total: int
    lines: Mapping[str, int]


@dataclass(frozen=True)
class Theirs:
    """What Stripe holds: customers by tenant, invoices, amounts of notes and grants by our name, hours by tenant, meter and start."""

    customers: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    invoices: Sequence[TheirInvoice] = ()
    credit_notes: Mapping[str, int] = field(default_factory=dict)
    credit_grants: Mapping[str, int] = field(default_factory=dict)
    meter_hours: Mapping[tuple[str, str, int], int] = field(default_factory=dict)
    late_usage: Mapping[tuple[str, str], int] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """``totals``: by currency what our invoices ask for, and what Stripe's finalised ones do, in the API's minor units."""

    compared: Mapping[str, int]
    totals: Mapping[str, tuple[int, int]]
    differences: tuple[Difference, ...]


def compare(ours: Ours, theirs: Theirs) -> Report:
    """Every difference, by kind and name."""
    found = [
        *_customers(ours.customers, theirs.customers),
        *_invoices(ours.invoices, theirs.invoices),
        *_amounts("credit_note", {note.number: (note.amount_minor, note.currency) for note in ours.credit_notes}, theirs.credit_notes),
        *_amounts("credit_grant", {grant.id: (grant.amount_minor, grant.currency) for grant in ours.credit_grants}, theirs.credit_grants),
        *_hours(ours.meter_hours, theirs.meter_hours),
        *_late(ours.late_usage, theirs.late_usage),
    ]
    compared = {
        "customers": len(ours.customers), "invoices": len(ours.invoices), "credit_notes": len(ours.credit_notes),
        "credit_grants": len(ours.credit_grants), "meter_hours": len(ours.meter_hours),
        "late_usage": len(ours.late_usage),
    }  # fmt: skip
    return Report(compared, _totals(ours.invoices, theirs.invoices), tuple(found))


def _customers(ours: Sequence[Customer], theirs: Mapping[str, Mapping[str, str | None]]) -> Iterable[Difference]:
    for customer in ours:
        there = theirs.get(customer.tenant)
        if there is None:
            yield Difference("customer", customer.tenant, "existence", customer.name, None)
            continue
        for what, value in (("name", customer.name), ("email", customer.email or None)):
            if (there.get(what) or None) != value:
                yield Difference("customer", customer.tenant, what, value, there.get(what))
    for tenant in sorted(theirs.keys() - {customer.tenant for customer in ours}):
        yield Difference("customer", tenant, "existence", None, theirs[tenant].get("id"))


def _invoices(ours: Sequence[Invoice], theirs: Sequence[TheirInvoice]) -> Iterable[Difference]:
    there: dict[str, list[TheirInvoice]] = {}
    for theirs_one in theirs:
        if theirs_one.number is None:
            yield Difference("invoice", theirs_one.id, "existence", None, theirs_one.total)
        else:
            there.setdefault(theirs_one.number, []).append(theirs_one)
    for invoice in ours:
        found = there.pop(invoice.number, [])
        if not found:
            if invoice.lines:
                yield Difference("invoice", invoice.number, "existence", _sent(invoice.total_minor, invoice.currency), None)
            continue
        if len(found) > 1:
            yield Difference("invoice", invoice.number, "how often", 1, len(found))
        yield from _invoice(invoice, found[0])
    for number, rest in sorted(there.items()):
        yield Difference("invoice", number, "existence", None, rest[0].total)


def _invoice(ours: Invoice, theirs: TheirInvoice) -> Iterable[Difference]:
    if theirs.status in UNCOLLECTED:
        yield Difference("invoice", ours.number, "status", "finalised", theirs.status)
    if theirs.currency.upper() != ours.currency:
        yield Difference("invoice", ours.number, "currency", ours.currency, theirs.currency.upper())
    total = _sent(ours.total_minor, ours.currency)
    if theirs.total != total:
        yield Difference("invoice", ours.number, "total", total, theirs.total)
    if "rest" in theirs.lines:
        return
    lines = {line.key: (line.amount_minor, ours.currency) for line in ours.lines}
    for difference in _amounts("invoice line", lines, theirs.lines):
        yield Difference(difference.kind, f"{ours.number}/{difference.subject}", difference.what, difference.ours, difference.theirs)


def _amounts(kind: str, ours: Mapping[str, tuple[int, str]], theirs: Mapping[str, int]) -> Iterable[Difference]:
    for name in sorted(ours.keys() | theirs.keys()):
        mine = _sent(*ours[name]) if name in ours else None
        if name not in ours or name not in theirs:
            yield Difference(kind, name, "existence", mine, theirs.get(name))
        elif mine != theirs[name]:
            yield Difference(kind, name, "amount", mine, theirs[name])


def _hours(ours: Sequence[MeterHour], theirs: Mapping[tuple[str, str, int], int]) -> Iterable[Difference]:
    mine = {(hour.tenant, hour.meter, hour.hour_ns): hour.value for hour in ours}
    for key in sorted(mine.keys() | theirs.keys()):
        if mine.get(key, 0) != theirs.get(key, 0):
            yield Difference("meter hour", "/".join(str(part) for part in key), "value", mine.get(key), theirs.get(key))


def _late(ours: Mapping[tuple[str, str], int], theirs: Mapping[tuple[str, str], int]) -> Iterable[Difference]:
    for key in sorted(ours.keys() | theirs.keys()):
        mine, there = _sent(ours.get(key, 0), key[1]), theirs.get(key, 0)
        if mine != there:
            yield Difference("late usage", "/".join(key), "amount", mine, there)


def _totals(ours: Sequence[Invoice], theirs: Sequence[TheirInvoice]) -> dict[str, tuple[int, int]]:
    sums: dict[str, tuple[int, int]] = {}
    for invoice in ours:
        mine, other = sums.get(invoice.currency, (0, 0))
        amount = _sent(invoice.total_minor, invoice.currency)
        sums[invoice.currency] = (mine + (amount if isinstance(amount, int) else 0), other)
    for there in theirs:
        if there.status not in UNCOLLECTED and there.number is not None:
            mine, other = sums.get(there.currency.upper(), (0, 0))
            sums[there.currency.upper()] = (mine, other + there.total)
    return sums


def _sent(amount_minor: int, currency: str) -> int | str:
    try:
        return stripe_minor(amount_minor, currency)
    except Unsendable:
        return f"{amount_minor} (finer than Stripe's coins)"


class Reader:
    """Reads Stripe's side. Methods raise StripeFailure."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def theirs(self, ours: Ours, known: Sequence[Known]) -> Theirs:
        """All that Stripe has of the customers that we ``know``, as far as it can be compared with ``ours``."""
        customers: dict[str, dict[str, str | None]] = {}
        invoices: list[TheirInvoice] = []
        notes: dict[str, int] = {}
        grants: dict[str, int] = {}
        numbers = {invoice.number for invoice in ours.invoices}
        for one in known:
            there = self._customer(one.stripe_id)
            if there is not None:
                customers[one.subject] = there
            invoices += [invoice for invoice in self._invoices(one.stripe_id) if invoice.number is None or invoice.number in numbers]
            notes |= self._credit_notes(one.stripe_id)
            grants |= self._grants(one.stripe_id)
        wanted = {note.number for note in ours.credit_notes}
        granted = {grant.id for grant in ours.credit_grants}
        return Theirs(
            customers,
            invoices,
            {name: amount for name, amount in notes.items() if name in wanted},
            {name: amount for name, amount in grants.items() if name in granted},
            self._hours(ours.meter_hours, {one.subject: one.stripe_id for one in known}),
            self._late(known) if ours.meter_hours or ours.late_usage else {},
        )

    def _list(self, name: str, work: Callable[[stripe.StripeClient], list[T]]) -> list[T]:
        return self._gateway.call(f"reconcile.{name}", work)

    def _customer(self, stripe_id: str) -> dict[str, str | None] | None:
        customer: Any = self._gateway.call("reconcile.customer", lambda client: client.v1.customers.retrieve(stripe_id))
        if getattr(customer, "deleted", False):
            return None
        return {"id": customer.id, "name": customer.name, "email": customer.email}

    def _invoices(self, customer: str) -> list[TheirInvoice]:
        def read(client: stripe.StripeClient) -> list[TheirInvoice]:
            made = client.v1.invoices.list({"customer": customer, "limit": PAGE_OBJECTS}).auto_paging_iter()
            return [_their_invoice(client, invoice, customer) for invoice in made if _is_ours_or_stray(invoice)]

        return self._list("invoices", read)

    def _credit_notes(self, customer: str) -> dict[str, int]:
        def read(client: stripe.StripeClient) -> list[tuple[str, int]]:
            notes = client.v1.credit_notes.list({"customer": customer, "limit": PAGE_OBJECTS}).auto_paging_iter()
            return [(name, note.amount) for note in notes if note.status != "void" and (name := tag(note, "forebay_credit_note"))]

        return dict(self._list("credit_notes", read))

    def _grants(self, customer: str) -> dict[str, int]:
        def read(client: stripe.StripeClient) -> list[tuple[str, int]]:
            grants = client.v1.billing.credit_grants.list({"customer": customer, "limit": PAGE_OBJECTS}).auto_paging_iter()
            return [
                (name, grant.amount.monetary.value)
                for grant in grants
                if grant.voided_at is None and grant.amount.monetary is not None and (name := tag(grant, "forebay_grant"))
            ]

        return dict(self._list("grants", read))

    def _late(self, known: Sequence[Known]) -> dict[tuple[str, str], int]:
        found: dict[tuple[str, str], int] = {}
        for one in known:
            customer, tenant = one.stripe_id, one.subject

            def read(client: stripe.StripeClient, customer: str = customer) -> list[tuple[str, int]]:
                items = client.v1.invoice_items.list({"customer": customer, "limit": PAGE_OBJECTS}).auto_paging_iter()
                return [(item.currency.upper(), item.amount) for item in items if tag(item, "forebay_late") is not None]

            for currency, amount in self._list("late", read):
                found[tenant, currency] = found.get((tenant, currency), 0) + amount
        return found

    def _hours(self, hours: Sequence[MeterHour], customers: Mapping[str, str]) -> dict[tuple[str, str, int], int]:
        """Stripe's hourly sums over the whole stretch of each tenant's and meter's hours."""
        if not hours:
            return {}

        def meters(client: stripe.StripeClient) -> list[tuple[str, str]]:
            return [(meter.event_name, meter.id) for meter in client.v1.billing.meters.list({"limit": PAGE_OBJECTS}).auto_paging_iter()]

        ids = dict(self._list("meters", meters))
        found: dict[tuple[str, str, int], int] = {}
        stretches: dict[tuple[str, str], list[int]] = {}
        for hour in hours:
            stretches.setdefault((hour.tenant, hour.meter), []).append(hour.hour_ns)
        for (tenant, meter), starts in stretches.items():
            if tenant in customers and meter in ids:
                for start_ns, value in self._summaries(ids[meter], customers[tenant], min(starts), max(starts) + HOUR_NS):
                    found[tenant, meter, start_ns] = value
        return found

    def _summaries(self, meter: str, customer: str, since_ns: int, until_ns: int) -> list[tuple[int, int]]:
        def read(client: stripe.StripeClient) -> list[tuple[int, int]]:
            params: stripe.params.billing.MeterEventSummaryListParams = {
                "customer": customer,
                "start_time": since_ns // 10**9,
                "end_time": until_ns // 10**9,
                "value_grouping_window": "hour",
                "limit": PAGE_OBJECTS,
            }
            summaries = client.v1.billing.meters.event_summaries.list(meter, params).auto_paging_iter()
            return [(summary.start_time * 10**9, round(summary.aggregated_value)) for summary in summaries]

        return self._list("hours", read)


def _is_ours_or_stray(invoice: stripe.Invoice) -> bool:
    """Invoices of subscriptions are Stripe's own; any other one without our number is worth a question."""
    return tag(invoice, "forebay_invoice") is not None or invoice.parent is None


def _their_invoice(client: stripe.StripeClient, invoice: stripe.Invoice, customer: str) -> TheirInvoice:
    items = client.v1.invoice_items.list({"invoice": invoice.id, "limit": PAGE_OBJECTS}).auto_paging_iter()
    lines = {tag(item, "forebay_line") or item.id: item.amount for item in items}
    number = tag(invoice, "forebay_invoice")
    return TheirInvoice(invoice.id, number, customer, str(invoice.status), invoice.currency, invoice.total, lines)
