"""The pool's HTTP endpoints: ARCHITECTURE.md's table, and one clear JSON error each."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from forebay_hub.identity import COMPUTE, OPERATE, SERVICE, Authenticator, Identity, IdentityRefused, IdentityUnavailable
from forebay_hub.preconditions import InvalidPrecondition, Precondition, precondition_in
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tornado.httputil import HTTPHeaders
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler

from forebay_pool.errors import ChangedMeanwhile, RequestRefused, StoreUnavailable
from forebay_pool.model.events import FlavorSet, SessionDismissed
from forebay_pool.model.suggestions import suggestions
from forebay_pool.model.types import Flavor, Session
from forebay_pool.settings import Settings
from forebay_pool.shell import Shell
from forebay_pool.store.audit import AuditEntry
from forebay_pool.store.database import Store
from forebay_pool.store.flavors import NAME_PATTERN, FlavorBody, scale
from forebay_pool.store.writer import Writer
from forebay_pool.views.event_stream import Watcher
from forebay_pool.views.rows import FlavorRow, ModelRow, QuotaRow, device_row, flavor_row, lease_row, session_row, suggestion_row

T = TypeVar("T")

BODY_BYTES_MAX = 4 * 2**20
"""The longest that a body within its own bounds can be is a list of tenants with every character escaped, 3 MiB."""
BODY_SECONDS_MAX = 30.0
"""A body that takes longer to arrive is waited for no more."""
IDLE_SECONDS_MAX = 180.0
"""A connection on which no whole head of a request arrives for so long is closed; longer than proxies keep one that is idle."""
KEEP_ALIVE_SECONDS = 15.0
"""A silent event stream gets a comment this often, so that proxies keep it."""
LOOPBACK = ("127.0.0.1", "::1")

log = logging.getLogger(__name__)


class ChoiceBody(BaseModel):
    """What ``PUT api/choice`` takes."""

    model_config = ConfigDict(extra="forbid")

    flavor: str = Field(min_length=1, max_length=128)


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
    """Of this pool's leadership."""
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
            raise RequestRefused(400, "bad_request", f"{_first_fault(error)}.") from None

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
        self.finish(json.dumps({"code": code, "message": message}))


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


class FlavorApi(Api):
    """What both endpoints of flavors share."""

    def row(self, flavor: Flavor, identity: Identity) -> FlavorRow:
        machine, tenant = self.shell.machine, identity.tenant or ""
        return flavor_row(flavor, machine.fleet, machine.fleet.tariff.price_of(flavor.name, tenant), machine.outlook(flavor, tenant))


class Flavors(FlavorApi):
    """``GET api/flavors``."""

    async def get(self) -> None:
        identity = await self.bearer()
        await self.context.refresh_prices()
        self.write_json([self.row(flavor, identity) for flavor in self.shell.machine.fleet.flavors.values()])


class FlavorItem(FlavorApi):
    """``PUT api/flavors/{name}``."""

    async def put(self, name: str) -> None:
        identity = await self.bearer(OPERATE)
        if re.fullmatch(NAME_PATTERN, name) is None:
            raise RequestRefused(400, "bad_request", f"{name!r} is no name of a flavor: use a-z, 0-9, dot, dash, underscore, 64 at most.")
        flavor, expected = self.body_as(FlavorBody.model_validate_json).named(name), self.expected()
        await self.context.write(lambda: self.context.store.set_flavor(flavor, identity.name, expected))
        self.shell.apply(FlavorSet(flavor))
        log.info("flavor_set %s by %s", name, identity.name, extra={"action": "flavor_set", "flavor": name, "user": identity.name})
        self.write_tagged(self.row(flavor, identity))


class Suggestions(Api):
    """``GET api/suggestions``: flavors that the devices which are here could serve, and that are not there yet."""

    async def get(self) -> None:
        identity = await self.bearer(OPERATE)
        await self.context.refresh_prices()
        fleet, tenant = self.shell.machine.fleet, identity.tenant or ""
        devices = [seat.device for seat in fleet.seats.values()]
        self.write_json([suggestion_row(one, fleet, tenant) for one in suggestions(devices, fleet.flavors, scale())])


