"""The base of all endpoints: how a request changes anything, what is left in the audit; and what endpoints need of the service."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from forebay_service.errors import RequestError, Unavailable
from forebay_service.handler import JsonHandler, NotFoundHandler
from forebay_service.identity import Authenticator, Identity

from forebay_billing.errors import InvalidRequest
from forebay_billing.http.quarantine import Quarantined
from forebay_billing.ledger.books import Books
from forebay_billing.ledger.idempotency import Key
from forebay_billing.ledger.writer import Share
from forebay_billing.metrics import Metrics
from forebay_billing.model.types import Accepted, UsageRecord
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
    leads: Callable[[], bool] = lambda: True
    """Whether this service does the periodic tasks, of several on one database."""
    told_usage: set[str] = field(default_factory=set)
    """What was refused or put aside lately, and why: it is in the audit."""

    def currencies(self, books: Books) -> Callable[[str], str]:
        """What each tenant is billed in: by its profile, else by the settings."""
        return lambda tenant: books.currency_of(tenant, self.settings.currency_of(tenant))

    def post_usage(self, books: Books, batches: Sequence[Sequence[UsageRecord]]) -> list[Accepted]:
        """See :func:`~forebay_billing.writes.usage.post_batches`."""
        return usage_writes.post_batches(books, batches, self.currencies(books), self.clock_ns)


@dataclass(frozen=True)
class Attempt:
    """What somebody wants to change, for the audit, should it be refused. ``asked`` goes into JSON."""

    action: str
    subject: str
    asked: Mapping[str, Any]


class BillingHandler(JsonHandler):
    """Changes by one way, refusals in the audit where that is asked for, every request counted."""

    service = "billing service"
    body_bytes_max = BODY_BYTES_MAX
    endpoint: ClassVar[str] = "unknown"
    context: Context

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
        except RequestError as refusal:
            if attempt is not None:
                await self.leave_in_audit(identity, attempt, refusal)
            raise
        self.write_json_text(done.answer)
        return done.result

    async def leave_in_audit(self, identity: Identity, attempt: Attempt, refusal: RequestError) -> None:
        """Writes what was refused to whom, and why; a fault of ours is no refusal."""
        if refusal.status >= 500:
            return
        after = {"asked": attempt.asked, "code": refusal.code, "message": str(refusal)}
        await self._write_down(identity, f"{attempt.action}.refused", attempt.subject, None, after)

    async def _write_down(self, identity: Identity, action: str, subject: str, before: Any, after: Any) -> None:
        now_ns = self.context.clock_ns()
        row = self.context.store.submit(lambda books: books.append_audit(now_ns, identity.name, action, subject, before, after))
        await asyncio.wrap_future(row)

    async def leave_once(self, identity: Identity, attempt: Attempt, refusal: RequestError) -> None:
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

    async def put_aside(self, identity: Identity, asides: Sequence[Quarantined]) -> None:
        """Counts rows that did not say what can be kept, and leaves one row of each in the audit, before they count as heard."""
        for aside in asides:
            self.context.metrics.set_aside(aside.kind, "metered" if aside.fault is None else "refused")
            came = {"came": aside.came, "stands": aside.stands}
            if aside.fault is not None:
                await self.leave_once(identity, Attempt(f"{aside.kind}.row", aside.subject, came), InvalidRequest(aside.fault))
            elif self._is_news(f"{aside.kind} {aside.subject} {aside.came}"):
                fields = {"action": "row.stands_in", "kind": aside.kind, "subject": aside.subject, "fields": ",".join(aside.came)}
                log.warning("a row of defaults stands in for one that came broken", extra=fields)
                await self._write_down(identity, f"{aside.kind}.stand_in", aside.subject, aside.came, aside.stands)

    def _idempotency_key(self, identity: Identity) -> Key | None:
        key = self.request.headers.get("Idempotency-Key")
        if key is None:
            return None
        if not (0 < len(key) <= KEY_CHARS_MAX and key.isascii() and key.isprintable()):
            raise InvalidRequest(f"Idempotency-Key: a key has 1 to {KEY_CHARS_MAX} printable ASCII characters.")
        request = f"{self.request.method} {self.request.uri}\n".encode() + self._body
        return Key(identity.name, key, hashlib.sha256(request).digest())

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        super().write_error(status_code, **kwargs)
        if isinstance(self.failure, Unavailable):
            self.context.metrics.unavailable.inc()

    def on_finish(self) -> None:
        status = self.get_status()
        self.context.metrics.answered(self.endpoint, self.request.method, status, time.time() - self.request._start_time)
        if status >= 400:
            fields = {
                "action": "request.refused", "endpoint": self.endpoint, "method": self.request.method, "status": status,
                "code": None if self.failure is None else self.failure.code,
            }  # fmt: skip
            level = logging.INFO if self.endpoint == "unknown" else logging.WARNING  # JupyterHub looks at a service's root every minute
            log.log(level, "a request is refused", extra=fields)


class UnknownHandler(BillingHandler, NotFoundHandler):
    """Every other path."""
