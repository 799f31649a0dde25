"""The base of all endpoints: who asks, what is answered, and what a refusal looks like; and what endpoints need of the service."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from forebay_service.faults import fault_found
from forebay_service.identity import OPERATE, SERVICE, Authenticator, Identity, IdentityRefused, IdentityUnavailable
from forebay_service.preconditions import InvalidPrecondition, Precondition, precondition_in
from pydantic import BaseModel, ValidationError
from tornado.httputil import HTTPHeaders
from tornado.web import HTTPError, RequestHandler

from forebay_pool.errors import ChangedMeanwhile, RequestRefused, StoreUnavailable
from forebay_pool.model.types import Session
from forebay_pool.settings import Settings
from forebay_pool.shell import Shell
from forebay_pool.store.audit import AuditEntry
from forebay_pool.store.database import Store
from forebay_pool.store.writer import Writer
from forebay_pool.views.rows import FlavorRow, ModelRow, QuotaRow

T = TypeVar("T")

BODY_BYTES_MAX = 4 * 2**20
"""The longest that a body within its own bounds can be is a list of tenants with every character escaped, 3 MiB."""
BODY_SECONDS_MAX = 30.0
"""A body that takes longer to arrive is waited for no more."""
IDLE_SECONDS_MAX = 180.0
"""A connection on which no whole head of a request arrives for so long is closed; longer than proxies keep one that is idle."""

log = logging.getLogger(__name__)


def token_in(headers: HTTPHeaders) -> str:
    """The token of ``Authorization: token …``; empty if there is none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() in ("token", "bearer") else ""


@dataclass(frozen=True)
class Context:
    """What endpoints and links need of the service."""

    settings: Settings
    authenticator: Authenticator
    shell: Shell
    store: Store
    writer: Writer
    epoch: int
    """The epoch of this pool's leadership."""
    choices: dict[tuple[str, str], str]
    """The flavor that a user of a tenant chose."""
    refresh_prices: Callable[[], Awaitable[None]]
    """Asks billing for prices; where it does not answer, those known stay."""
    count_outbox: Callable[[], Awaitable[None]]
    """Looks at what the outbox holds, for the metrics."""

    async def write(self, job: Callable[[], T]) -> T:
        """Makes a write on the writer's thread. Raises StoreUnavailable."""
        return await asyncio.wrap_future(self.writer.call(job))


class Api(RequestHandler):
    """Base of all endpoints: who asks, and what a refusal looks like."""

    def initialize(self, context: Context) -> None:
        self.context = context
        self.shell = context.shell

    async def bearer(self, *scopes: str) -> Identity:
        """Who asks; must hold one of ``scopes``, if any are named. Raises RequestRefused."""
        token = token_in(self.request.headers)
        if not token:
            raise RequestRefused(401, "unauthorized", "Send a token in the header `Authorization: token …`.")
        try:
            identity = await self.context.authenticator.identify(token)
        except IdentityUnavailable as error:
            raise RequestRefused(503, "identity_unavailable", str(error)) from None
        except IdentityRefused as error:
            raise RequestRefused(403, "forbidden", str(error)) from None
        if identity is None:
            raise RequestRefused(401, "unauthorized", "The token is unknown, expired or revoked; get a new one.")
        if scopes and not any(identity.may(scope) for scope in scopes):
            raise RequestRefused(403, "forbidden", f"{identity.name} needs the scope {' or '.join(scopes)}.")
        return identity

    async def append_audit(self, identity: Identity, action: str, session: Session, after: dict[str, Any]) -> None:
        """Before it is done: what an operator does to somebody's session. Raises StoreUnavailable."""
        before = {"tenant": session.tenant, "user": session.user, "flavor": session.flavor, "state": session.state}
        await self.context.write(lambda: self.context.store.append_audit(AuditEntry(identity.name, action, session.id, before, after)))

    def write_json(self, value: object) -> None:
        self.set_header("Content-Type", "application/json")
        self.write(json.dumps(value))

    def write_tagged(self, row: FlavorRow | ModelRow | QuotaRow) -> None:
        """A row that is read alone, with the tag of what is set in it."""
        self.set_header("ETag", row["etag"])
        self.write_json(row)

    def body_as(self, model: Callable[[Any], BaseModel]) -> Any:
        try:
            return model(self.request.body)
        except ValidationError as error:
            found = fault_found(error.errors(include_input=False, include_url=False)[0])
            raise RequestRefused(400, "bad_request", f"{_first_fault(error)}.", found) from None

    def expected(self) -> Precondition:
        """What ``If-Match`` and ``If-None-Match`` ask for. Raises RequestRefused."""
        try:
            return precondition_in(self.request.headers)
        except InvalidPrecondition as error:
            raise RequestRefused(400, "bad_request", str(error)) from None

    def query_as(self, model: Callable[[Any], BaseModel]) -> Any:
        """What stands behind the question mark. Raises RequestRefused."""
        try:
            return model({name: values[-1].decode("utf-8") for name, values in self.request.query_arguments.items()})
        except (ValidationError, UnicodeDecodeError) as error:
            raise RequestRefused(400, "bad_request", f"The query is no good: {_first_fault(error)}.") from None

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, (RequestRefused, ChangedMeanwhile, StoreUnavailable, HTTPError)):
            log.error("%s %s", self.request.method, self.request.path, exc_info=(typ, value, tb), extra={"action": "request_failed"})

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = kwargs.get("exc_info", (None, None, None))[1]
        code, message = "error", self._reason
        if isinstance(error, RequestRefused):
            status_code, code, message = error.status, error.code, error.message
        elif isinstance(error, ChangedMeanwhile):
            status_code, code, message = 412, "precondition_failed", str(error)
        elif isinstance(error, StoreUnavailable):
            status_code, code, message = 503, "store_unavailable", str(error)
        elif status_code == 400:
            code = "bad_request"
            message = "The address of this request cannot be read: write what is not ASCII in it as UTF-8, escaped with %."
        elif status_code == 404:
            code, message = "not_found", f"There is nothing at {self.request.path}."
        elif status_code == 405:
            code, message = "bad_method", f"{self.request.path} does not take {self.request.method}."
        elif status_code >= 500:
            code, message = "internal", "The pool failed; its log says more."
        self.set_status(status_code)
        self.set_header("Content-Type", "application/json")
        fault = error.fault if isinstance(error, RequestRefused) else None
        self.finish(json.dumps({"code": code, "message": message} | ({} if fault is None else {"fault": fault.row})))


def _first_fault(error: ValidationError | UnicodeDecodeError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "body"
    return f"{where}: {first['msg']}"


class NotFound(Api):
    """Everything that is no endpoint."""

    def prepare(self) -> None:
        raise RequestRefused(404, "not_found", f"There is nothing at {self.request.path}.")


def sees_all(identity: Identity) -> bool:
    return identity.may(SERVICE) or identity.may(OPERATE)


def owns(identity: Identity, session: Session) -> bool:
    """Whether the session is the bearer's own: same user, and same tenant."""
    return identity.kind == "user" and session.user == identity.name and session.tenant == identity.tenant