class Leases(Api):
    """``GET api/leases``."""

    async def get(self) -> None:
        await self.bearer(SERVICE, OPERATE)
        now_ns = self.shell.clock_ns()
        self.write_json([lease_row(s.lease, now_ns) for s in self.shell.machine.sessions.values() if s.lease is not None])


class Sessions(Api):
    """``GET api/sessions``."""

    async def get(self) -> None:
        identity = await self.bearer(COMPUTE, SERVICE, OPERATE)
        sessions = self.shell.machine.sessions.values()
        self.write_json([session_row(session) for session in sessions if sees_all(identity) or owns(identity, session)])


class SessionItem(Api):
    """``DELETE api/sessions/{id}``. A session of somebody else is told apart from none by operators alone."""

    async def delete(self, name: str) -> None:
        identity = await self.bearer(COMPUTE, OPERATE)
        session = self.shell.machine.sessions.get(name)
        if session is None or not (identity.may(OPERATE) or owns(identity, session)):
            raise RequestRefused(404, "no_session", "There is no such session among those you may end.")
        mine = owns(identity, session)
        if not mine:
            await self.append_audit(identity, "session.end", session, {"ended": True})
        sentence = "You ended this session." if mine else f"An operator ({identity.name}) ended this session."
        self.shell.apply(SessionDismissed(name, "released" if mine else "revoked", sentence))
        fields = {"action": "session_dismissed", "session": name, "tenant": session.tenant, "user": identity.name}
        log.info("session %s ended by %s", name, identity.name, extra=fields)
        self.set_status(204)


class Devices(Api):
    """``GET api/devices``."""

    async def get(self) -> None:
        await self.bearer(SERVICE, OPERATE)
        self.write_json([device_row(seat) for seat in self.shell.machine.fleet.seats.values()])


class Choice(Api):
    """``GET`` and ``PUT api/choice``."""

    async def prepare(self) -> None:
        self.identity = await self.bearer(COMPUTE)
        if self.identity.tenant is None:
            raise RequestRefused(403, "no_tenant", f"{self.identity.name} belongs to no tenant; ask an operator to add you to one.")
        self.key = (self.identity.tenant, self.identity.name)

    async def get(self) -> None:
        self.write_json({"flavor": self.context.choices.get(self.key, self.context.settings.default_flavor)})

    async def put(self) -> None:
        name = self.body_as(ChoiceBody.model_validate_json).flavor
        fleet = self.shell.machine.fleet
        if name not in fleet.flavors:
            raise RequestRefused(400, "unknown_flavor", f"There is no flavor {name!r}; there are {', '.join(fleet.flavors)}.")
        why_not = fleet.why_not(fleet.flavors[name])
        if why_not is not None:
            raise RequestRefused(409, "not_servable", why_not)
        await self.context.write(lambda: self.context.store.set_choice(*self.key, name))
        self.context.choices[self.key] = name
        self.write_json({"flavor": name})


class Events(Api):
    """``GET api/events``: server-sent events."""

    watcher: Watcher | None = None

    async def get(self) -> None:
        identity = await self.bearer(COMPUTE, SERVICE, OPERATE)
        board = self.shell.board
        if board.full:
            raise RequestRefused(503, "limit", "Too many event streams are open; close one.")
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        self.set_header("X-Accel-Buffering", "no")
        self.watcher = watcher = board.watch(None if sees_all(identity) else (identity.tenant or "", identity.name))
        try:
            self.write(": forebay\n\n")
            await self.flush()
            while not watcher.behind:
                try:
                    text = await asyncio.wait_for(watcher.events.get(), KEEP_ALIVE_SECONDS)
                except TimeoutError:
                    text = ": still here\n\n"
                self.write(text)
                await self.flush()
        except StreamClosedError:
            return
        finally:
            board.leave(watcher)

    def on_connection_close(self) -> None:
        if self.watcher is not None:
            self.watcher.let_go()


class MetricsPage(Api):
    """``GET metrics``: without a token from this host itself, never through a proxy: it tells of all tenants."""

    async def get(self) -> None:
        proxied = "X-Forwarded-For" in self.request.headers
        if proxied or self.request.remote_ip not in LOOPBACK:
            await self.bearer(SERVICE, OPERATE)
        await self.context.count_outbox()
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.write(generate_latest(self.shell.metrics.registry))


class Health(Api):
    """``GET health``."""

    def get(self) -> None:
        self.write_json({"status": "ok", "role": "leader"})
