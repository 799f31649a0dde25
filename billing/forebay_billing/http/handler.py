"""The base of all endpoints: who asks, what is answered, and what a refusal looks like; and what endpoints need of the service."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from forebay_service.identity import Authenticator, Identity, IdentityRefused, IdentityUnavailable
from forebay_service.preconditions import InvalidPrecondition, Precondition, precondition_in
from pydantic import BaseModel
from tornado.web import HTTPError, MissingArgumentError, RequestHandler, stream_request_body

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
from forebay_billing.http.bodies import body_of, query_of
from forebay_billing.http.stand_ins import Aside
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.idempotency import Key
from forebay_billing.ledger.writer import Share
from forebay_billing.metrics import Metrics
from forebay_billing.model.types import UsageRecord
from forebay_billing.settings import Settings
from forebay_billing.tables.schema import KEY_CHARS_MAX
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
        """An argument of the path or of the query. Raises InvalidRequest for what not every database can look for."""
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
        self.answer(error.row)

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


class UnknownHandler(BillingHandler):
    """Every other path. It refuses after the body, not in ``prepare``: an answer before the body would cost the connection."""

    async def get(self) -> None:
        raise UnknownPath(f"There is no {self.request.path!r} here.")

    head = post = put = patch = delete = options = get
