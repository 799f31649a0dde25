"""The server: keys, faults, routes; and the webhooks that tests deliver in the order they like."""

from __future__ import annotations

import json
import random
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import stripe
from forebay_billing.payments.gateway import API_VERSION
from stripe.params.v2.core import EventListParams

from stripe_emulator.account import Account, Object, Refused, page
from stripe_emulator.faults import Fault, Faults
from stripe_emulator.forms import decoded
from stripe_emulator.meters import Meters
from stripe_emulator.shapes import BadParameter, faults_of_answer, params_of, taken

KEYS_KEPT_SECONDS = 24 * 3600
EVENTS_KEPT = timedelta(days=30)
EVENTS_LISTED = 10
"""On a page, where nothing else is asked for."""
Work = Callable[[Object, tuple[str, ...]], Object]


@dataclass(frozen=True)
class Call:
    """One request as it came."""

    method: str
    path: str
    key: str | None
    params: Object


@dataclass
class _Saved:
    call: Call
    at_s: int
    status: int = 0
    body: bytes = b""
    under_way: bool = True


class Emulator:
    """``clock`` has ``now_ns``, which test clocks advance. As a context manager it listens at ``url``; :meth:`serve` needs no socket."""

    api_key = "sk_test_emulatorEmulatorEmulator"
    secret = "whsec_emulatorSnapshot"
    thin_secret = "whsec_emulatorThin"

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.faults = Faults()
        self.account = Account(self.now_s, self._tell)
        self.meters = Meters(self.account, self._report)
        self.calls: list[Call] = []
        self.shape_faults: list[str] = []
        self.webhooks: list[tuple[str, str]] = []
        self._reports: dict[str, Object] = {}
        self._pages: dict[str, tuple[list[Object], int]] = {}
        """What is left of a list, and the size of its pages, by the name of the page that is next."""
        self._saved: dict[str, _Saved] = {}
        self._routes = [(re.compile(pattern), params_of(name) if name else None, work) for pattern, name, work in self._table()]

    def __enter__(self) -> Emulator:
        emulator = self

        class Handler(_Handler):
            owner = emulator

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, name="stripe-emulator")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def now_s(self) -> int:
        return int(self.clock.now_ns // 10**9)

    def called(self, pattern: str) -> list[Call]:
        """The calls whose "METHOD /path" matches."""
        return [call for call in self.calls if re.search(pattern, f"{call.method} {call.path}")]

    def add_price(self, id: str, currency: str, unit_amount_decimal: str) -> None:
        """A metered price, as an operator makes it in the dashboard."""
        self.account.keep({"id": id, "object": "price", "currency": currency, "unit_amount_decimal": Decimal(unit_amount_decimal)})

    def deliver(self, post: Callable[[bytes, str], int], chance: random.Random | None = None, copies: int = 1) -> list[int]:
        """Sends all webhooks that wait, ``copies`` times each, shuffled by ``chance``; the answers' statuses."""
        waiting, self.webhooks = self.webhooks * copies, []
        if chance is not None:
            chance.shuffle(waiting)
        return [post(payload.encode(), self.signature(payload, secret)) for payload, secret in waiting]

    def signature(self, payload: str, secret: str) -> str:
        """The header with which Stripe signs now."""
        return stripe.WebhookSignature.generate_signature_header(payload, secret, self.now_s())

    def _tell(self, type: str, thing: Object) -> None:
        event = {
            "id": self.account.new_id("evt"), "object": "event", "type": type, "created": self.now_s(), "api_version": API_VERSION,
            "livemode": False, "pending_webhooks": 1, "data": {"object": _public(thing)}, "request": {"id": None, "idempotency_key": None},
        }  # fmt: skip
        self.webhooks.append((json.dumps(event), self.secret))

    def _report(self, type: str, meter: str | None, reason: Object) -> None:
        moment = datetime.fromtimestamp(self.now_s(), UTC).isoformat().replace("+00:00", "Z")
        thin: Object = {
            "id": self.account.new_id("evt_test"), "object": "v2.core.event", "type": type, "created": moment, "livemode": False,
            "context": None, "reason": None,
        }  # fmt: skip
        if meter is not None:
            thin["related_object"] = {"id": meter, "type": "billing.meter", "url": f"/v1/billing/meters/{meter}"}
        summary = f"There are {reason['error_count']} invalid events"
        data = {"reason": reason, "developer_message_summary": summary, "validation_start": moment, "validation_end": moment}
        self._reports[thin["id"]] = {**thin, "data": data}
        self.webhooks.append((json.dumps(thin), self.thin_secret))

    def serve(self, method: str, target: str, headers: Mapping[str, str], body: str) -> tuple[int, dict[str, str], bytes] | None:
        """An HTTP request: status, headers and body; None where the connection is to end without an answer."""
        url = urlsplit(target)
        call = Call(method, url.path, headers.get("Idempotency-Key"), decoded(body if method == "POST" else url.query))
        try:
            return self.answer(call, headers.get("Authorization", ""), headers.get("Stripe-Version", ""))
        except Exception as error:
            self.shape_faults.append(f"the emulator failed at {call.method} {call.path}: {error!r}")
            return None

    def answer(self, call: Call, authorization: str, version: str) -> tuple[int, dict[str, str], bytes] | None:
        """Status, headers and body; None where the connection is to end without an answer."""
        self.calls.append(call)
        if authorization != f"Bearer {self.api_key}":
            return _failed(401, f"Invalid API Key provided: {authorization.removeprefix('Bearer ')}")
        if version != API_VERSION:
            return _failed(400, f"Not the pinned version: {version}")
        fault = self.faults.take(f"{call.method} {call.path}")
        early = _refused_early(fault)
        if early is not None or (fault is not None and fault.kind == "lost_before"):
            return early
        status, headers, body = self._once(call, fault)
        return None if fault is not None and fault.kind == "lost_after" else (status, headers, body)

    def _once(self, call: Call, fault: Fault | None) -> tuple[int, dict[str, str], bytes]:
        """Idempotency: the first answer of a key is every answer of it for a day."""
        if call.method != "POST" or call.key is None:
            status, body, _ = self._run(call)
            return status, {}, body
        with self.account.lock:
            saved = self._saved.get(call.key)
            if saved is not None and self.now_s() - saved.at_s < KEYS_KEPT_SECONDS:
                if saved.under_way:
                    return _failed(409, "There is currently another in-progress request using this key.", "idempotency_key_in_use")
                if (saved.call.path, saved.call.params) != (call.path, call.params):
                    return _failed(
                        400, "Keys for idempotent requests can only be used with the same parameters.", None, "idempotency_error"
                    )
                return saved.status, {"Idempotent-Replayed": "true"}, saved.body
            saved = self._saved[call.key] = _Saved(call, self.now_s())
        kind = None if fault is None else fault.kind
        began = True
        if kind == "error_before":
            saved.status, _, saved.body = _failed(500, "An unknown error occurred", None, "api_error")
        else:
            saved.status, saved.body, began = self._run(call)
            if kind == "error_after":
                saved.status, _, saved.body = _failed(500, "An unknown error occurred", None, "api_error")
        saved.under_way = False
        if not began:
            del self._saved[call.key]
        return saved.status, {}, saved.body

    def _run(self, call: Call) -> tuple[int, bytes, bool]:
        """Status, body, and whether the endpoint began: parameters that are refused leave nothing under the key."""
        for pattern, hint, work in self._routes:
            found = pattern.fullmatch(f"{call.method} {call.path}")
            if found is None:
                continue
            try:
                params = call.params if hint is None else taken(call.params, hint)
            except BadParameter as error:
                return *_failed(400, str(error), "parameter_unknown")[::2], False  # type: ignore[return-value]
            try:
                with self.account.lock:
                    answer = work(params, found.groups())
                    self.shape_faults += faults_of_answer(_public(answer), f"{call.method} {call.path}")
                    return 200, json.dumps(_public(answer)).encode(), True
            except Refused as error:
                return error.status, json.dumps({"error": error.error}).encode(), True
        self.shape_faults.append(f"no route for {call.method} {call.path}")
        return 404, _failed(404, "Unrecognized request URL")[2], False

    def _table(self) -> list[tuple[str, str, Work]]:
        a, m = self.account, self.meters
        one = r"([^/]+)"
        return [
            ("POST /v1/customers", "CustomerCreateParams", lambda p, _: a.create_customer(p)),
            (f"POST /v1/customers/{one}", "CustomerUpdateParams", lambda p, g: a.update_customer(g[0], p)),
            (f"GET /v1/customers/{one}", "", lambda p, g: a.get("customer", g[0])),
            (f"DELETE /v1/customers/{one}", "", lambda p, g: a.delete_customer(g[0])),
            ("GET /v1/customers", "CustomerListParams", lambda p, _: page(a.of("customer", email=p.get("email")), p, "/v1/customers")),
            ("POST /v1/invoices", "InvoiceCreateParams", lambda p, _: a.create_invoice(p)),
            (f"GET /v1/invoices/{one}", "", lambda p, g: a.get("invoice", g[0])),
            ("GET /v1/invoices", "InvoiceListParams", lambda p, _: page(a.of("invoice", customer=p.get("customer")), p, "/v1/invoices")),
            (f"POST /v1/invoices/{one}/finalize", "InvoiceFinalizeInvoiceParams", lambda p, g: a.finalise(g[0], p)),
            (f"POST /v1/invoices/{one}/pay", "InvoicePayParams", lambda p, g: a.pay(g[0])),
            (f"POST /v1/invoices/{one}/void", "InvoiceVoidInvoiceParams", lambda p, g: a.void(g[0])),
            ("POST /v1/invoiceitems", "InvoiceItemCreateParams", lambda p, _: a.create_item(p)),
            (
                "GET /v1/invoiceitems", "InvoiceItemListParams",
                lambda p, _: page(a.of("invoiceitem", customer=p.get("customer"), invoice=p.get("invoice")), p, "/v1/invoiceitems"),
            ),
            ("POST /v1/credit_notes", "CreditNoteCreateParams", lambda p, _: a.create_credit_note(p)),
            (f"GET /v1/credit_notes/{one}", "", lambda p, g: a.get("credit_note", g[0])),
            (f"POST /v1/credit_notes/{one}/void", "CreditNoteVoidCreditNoteParams", lambda p, g: a.void_credit_note(g[0])),
            (
                "GET /v1/credit_notes", "CreditNoteListParams",
                lambda p, _: page(a.of("credit_note", customer=p.get("customer"), invoice=p.get("invoice")), p, "/v1/credit_notes"),
            ),
            ("POST /v1/subscriptions", "SubscriptionCreateParams", lambda p, _: a.create_subscription(p)),
            (
                "GET /v1/subscriptions", "SubscriptionListParams",
                lambda p, _: page(a.of("subscription", customer=p.get("customer"), _price=p.get("price")), p, "/v1/subscriptions"),
            ),
            ("POST /v1/billing/meters", "billing.MeterCreateParams", lambda p, _: m.create_meter(p)),
            ("GET /v1/billing/meters", "billing.MeterListParams", lambda p, _: page(a.of("billing.meter"), p, "/v1/billing/meters")),
            (f"POST /v1/billing/meters/{one}/deactivate", "billing.MeterDeactivateParams", lambda p, g: m.set_status(g[0], "inactive")),
            (f"POST /v1/billing/meters/{one}/reactivate", "billing.MeterReactivateParams", lambda p, g: m.set_status(g[0], "active")),
            (
                f"GET /v1/billing/meters/{one}/event_summaries", "billing.MeterEventSummaryListParams",
                lambda p, g: page(m.summaries(g[0], p), p, f"/v1/billing/meters/{g[0]}/event_summaries"),
            ),
            ("POST /v1/billing/meter_events", "billing.MeterEventCreateParams", lambda p, _: m.take(p)),
            ("POST /v1/billing/credit_grants", "billing.CreditGrantCreateParams", lambda p, _: m.create_grant(p)),
            (
                "GET /v1/billing/credit_grants", "billing.CreditGrantListParams",
                lambda p, _: page(a.of("billing.credit_grant", customer=p.get("customer")), p, "/v1/billing/credit_grants"),
            ),
            ("POST /v1/billing_portal/sessions", "billing_portal.SessionCreateParams", lambda p, _: self._portal(p)),
            ("POST /v1/test_helpers/test_clocks", "test_helpers.TestClockCreateParams", lambda p, _: self._create_clock(p)),
            (f"POST /v1/test_helpers/test_clocks/{one}/advance", "test_helpers.TestClockAdvanceParams",
             lambda p, g: self._advance(g[0], p)),
            ("GET /v2/core/events", "", lambda p, _: self._list_reports(p)),
            (f"GET /v2/core/events/{one}", "", lambda p, g: self._report_of(g[0])),
        ]  # fmt: skip

    def _portal(self, params: Object) -> Object:
        id = self.account.new_id("bps")
        return {
            "id": id, "object": "billing_portal.session", "created": self.now_s(), "livemode": False, "configuration": "bpc_emulator",
            "customer": self.account.live_customer(params["customer"])["id"], "return_url": params.get("return_url"),
            "url": f"https://billing.stripe.com/p/session/{id}",
        }  # fmt: skip

    def _create_clock(self, params: Object) -> Object:
        self.clock.now_ns = params["frozen_time"] * 10**9
        now = self.now_s()
        return self.account.keep(
            {
                "id": self.account.new_id("clock"), "object": "test_helpers.test_clock", "created": now, "deletes_after": now + 30 * 86_400,
                "frozen_time": now, "livemode": False, "name": params.get("name"), "status": "ready", "status_details": {},
            }
        )  # fmt: skip

    def _advance(self, id: str, params: Object) -> Object:
        clock = self.account.get("test_helpers.test_clock", id)
        if params["frozen_time"] <= clock["frozen_time"]:
            raise Refused("A test clock only goes ahead.")
        self.clock.now_ns = params["frozen_time"] * 10**9
        self.meters.process()
        return clock | {"frozen_time": params["frozen_time"]}

    def _report_of(self, id: str) -> Object:
        for report in self._kept_reports():
            if report["id"] == id:
                return report
        raise Refused(f"No such event: '{id}'", "resource_missing", 404)

    def _list_reports(self, params: Object) -> Object:
        """As the API of version 2 pages a list: the address of the next page says all that there is to say."""
        if "page" in params:
            rows, size = self._pages.pop(params["page"])
        else:
            asked = taken(params, EventListParams)
            since = datetime.fromisoformat(asked.get("created", {}).get("gte", "1970-01-01T00:00:00Z"))
            rows, size = [
                report
                for report in self._kept_reports()
                if report["type"] in asked.get("types", [report["type"]]) and datetime.fromisoformat(report["created"]) >= since
            ], asked.get("limit", EVENTS_LISTED)
        following = None
        if len(rows) > size:
            following = self.account.new_id("page")
            self._pages[following] = rows[size:], size
        url = None if following is None else f"/v2/core/events?page={following}"
        return {"data": rows[:size], "next_page_url": url, "previous_page_url": None}

    def _kept_reports(self) -> list[Object]:
        """The latest first."""
        since = datetime.fromtimestamp(self.now_s(), UTC) - EVENTS_KEPT
        return [report for report in reversed(self._reports.values()) if datetime.fromisoformat(report["created"]) >= since]


def _public(thing: Any) -> Any:
    if isinstance(thing, dict):
        return {name: _public(value) for name, value in thing.items() if not name.startswith("_")}
    return [_public(item) for item in thing] if isinstance(thing, list) else thing


def _refused_early(fault: Fault | None) -> tuple[int, dict[str, str], bytes] | None:
    """What is refused before it is looked at, and so is not kept under the key."""
    if fault is None:
        return None
    if fault.kind == "busy":
        status, headers, body = _failed(429, "Too many requests hit the API too quickly.", "rate_limit")
        wait = {} if fault.retry_after_seconds is None else {"Retry-After": str(fault.retry_after_seconds)}
        return status, headers | wait, body
    if fault.kind == "conflict":
        return _failed(409, "This object cannot be accessed right now because another request is using it.", "lock_timeout")
    return _failed(401, "Expired API Key provided: sk_test_emulatorEmulator") if fault.kind == "denied" else None


def _failed(status: int, message: str, code: str | None = None, type: str = "invalid_request_error") -> tuple[int, dict[str, str], bytes]:
    return status, {}, json.dumps({"error": {"type": type, "message": message, "code": code}}).encode()


class _Handler(BaseHTTPRequestHandler):
    owner: Emulator
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        answer = self.owner.serve(self.command, self.path, self.headers, body)
        if answer is None:
            self.close_connection = True
            return
        status, headers, content = answer
        self.send_response(status)
        for name, value in {
            **headers,
            "Content-Type": "application/json",
            "Content-Length": str(len(content)),
            "Request-Id": "req_emu",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _serve

    def log_message(self, format: str, *args: object) -> None:
        """Tests print what matters themselves."""
