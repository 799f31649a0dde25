"""The objects of one account: customers, invoices, items, credit notes, subscriptions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

Object = dict[str, Any]
INVOICE_ITEMS_MAX = 250


class Refused(Exception):
    """An error of the API's own."""

    def __init__(self, message: str, code: str | None = None, status: int = 400, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.error = {"type": "invalid_request_error", "message": message, "code": code, "param": param}


class Account:
    """``now_s`` is the account's clock, ``tell(type, object)`` makes a webhook."""

    def __init__(self, now_s: Callable[[], int], tell: Callable[[str, Object], None]) -> None:
        self.now_s = now_s
        self.tell = tell
        self.lock = threading.RLock()
        self.objects: dict[str, Object] = {}
        self._numbers: dict[str, int] = {}

    def new_id(self, prefix: str) -> str:
        self._numbers[prefix] = self._numbers.get(prefix, 0) + 1
        return f"{prefix}_emu{self._numbers[prefix]:06d}"

    def keep(self, thing: Object) -> Object:
        self.objects[thing["id"]] = thing
        return thing

    def get(self, kind: str, id: str) -> Object:
        found = self.objects.get(id)
        if found is None or found["object"] != kind:
            raise Refused(f"No such {kind}: '{id}'", "resource_missing", 404, "id")
        return found

    def of(self, kind: str, **fields: Any) -> list[Object]:
        """Newest first, as lists are."""
        return [
            thing
            for thing in reversed(list(self.objects.values()))
            if thing["object"] == kind
            and not thing.get("deleted")
            and all(thing.get(name) == value for name, value in fields.items() if value is not None)
        ]

    def live_customer(self, id: str) -> Object:
        customer = self.get("customer", id)
        if customer.get("deleted"):
            raise Refused(f"No such customer: '{id}'", "resource_missing", 400, "customer")
        return customer

    def create_customer(self, params: Object) -> Object:
        return self.keep(
            {
                "id": self.new_id("cus"), "object": "customer", "created": self.now_s(), "livemode": False, "name": params.get("name"),
                "email": params.get("email") or None, "metadata": dict(params.get("metadata") or {}), "balance": 0,
            }
        )  # fmt: skip

    def update_customer(self, id: str, params: Object) -> Object:
        customer = self.live_customer(id)
        customer.update({name: params[name] or None for name in ("name", "email") if name in params})
        customer["metadata"] |= params.get("metadata") or {}
        return customer

    def delete_customer(self, id: str) -> Object:
        self.live_customer(id)
        self.objects[id] = {"id": id, "object": "customer", "deleted": True}
        self.tell("customer.deleted", self.objects[id])
        return self.objects[id]

    def create_invoice(self, params: Object, parent: Object | None = None) -> Object:
        customer = self.live_customer(params["customer"])
        if params.get("collection_method") == "send_invoice":
            if "days_until_due" not in params:
                raise Refused("If invoice `collection_method`=`send_invoice`, you must specify `due_date` or `days_until_due`.")
            if customer["email"] is None:
                raise Refused(
                    "Missing email. To send invoices to a customer, the customer must have a valid email."
                )
        now = self.now_s()
        return self.keep(
            {
                "id": self.new_id("in"), "object": "invoice", "created": now, "livemode": False, "customer": customer["id"],
                "currency": params["currency"], "status": "draft", "metadata": dict(params.get("metadata") or {}), "number": None,
                "auto_advance": params.get("auto_advance", False),
                "collection_method": params.get("collection_method", "charge_automatically"),
                "custom_fields": params.get("custom_fields"), "hosted_invoice_url": None, "parent": parent, "subtotal": 0, "total": 0,
                "amount_due": 0, "amount_paid": 0, "amount_remaining": 0, "amount_overpaid": 0, "amount_shipping": 0, "attempt_count": 0,
                "attempted": False, "automatic_tax": {"enabled": False}, "default_tax_rates": [], "discounts": [],
                "issuer": {"type": "self"}, "lines": {"object": "list", "data": [], "has_more": False, "url": "/v1/invoices/lines"},
                "payment_settings": {}, "period_end": now, "period_start": now, "post_payment_credit_notes_amount": 0,
                "pre_payment_credit_notes_amount": 0, "starting_balance": 0, "status_transitions": {},
            }
        )  # fmt: skip

    def create_item(self, params: Object) -> Object:
        customer = self.live_customer(params["customer"])
        invoice = None if "invoice" not in params else self.get("invoice", params["invoice"])
        if invoice is not None:
            if invoice["status"] != "draft":
                raise Refused("This invoice is no longer editable.", "invoice_not_editable")
            if invoice["currency"] != params["currency"]:
                raise Refused("The currency of the invoice item must be that of the invoice.")
            if len(self.of("invoiceitem", invoice=invoice["id"])) >= INVOICE_ITEMS_MAX:
                raise Refused("An invoice has at most 250 items.")
        period = params.get("period") or {"start": self.now_s(), "end": self.now_s()}
        if period["end"] < period["start"]:
            raise Refused("The end of the period lies before its start.")
        item = self.keep(
            {
                "id": self.new_id("ii"), "object": "invoiceitem", "customer": customer["id"], "currency": params["currency"],
                "amount": params["amount"], "description": params.get("description"), "metadata": dict(params.get("metadata") or {}),
                "invoice": invoice and invoice["id"], "period": period, "date": self.now_s(), "livemode": False, "proration": False,
                "discountable": params.get("discountable", True), "quantity": 1, "quantity_decimal": "1",
            }
        )  # fmt: skip
        if invoice is not None:
            self._sum_up(invoice)
        return item

    def _sum_up(self, invoice: Object) -> None:
        invoice["total"] = invoice["subtotal"] = sum(item["amount"] for item in self.of("invoiceitem", invoice=invoice["id"]))
        invoice["amount_due"] = invoice["amount_remaining"] = max(0, invoice["total"])

    def finalise(self, id: str, params: Object) -> Object:
        invoice = self.get("invoice", id)
        if invoice["status"] != "draft":
            raise Refused("This invoice is already finalized, you can't re-finalize a non-draft invoice.")
        if not self.of("invoiceitem", invoice=id) and invoice["parent"] is None:
            raise Refused("Nothing to invoice for customer", "invoice_no_customer_line_items")
        invoice["auto_advance"] = params.get("auto_advance", invoice["auto_advance"])
        invoice["number"] = f"EMU-{len(self.of('invoice')):04d}"
        invoice["hosted_invoice_url"] = f"https://invoice.stripe.com/i/{id}"
        invoice["status"] = "open" if invoice["amount_due"] else "paid"
        self.tell("invoice.finalized", invoice)
        if invoice["status"] == "paid":
            self.tell("invoice.paid", invoice)
        return invoice

    def pay(self, id: str) -> Object:
        invoice = self.get("invoice", id)
        if invoice["status"] != "open":
            raise Refused("Invoice is already paid")
        invoice |= {"amount_paid": invoice["amount_remaining"], "amount_remaining": 0, "status": "paid", "attempted": True}
        self.tell("invoice.paid", invoice)
        return invoice

    def fail_payment(self, id: str) -> Object:
        invoice = self.get("invoice", id)
        invoice |= {"attempted": True, "attempt_count": invoice["attempt_count"] + 1}
        self.tell("invoice.payment_failed", invoice)
        return invoice

    def void(self, id: str) -> Object:
        invoice = self.get("invoice", id)
        if invoice["status"] not in ("open", "uncollectible"):
            raise Refused(f"You can only void open invoices; this one is {invoice['status']}.")
        invoice["status"] = "void"
        self.tell("invoice.voided", invoice)
        return invoice

    def create_credit_note(self, params: Object) -> Object:
        invoice = self.get("invoice", params["invoice"])
        if invoice["status"] not in ("open", "paid"):
            raise Refused(f"A credit note needs an open or paid invoice; this one is {invoice['status']}.")
        amount = params["amount"]
        open_part = min(amount, invoice["amount_remaining"])
        paid_part = amount - open_part
        if paid_part > invoice["amount_paid"] - invoice["post_payment_credit_notes_amount"]:
            raise Refused("The credit note is larger than what is left of the invoice.")
        if params.get("credit_amount", 0) + params.get("refund_amount", 0) + params.get("out_of_band_amount", 0) != paid_part:
            raise Refused(f"The sum of credit amount, refund amount and out of band amount must equal the paid part ({paid_part}).")
        invoice["amount_remaining"] -= open_part
        invoice["pre_payment_credit_notes_amount"] += open_part
        invoice["post_payment_credit_notes_amount"] += paid_part
        self.objects[invoice["customer"]]["balance"] -= params.get("credit_amount", 0)
        note = self.keep(
            {
                "id": self.new_id("cn"), "object": "credit_note", "created": self.now_s(), "livemode": False, "invoice": invoice["id"],
                "customer": invoice["customer"], "currency": invoice["currency"], "amount": amount, "total": amount, "subtotal": amount,
                "status": "issued", "memo": params.get("memo"), "metadata": dict(params.get("metadata") or {}), "amount_shipping": 0,
                "discount_amount": 0, "discount_amounts": [], "pre_payment_amount": open_part, "post_payment_amount": paid_part,
                "lines": {"object": "list", "data": [], "has_more": False, "url": "/v1/credit_notes/lines"}, "number": "EMU-CN-1",
                "pdf": "https://pay.stripe.com/credit_notes/pdf", "pretax_credit_amounts": [], "refunds": [],
                "type": "mixed" if open_part and paid_part else "pre_payment" if open_part else "post_payment",
            }
        )  # fmt: skip
        if open_part and not invoice["amount_remaining"] and invoice["status"] == "open":
            invoice["status"] = "paid"
            self.tell("invoice.paid", invoice)
        self.tell("credit_note.created", note)
        return note

    def void_credit_note(self, id: str) -> Object:
        note = self.get("credit_note", id)
        note["status"] = "void"
        self.tell("credit_note.voided", note)
        return note

    def create_subscription(self, params: Object) -> Object:
        customer = self.live_customer(params["customer"])
        price = self.get("price", params["items"][0]["price"])
        now = self.now_s()
        return self.keep(
            {
                "id": self.new_id("sub"), "object": "subscription", "customer": customer["id"], "created": now, "status": "active",
                "currency": price["currency"], "metadata": dict(params.get("metadata") or {}), "livemode": False,
                "automatic_tax": {"enabled": False},
                "billing_cycle_anchor": now, "billing_mode": {"type": "flexible"}, "billing_schedules": [],
                "cancel_at_period_end": False,
                "collection_method": params.get("collection_method", "charge_automatically"), "discounts": [], "invoice_settings": {},
                "items": {"object": "list", "data": [], "has_more": False, "url": "/v1/subscription_items"}, "start_date": now,
                "_price": price["id"],
            }
        )  # fmt: skip

    def invoice_subscription(self, id: str, quantity: int) -> Object:
        """What Stripe does at a period's end: the metered quantity at its price, and the items that wait."""
        subscription = self.get("subscription", id)
        price = self.get("price", subscription["_price"])
        parent = {"type": "subscription_details"}
        invoice = self.create_invoice({"customer": subscription["customer"], "currency": price["currency"]}, parent)
        for item in self.of("invoiceitem", customer=subscription["customer"]):
            if item["invoice"] is None:
                item["invoice"] = invoice["id"]
        self._sum_up(invoice)
        usage = (Decimal(max(0, quantity)) * price["unit_amount_decimal"]).quantize(Decimal(1), ROUND_HALF_UP)
        invoice["total"] += int(usage)
        invoice["amount_due"] = invoice["amount_remaining"] = max(0, invoice["total"])
        return self.finalise(invoice["id"], {})


def page(things: Iterable[Object], params: Object, url: str) -> Object:
    """A list as the API pages it."""
    rows = list(things)
    since = (params.get("created") or {}).get("gte")
    if since is not None:
        rows = [row for row in rows if row.get("created", row.get("date", 0)) >= since]
    if "starting_after" in params:
        ids = [row["id"] for row in rows]
        rows = rows[ids.index(params["starting_after"]) + 1 :]
    limit = params.get("limit", 10)
    return {"object": "list", "url": url, "has_more": len(rows) > limit, "data": rows[:limit]}
