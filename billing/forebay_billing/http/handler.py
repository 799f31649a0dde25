"""The endpoints of ARCHITECTURE.md's billing table, each a few lines: who, what, answer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from forebay_hub.identity import Authenticator, Identity, IdentityRefused, IdentityUnavailable
from forebay_hub.preconditions import InvalidPrecondition, Precondition, precondition_in
from pydantic import BaseModel
from tornado.web import HTTPError, MissingArgumentError, RequestHandler, stream_request_body

from forebay_billing.documents import usage
from forebay_billing.errors import (
    BillingError,
    Forbidden,
    InvalidRequest,
    MethodRefused,
    StoreUnavailable,
    TooLarge,
    Unauthenticated,
    UnknownPath,
)
from forebay_billing.http import stand_ins
from forebay_billing.http.bodies import (
    CorrectionBody,
    ForecastQuery,
    NoQuery,
    StatementQuery,
    SummaryQuery,
    UsageQuery,
    body_of,
    query_of,
)
from forebay_billing.http.stand_ins import Aside
from forebay_billing.ledger.access import Scope, check_may_change_books, check_may_post_usage, check_may_scrape, usage_scope
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.idempotency import Key
from forebay_billing.ledger.postings import REVENUE
from forebay_billing.ledger.writer import Share
from forebay_billing.metrics import Metrics, Situation
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.reads import usage as usage_reads
from forebay_billing.reads.summaries import KEYS, By
from forebay_billing.reads.usage import Window
from forebay_billing.settings import Settings
from forebay_billing.tables.schema import KEY_CHARS_MAX
from forebay_billing.writes import alerts
from forebay_billing.writes import usage as usage_writes
from forebay_billing.writes.store import Store

if TYPE_CHECKING:
    from forebay_billing.payments.service import Payments
    from forebay_billing.tasks.budget_watch import BudgetWatch

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 8 * 1024 * 1024
"""Longest body that is read; a full batch of ordinary records has less than a tenth of it."""
FUTURE_NS_MAX = 3600 * 10**9
"""A record may end this far in the future, because clocks differ; prices further ahead may still change."""
CAUSES_REMEMBERED_MAX = 10_000
_LOOPBACK = ("127.0.0.1", "::1")
_BY: dict[str, By] = {key: key for key in KEYS}

B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """What handlers work with."""

    store: Store
    authenticator: Authenticator
    metrics: Metrics
    clock_ns: Callable[[], int]
    settings: Settings
    desk: Payments | None
    """Payments, where they are on."""
    budgets: BudgetWatch
    told_usage: set[str] = field(default_factory=set)
    """What was refused or put aside lately, and why: it is in the audit."""

    def currencies(self, books: Books) -> Callable[[str], str]:
        """What each tenant is billed in: by its profile, else by the settings."""
        return lambda tenant: books.currency_of(tenant, self.settings.currency_of(tenant))

    def post_usage(self, books: Books, batches: Sequence[Sequence[UsageRecord]]) -> list[usage_writes.Accepted]:
        """See :func:`~forebay_billing.writes.usage.post_batches`."""
        return usage_writes.post_batches(books, batches, self.currencies(books), self.clock_ns)


@dataclass(frozen=True)
class Attempt:
    """What somebody wants to change, for the audit, should it be refused. ``asked`` goes into JSON."""

    action: str
    subject: str
    asked: Mapping[str, Any]


@stream_request_body
class BillingHandler(RequestHandler):
    """Bodies within bounds, callers by token, errors as ``{code, message}``, every request counted."""

    endpoint: ClassVar[str] = "unknown"

    def initialize(self, context: Context) -> None:
        self.context = context
        self._body = bytearray()
        self._too_large = False
        self._failure_code = "internal"
        self._reads_body = False

    def prepare(self) -> None:
        self._reads_body = True

    def data_received(self, chunk: bytes) -> None:
        self._too_large = self._too_large or len(self._body) + len(chunk) > BODY_BYTES_MAX
        if not self._too_large:
            self._body += chunk

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")

    def check_xsrf_cookie(self) -> None:
        """Callers present a token, never a cookie, so no other site can make a browser call."""

    async def caller(self) -> Identity:
        """Who sent the request. Raises Unauthenticated, StoreUnavailable where the hub cannot be asked."""
        scheme, _, token = self.request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() not in ("token", "bearer") or not token.strip():
            raise Unauthenticated("Send the header 'Authorization: token …' with a JupyterHub token.")
        try:
            identity = await self.context.authenticator.identify(token.strip())
        except IdentityUnavailable as error:
            raise StoreUnavailable(str(error)) from None
        except IdentityRefused as error:
            raise Forbidden(str(error)) from None
        if identity is None:
            raise Unauthenticated("The token is unknown, expired or revoked; get a new one from JupyterHub.")
        return identity

    def body(self, model: type[B]) -> B:
        """The JSON body. Raises InvalidRequest, TooLarge."""
        return body_of(model, self.body_bytes())

    def body_bytes(self) -> bytes:
        """The body as it came. Raises TooLarge."""
        if self._too_large:
            raise TooLarge(f"The body is longer than {BODY_BYTES_MAX} bytes; send fewer records at once.")
        return bytes(self._body)

    def text(self, bytes_max: int) -> str:
        """The body as it is. Raises InvalidRequest, TooLarge."""
        if self._too_large or len(self._body) > bytes_max:
            raise TooLarge(f"The body is longer than {bytes_max} bytes.")
        try:
            return self._body.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidRequest("body: this is not UTF-8.") from None

    async def change(
        self, identity: Identity, work: Callable[[Books], T], document: Callable[[T], Any], attempt: Attempt | None = None,
        share: Share | None = None,
    ) -> T | None:  # fmt: skip
        """Does ``work`` and answers with the ``document`` of its result. The one way in which a request changes anything.

        With an ``Idempotency-Key`` it happens once: a repetition gets the same answer, and None is returned. A refusal of what is
        told as an ``attempt`` leaves a row in the audit, which is all that it leaves. Raises KeyReused.
        """
        try:
            done = await self.context.store.change(self._idempotency_key(identity), work, document, share)
        except BillingError as refusal:
            if attempt is not None:
                await self.leave_in_audit(identity, attempt, refusal)
            raise
        self._answer_json(done.answer)
        return done.result

    async def leave_in_audit(self, identity: Identity, attempt: Attempt, refusal: BillingError) -> None:
        """Writes what was refused to whom, and why; a fault of ours is no refusal."""
        if refusal.status >= 500:
            return
        after = {"asked": attempt.asked, "code": refusal.code, "message": str(refusal)}
        await self._write_down(identity, f"{attempt.action}.refused", attempt.subject, None, after)

    async def _write_down(self, identity: Identity, action: str, subject: str, before: Any, after: Any) -> None:
        now_ns = self.context.clock_ns()
        row = self.context.store.submit(lambda books: books.append_audit(now_ns, identity.name, action, subject, before, after))
        await asyncio.wrap_future(row)

    async def leave_once(self, identity: Identity, attempt: Attempt, refusal: BillingError) -> None:
        """The pool sends again what was refused, for as long as it takes: one row for each cause is enough."""
        if self._is_news(f"{attempt.subject} {refusal}"):
            await self.leave_in_audit(identity, attempt, refusal)

    def _is_news(self, cause: str) -> bool:
        before = self.context.told_usage
        news = cause not in before
        if news:
            if len(before) >= CAUSES_REMEMBERED_MAX:
                before.clear()
            before.add(cause)
        return news

    async def put_aside(self, identity: Identity, asides: Sequence[Aside]) -> None:
        """Counts rows that did not say what can be kept, and leaves one row of each in the audit, before they count as heard."""
        for aside in asides:
            self.context.metrics.set_aside(aside.kind, "metered" if aside.fault is None else "refused")
            came = {"came": aside.came, "stands": aside.stands}
            if aside.fault is not None:
                await self.leave_once(identity, Attempt(f"{aside.kind}.row", aside.subject, came), InvalidRequest(aside.fault))
            elif self._is_news(f"{aside.kind} {aside.subject} {aside.came}"):
                log.warning("action=row.stands_in kind=%s subject=%s fields=%s", aside.kind, aside.subject, ",".join(aside.came))
                await self._write_down(identity, f"{aside.kind}.stand_in", aside.subject, aside.came, aside.stands)

    def _idempotency_key(self, identity: Identity) -> Key | None:
        key = self.request.headers.get("Idempotency-Key")
        if key is None:
            return None
        if not (0 < len(key) <= KEY_CHARS_MAX and key.isascii() and key.isprintable()):
            raise InvalidRequest(f"Idempotency-Key: a key has 1 to {KEY_CHARS_MAX} printable ASCII characters.")
        request = f"{self.request.method} {self.request.uri}\n".encode() + self._body
        return Key(identity.name, key, hashlib.sha256(request).digest())

    def expected(self) -> Precondition:
        """What ``If-Match`` and ``If-None-Match`` ask for. Raises InvalidRequest."""
        try:
            return precondition_in(self.request.headers)
        except InvalidPrecondition as error:
            raise InvalidRequest(str(error)) from None

    def decode_argument(self, value: bytes, name: str | None = None) -> str:
        """Of the path, too. Raises InvalidRequest for what not every database can look for."""
        text = super().decode_argument(value, name)
        if "\0" in text:
            raise InvalidRequest(f"{name or 'path'}: there is a NUL character in it.")
        return text

    def query(self, model: type[B]) -> B:
        """The query arguments; the last of a repeated one counts. Raises InvalidRequest."""
        try:
            return query_of(model, {name: values[-1].decode() for name, values in self.request.query_arguments.items()})
        except UnicodeDecodeError:
            raise InvalidRequest("query: the arguments are not UTF-8.") from None

    def answer(self, value: Any) -> None:
        """Finishes with JSON."""
        self._answer_json(json.dumps(value))

    def _answer_json(self, text: str) -> None:
        self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(text)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, BillingError | HTTPError):
            log.error("action=request.failed endpoint=%s method=%s", self.endpoint, self.request.method, exc_info=(typ, value, tb))

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, StoreUnavailable):
            self.context.metrics.unavailable.inc()
        super().send_error(error.status if isinstance(error, BillingError) else status_code, **kwargs)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = _as_billing_error(status_code, kwargs.get("exc_info", (None, None, None))[1], self.request.path)
        self._failure_code = error.code
        if not self._reads_body:
            self.set_header("Connection", "close")  # which Tornado does where it answers before the body
        if error.status == 503:
            self.set_header("Retry-After", "1")
        if error.status == 401:
            self.set_header("WWW-Authenticate", "token")
        self.answer({"code": error.code, "message": str(error)})

    def on_finish(self) -> None:
        status = self.get_status()
        self.context.metrics.answered(self.endpoint, self.request.method, status, time.time() - self.request._start_time)
        if status >= 400:
            log.warning(
                "action=request.refused endpoint=%s method=%s status=%d code=%s",
                self.endpoint, self.request.method, status, self._failure_code,
            )  # fmt: skip


def _as_billing_error(status: int, error: object, path: str) -> BillingError:
    if isinstance(error, BillingError):
        return error
    if status == 405:
        return MethodRefused(f"{path} does not answer this method.")
    if status < 500 and isinstance(error, MissingArgumentError | HTTPError):
        return InvalidRequest(f"The request is not understood: {error.log_message or error.reason or status}.")
    return BillingError("The billing service failed; the operator finds the cause in its log.")


class UsageHandler(BillingHandler):
    """``POST`` and ``GET api/usage``."""

    endpoint = "usage"

    async def post(self) -> None:
        identity = await self.caller()
        check_may_post_usage(identity)
        self.query(NoQuery)
        context, attempt = self.context, Attempt("usage.post", "usage", {"bytes": len(self._body)})
        try:
            records, asides = stand_ins.usage_of(self.body_bytes())
            names = ", ".join(f"{record.source}/{record.id}" for record in records[:1]) + ", …" * (len(records) > 1)
            attempt = Attempt("usage.post", names or "usage", {"records": len(records)})
            self._check_clock(records)
            await self.put_aside(identity, asides)
            done = await self.change(
                identity,
                lambda books: context.post_usage(books, [records])[0],
                usage.accepted_json,
                share=Share(context.post_usage, records),
            )
        except BillingError as refusal:
            await self.leave_once(identity, attempt, refusal)
            raise
        if done is not None:
            context.metrics.accepted(done.accepted, done.duplicates, done.costs)
            log.info("action=usage.post accepted=%d duplicates=%d", done.accepted, done.duplicates)

    def _check_clock(self, records: Sequence[UsageRecord]) -> None:
        latest_ns = self.context.clock_ns() + FUTURE_NS_MAX
        for record in records:
            if record.started_at_ns + record.duration_ns > latest_ns:
                raise InvalidRequest(f"Usage {record.source}/{record.id} ends more than an hour in the future; compare the clocks.")

    async def get(self) -> None:
        identity = await self.caller()
        query = self.query(UsageQuery)
        scope = usage_scope(identity, query.tenant, query.user)
        window = Window(query.since_ns, query.until_ns, query.notebook, query.cell, query.cell_id)
        page = await self.context.store.usage_page(scope, window, query.limit, query.after)
        self.answer(usage.page_json(page))


class CorrectionsHandler(BillingHandler):
    """``POST api/corrections``."""

    endpoint = "corrections"

    async def post(self) -> None:
        identity = await self.caller()
        check_may_change_books(identity)
        self.query(NoQuery)
        body = self.body(CorrectionBody)
        transaction = await self.change(
            identity,
            lambda books: usage_writes.correct(books, body.source, body.id, body.reason, self.context.clock_ns, identity.name),
            lambda transaction: {"source": body.source, "id": body.id, "transaction": transaction},
        )
        if transaction is not None:
            log.info("action=usage.correct who=%s source=%s id=%s transaction=%d", identity.name, body.source, body.id, transaction)


class CheckHandler(BillingHandler):
    """``GET api/check``."""

    endpoint = "check"

    async def get(self) -> None:
        check_may_scrape(await self.caller())
        self.query(NoQuery)
        self.answer({"differences": [usage.difference_json(found) for found in await self.context.store.differences()]})


class SummaryHandler(BillingHandler):
    """``GET api/summary``."""

    endpoint = "summary"

    async def get(self) -> None:
        identity = await self.caller()
        query = self.query(SummaryQuery)
        scope = usage_scope(identity, query.tenant, query.user)
        window = Window(query.since_ns, query.until_ns, query.notebook)
        rows = await self.context.store.summary(scope, window, _keys(query.by), query.tzinfo)
        self.answer([usage.summary_json(row) for row in rows])


class ForecastHandler(BillingHandler):
    """``GET api/forecast``."""

    endpoint = "forecast"

    async def get(self) -> None:
        identity = await self.caller()
        query = self.query(ForecastQuery)
        found = await self.context.store.outlook(usage_scope(identity, query.tenant, query.user))
        self.answer([usage.outlook_json(one) for one in found])


def _keys(by: str) -> list[By]:
    keys = by.split(",")
    if len(set(keys)) != len(keys) or not all(key in _BY for key in keys):
        raise InvalidRequest(f"by: {by!r} is not a list of {', '.join(KEYS)}, each at most once, separated by commas.")
    return [_BY[key] for key in keys]


class StatementHandler(BillingHandler):
    """``GET api/statement``."""

    endpoint = "statement"

    async def get(self) -> None:
        identity = await self.caller()
        query = self.query(StatementQuery)
        scope = usage_scope(identity, query.tenant, query.user)
        if scope.tenant is None:
            raise InvalidRequest("tenant: name the tenant whose statement you want.")
        month = Month.parse(query.month)
        if scope.tenant != identity.tenant:
            await self.context.store.check_tenant(scope.tenant)
        statement = await self.context.store.statement(scope.tenant, scope.user, month)
        if query.format == "json":
            self.answer(usage.statement_json(statement))
        elif query.format == "html":
            self.set_header("Content-Type", "text/html; charset=utf-8")
            self.set_header("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'")
            self.finish(usage.statement_html(statement))
        else:
            self.set_header("Content-Type", "text/csv; charset=utf-8")
            self.set_header("Content-Disposition", f'attachment; filename="statement-{month}.csv"')
            self.finish(usage.statement_csv(statement))


class MetricsHandler(BillingHandler):
    """``GET metrics``: free on the loopback interface, with a token through a proxy or from elsewhere."""

    endpoint = "metrics"

    async def get(self) -> None:
        self.query(NoQuery)
        if self.request.remote_ip not in _LOOPBACK or "X-Forwarded-For" in self.request.headers:
            check_may_scrape(await self.caller())
        self.context.metrics.situation = await self._situation()
        self.set_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.finish(self.context.metrics.text())

    async def _situation(self) -> Situation | None:
        """None where the database does not say: what is counted is told all the same."""
        context = self.context
        month = Month.of(context.clock_ns())
        try:
            standings = await context.budgets.standings(Scope(None, None))
            revenue, deliveries = await context.store.read(
                lambda connection: (usage_reads.posted(connection, REVENUE, month), alerts.unsettled(connection))
            )
        except BillingError as error:
            log.warning("action=metrics.incomplete error=%s", error)
            return None
        return Situation(tuple(standings), {currency: -grains for currency, grains in revenue.items()}, deliveries)


class HealthHandler(BillingHandler):
    """``GET health``: 200 when the database answers."""

    endpoint = "health"

    async def get(self) -> None:
        self.query(NoQuery)
        await self.context.store.check()
        self.answer({"status": "ready"})


class UnknownHandler(BillingHandler):
    """Every other path. It refuses after the body, not in ``prepare``: an answer before the body would cost the connection."""

    async def get(self) -> None:
        raise UnknownPath(f"There is no {self.request.path!r} here.")

    head = post = put = patch = delete = options = get
