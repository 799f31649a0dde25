"""Turns one order into calls to Stripe. Every creating call has a key made of the outbox row, and leaves the row's name in metadata.

An order that may have happened before (see :class:`~forebay_billing.writes.payment_outbox.Claim`) is looked for by that metadata first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import stripe

from forebay_billing.payments import invoicing, metering
from forebay_billing.payments.amounts import Unsendable, stripe_minor
from forebay_billing.payments.gateway import PAGE_OBJECTS, Gateway, first_tagged
from forebay_billing.payments.objects import Known
from forebay_billing.payments.terms import Terms
from forebay_billing.rules.retries import StripeFailure
from forebay_billing.writes import payment_outbox
from forebay_billing.writes.payment_orders import CreditGrant, CreditNote, Customer, Invoice, LateUsage, MeterEvent, Order
from forebay_billing.writes.payment_outbox import Claim

TOO_OLD = "too old for the meter: it goes as an item of the next invoice"


@dataclass(frozen=True)
class Facts:
    """What the books know of Stripe when the order is sent."""

    customer: Known | None
    invoice: Known | None = None
    """The invoice that a credit note takes back from."""
    hour: metering.HourFacts | None = None
    """Of a meter event that may have been taken: what became of the others of its hour."""


@dataclass(frozen=True)
class Delivered:
    """What came of it, and the object to remember, if any."""

    note: str
    known: Known | None = None
    as_item: bool = False
    """Whether it is a meter event that is to go as an item of the next invoice instead."""
    looked: bool = False
    """Whether it follows from Stripe's sum and the books' facts of the hour, and holds as long as these do."""


class Delivery:
    """Sends orders under ``terms``. Its methods raise StripeFailure.

    ``begin(held, facts)`` notes that a meter event may be at Stripe from now on; it raises StripeFailure where the facts are others by now.
    """

    def __init__(self, gateway: Gateway, terms: Terms, begin: Callable[[Claim, Facts], None]) -> None:
        self._gateway = gateway
        self._terms = terms
        self._begin = begin
        self._meters = metering.Meters(gateway)

    def send(self, held: Claim, facts: Facts, now_ns: int) -> Delivered:
        """Does what the order asks for."""
        try:
            return self._send(held, facts, now_ns)
        except Unsendable as error:
            raise StripeFailure("refused", str(error)) from None

    def _send(self, held: Claim, facts: Facts, now_ns: int) -> Delivered:
        order = held.order
        if isinstance(order, Customer):
            return self._customer(held, order, facts, now_ns)
        customer = _customer_id(order, facts)
        metered = self._terms.mode == "meters"
        if isinstance(order, Invoice):
            known = (invoicing.send_extras if metered else invoicing.send)(self._gateway, self._terms, held, order, customer, now_ns)
            return Delivered(known.stripe_id if known else "nothing to send", known)
        if isinstance(order, CreditNote):
            if metered:
                return Delivered(invoicing.send_item(self._gateway, held, invoicing.item_of_credit_note(order), customer))
            noted = invoicing.send_credit_note(self._gateway, held, order, facts.invoice, now_ns)
            return Delivered(payment_outbox.VOID) if noted is None else Delivered(noted.stripe_id, noted)
        if isinstance(order, CreditGrant):
            return self._grant(held, order, customer, now_ns)
        if isinstance(order, LateUsage):
            return Delivered(invoicing.send_item(self._gateway, held, invoicing.item_of_late_usage(order), customer))
        return self._meter_event(held, order, customer, facts, now_ns)

    def _customer(self, held: Claim, order: Customer, facts: Facts, now_ns: int) -> Delivered:
        known = facts.customer if facts.customer is not None and facts.customer.status == "active" else None
        stripe_id = self._look_for_customer(held, order) if known is None and held.look else None
        if known is not None:
            params: stripe.params.CustomerUpdateParams = {"name": order.name, "metadata": {"forebay_tenant": order.tenant}}
            params["email"] = order.email or ""
            target = known.stripe_id
            self._gateway.call(
                "customer.update", lambda client: client.v1.customers.update(target, params, {"idempotency_key": held.key("update")})
            )
            stripe_id = known.stripe_id
        elif stripe_id is None:
            stripe_id = self._create_customer(held, order)
        if self._terms.mode == "meters" and self._terms.meter_price is not None:
            self._subscribe(held, stripe_id, self._terms.meter_price)
        return Delivered(stripe_id, Known("customer", order.tenant, order.tenant, stripe_id, "active", now_ns, order.currency))

    def _create_customer(self, held: Claim, order: Customer) -> str:
        params: stripe.params.CustomerCreateParams = {
            "name": order.name,
            "metadata": {"forebay_tenant": order.tenant, "forebay_key": held.idempotency},
        }
        if order.email is not None:
            params["email"] = order.email
        created = self._gateway.call(
            "customer.create", lambda client: client.v1.customers.create(params, {"idempotency_key": held.key("customer")})
        )
        return created.id

    def _look_for_customer(self, held: Claim, order: Customer) -> str | None:
        def read(client: stripe.StripeClient) -> str | None:
            since: stripe.params.CustomerListParams = {"created": {"gte": held.created_since}, "limit": PAGE_OBJECTS}
            return first_tagged(client.v1.customers.list(since).auto_paging_iter(), "forebay_tenant", order.tenant)

        return self._gateway.call("customer.look", read)

    def _subscribe(self, held: Claim, customer: str, price: str) -> None:
        """A subscription to the metered price, once per customer."""

        def exists(client: stripe.StripeClient) -> bool:
            return bool(client.v1.subscriptions.list({"customer": customer, "price": price, "limit": 1}).data)

        if self._gateway.call("subscription.look", exists):
            return
        params: stripe.params.SubscriptionCreateParams = {
            "customer": customer,
            "items": [{"price": price}],
            "collection_method": self._terms.collection,
            "metadata": {"forebay_key": held.idempotency},
        }
        if self._terms.collection == "send_invoice":
            params["days_until_due"] = self._terms.days_until_due
        self._gateway.call(
            "subscription.create", lambda client: client.v1.subscriptions.create(params, {"idempotency_key": held.key("subscription")})
        )

    def _grant(self, held: Claim, order: CreditGrant, customer: str, now_ns: int) -> Delivered:
        """Stripe takes none that has expired: one that could not be sent in time is not mirrored, and holds nothing up."""
        expired = order.expires_at_ns is not None and order.expires_at_ns // 10**9 <= now_ns // 10**9
        looks = held.look or (expired and held.attempt > 1)
        stripe_id = self._look_for_grant(order, customer) if looks else None
        if stripe_id is None and expired:
            return Delivered(payment_outbox.EXPIRED)
        if stripe_id is None:
            category: Literal["paid", "promotional"] = order.category
            params: stripe.params.billing.CreditGrantCreateParams = {
                "customer": customer,
                "name": order.name[:100],
                "category": category,
                "priority": order.priority,
                "amount": {
                    "type": "monetary",
                    "monetary": {"currency": order.currency.lower(), "value": stripe_minor(order.amount_minor, order.currency)},
                },
                "applicability_config": {"scope": {"price_type": "metered"}},
                "metadata": {"forebay_grant": order.id, "forebay_key": held.idempotency},
            }
            if order.valid_from_ns > now_ns:
                params["effective_at"] = order.valid_from_ns // 10**9
            if order.expires_at_ns is not None:
                params["expires_at"] = order.expires_at_ns // 10**9
            created = self._gateway.call(
                "grant.create", lambda client: client.v1.billing.credit_grants.create(params, {"idempotency_key": held.key("grant")})
            )
            stripe_id = created.id
        known = Known("credit_grant", order.id, order.tenant, stripe_id, "granted", now_ns, order.currency, order.amount_minor)
        return Delivered(stripe_id, known)

    def _look_for_grant(self, order: CreditGrant, customer: str) -> str | None:
        def read(client: stripe.StripeClient) -> str | None:
            grants = client.v1.billing.credit_grants.list({"customer": customer, "limit": PAGE_OBJECTS})
            return first_tagged(grants.auto_paging_iter(), "forebay_grant", order.id)

        return self._gateway.call("grant.look", read)

    def _meter_event(self, held: Claim, order: MeterEvent, customer: str, facts: Facts, now_ns: int) -> Delivered:
        old = metering.too_old(order.hour_ns, now_ns)
        if old and facts.hour is None:
            return Delivered(TOO_OLD, as_item=True)
        meter = self._meters.ensure(order.meter, held)
        if facts.hour is not None and self._meters.taken(meter, order, customer, facts.hour, now_ns):
            return Delivered(f"{metering.identifier(held)}, as Stripe's sum of the hour shows", looked=True)
        if old:
            return Delivered(TOO_OLD, as_item=True, looked=True)
        self._begin(held, facts)
        self._meters.send(held, order, customer)
        return Delivered(metering.identifier(held))


def _customer_id(order: Order, facts: Facts) -> str:
    if facts.customer is None:
        raise StripeFailure("refused", f"The tenant {order.tenant} has no customer at Stripe; set its contact anew, then retry this.")
    if facts.customer.status == "deleted":
        raise StripeFailure("refused", f"The customer of {order.tenant} was deleted at Stripe; set its contact anew, then retry this.")
    return facts.customer.stripe_id
