"""The base of all HTTP handlers: who asks, what is sent and answered in JSON, and what a refusal looks like."""

from __future__ import annotations

import hmac
import json
import logging
from typing import Any, ClassVar, TypeVar, get_origin

from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.web import HTTPError, RequestHandler, stream_request_body

from forebay_service.bodies import body_of, query_of
from forebay_service.errors import Forbidden, Invalid, MethodNotAllowed, NotFound, RequestError, TooLarge, Unauthorized, Unavailable
from forebay_service.identity import OPERATE, SERVICE, Authenticator, Identity, IdentityRefused, IdentityUnavailable
from forebay_service.peers.front import learn
from forebay_service.preconditions import InvalidPrecondition, Precondition, precondition_in

BODY_BYTES_MAX = 4 * 2**20
"""The longest that a body within its own bounds can be is a list of tenants with every character escaped, 3 MiB."""
BODY_BYTES_CUT = 64 * 2**20
"""A body this long is not even read to its end to be refused politely: the connection closes."""
RETRY_AFTER_SECONDS = 1
SCHEMES = ("token", "bearer")
LOOPBACK = ("127.0.0.1", "::1")
UNREADABLE_ADDRESS = "The address of this request cannot be read: write what is not ASCII in it as UTF-8, escaped with %."

log = logging.getLogger(__name__)
B = TypeVar("B", bound=BaseModel)


def token_in(headers: HTTPHeaders) -> str:
    """The token of ``Authorization: token …``, or ``Bearer …``; empty if there is none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() in SCHEMES else ""


def is_local(request: HTTPServerRequest) -> bool:
    """Whether a program on this host asks straight, and not a proxy for somebody."""
    return request.remote_ip in LOOPBACK and "X-Forwarded-For" not in request.headers


def may_scrape(request: HTTPServerRequest, metrics_token: str) -> bool:
    """Whether the metrics are told without asking JupyterHub: to the token for them, and where there is none, to programs on this host.

    So they are there while JupyterHub is not.
    """
    return hmac.compare_digest(token_in(request.headers).encode(), metrics_token.encode()) if metrics_token else is_local(request)


def error_document(error: RequestError) -> dict[str, Any]:
    """What every refusal says: ``{"error": {"code", "message"}}``, and ``fault`` where something that was sent is wrong."""
    fault = {} if error.fault is None else {"fault": error.fault.row}
    return {"error": {"code": error.code, "message": str(error), **fault}}


class SafeHandler(RequestHandler):
    """What every answer has: nobody keeps it, nobody guesses what it is, and nobody is told what serves it."""

    def set_default_headers(self) -> None:
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")
        self.clear_header("Server")


@stream_request_body
class JsonHandler(SafeHandler):
    """Callers by token, bodies within bounds, answers and errors in JSON."""

    service: ClassVar[str] = "service"
    """What the sentence about a failure calls it."""
    body_bytes_max: ClassVar[int] = BODY_BYTES_MAX

    def initialize(self, context: Any) -> None:
        self.context = context
        self._body = bytearray()
        self._too_large = False
        self._reads_body = False
        self.failure: RequestError | None = None

    def prepare(self) -> Any:
        self._reads_body = True

    def data_received(self, chunk: bytes) -> None:
        self._too_large = self._too_large or len(self._body) + len(chunk) > self.body_bytes_max
        if not self._too_large:
            self._body += chunk

    def check_xsrf_cookie(self) -> None:
        """Callers present a token, never a cookie, so no other site can make a browser call."""

    def compute_etag(self) -> None:
        """Tornado's own would be none that a change may expect."""

    def check_etag_header(self) -> bool:
        """Who reads always gets an answer: under an equal tag more may be used, or other prices in force, by now."""
        return False

    # Who asks, and what for

    @property
    def authenticator(self) -> Authenticator:
        """Knows who a token belongs to."""
        found: Authenticator = self.context.authenticator
        return found

    async def bearer(self, *scopes: str) -> Identity:
        """Who asks; must hold one of ``scopes``, if any are named. Raises Unauthorized, Forbidden, Unavailable."""
        token = token_in(self.request.headers)
        if not token:
            raise Unauthorized("Send a token of JupyterHub in the header 'Authorization: token …'.")
        try:
            identity = await self.authenticator.identify(token)
        except IdentityUnavailable as error:
            raise Unavailable(str(error)) from None
        except IdentityRefused as error:
            raise Forbidden(str(error)) from None
        if identity is None:
            raise Unauthorized("The token is unknown, expired or revoked; get a new one from JupyterHub.")
        learn(self.request, self.settings, identity.tenant, identity.name, identity.kind == "service")
        if scopes and not any(identity.may(scope) for scope in scopes):
            raise Forbidden(f"{identity.name} needs the scope {' or '.join(scopes)}.")
        return identity

    def body(self, model: type[B]) -> B:
        """The JSON body. Raises Invalid, TooLarge."""
        return body_of(model, self.body_bytes())

    def body_bytes(self, bytes_max: int | None = None) -> bytes:
        """The body as it came. Raises TooLarge."""
        most = self.body_bytes_max if bytes_max is None else bytes_max
        if self._too_large or len(self._body) > most:
            raise TooLarge(f"The body is longer than {most} bytes; send less at once.")
        return bytes(self._body)

    def text(self, bytes_max: int) -> str:
        """The body as UTF-8. Raises Invalid, TooLarge."""
        try:
            return self.body_bytes(bytes_max).decode("utf-8")
        except UnicodeDecodeError:
            raise Invalid("body: this is not UTF-8.") from None

    def query(self, model: type[B]) -> B:
        """The query arguments; the last of a repeated one counts, unless the model has a list of them. Raises Invalid."""
        lists = {name for name, field in model.model_fields.items() if get_origin(field.annotation) is list}
        try:
            given = {name: [value.decode() for value in values] for name, values in self.request.query_arguments.items()}
            return query_of(model, {name: values if name in lists else values[-1] for name, values in given.items()})
        except UnicodeDecodeError:
            raise Invalid("query: the arguments are not UTF-8.") from None

    def decode_argument(self, value: bytes, name: str | None = None) -> str:
        """An argument of the path or of the query. Raises Invalid for what not every database can look for."""
        text = super().decode_argument(value, name)
        if "\0" in text:
            raise Invalid(f"{name or 'path'}: there is a NUL character in it.")
        return text

    def expected(self) -> Precondition:
        """What ``If-Match`` and ``If-None-Match`` ask for. Raises Invalid."""
        try:
            return precondition_in(self.request.headers)
        except InvalidPrecondition as error:
            raise Invalid(str(error)) from None

    # What is answered

    def write_json(self, value: object, etag: str | None = None) -> None:
        """Answers with JSON, under the tag of what is set in it, where there is one."""
        self.write_json_text(json.dumps(value), etag)

    def write_json_text(self, text: str, etag: str | None = None) -> None:
        """As :meth:`write_json`, of a text that is JSON already."""
        self.set_header("Content-Type", "application/json")
        if etag is not None:
            self.set_header("ETag", etag)
        self.write(text)

    def log_exception(self, typ: Any, value: Any, tb: Any) -> None:
        if not isinstance(value, (RequestError, HTTPError)):
            log.error("%s %s", self.request.method, self.request.path, exc_info=(typ, value, tb), extra={"action": "request_failed"})

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        error = self.failure = self._refusal(status_code, kwargs.get("exc_info", (None, None, None))[1])
        self.set_status(error.status)
        if not self._reads_body:
            self.set_header("Connection", "close")  # which Tornado does where it answers before the body
        if error.status == Unavailable.status:
            self.set_header("Retry-After", str(RETRY_AFTER_SECONDS))
        if error.status == Unauthorized.status:
            self.set_header("WWW-Authenticate", SCHEMES[0])
        self.write_json(error_document(error))
        self.finish()

    def _refusal(self, status: int, error: object) -> RequestError:
        if isinstance(error, RequestError):
            return error
        if status == MethodNotAllowed.status:
            return MethodNotAllowed(f"{self.request.path} does not take {self.request.method}.")
        if status < RequestError.status and isinstance(error, HTTPError):
            return Invalid(UNREADABLE_ADDRESS)
        return RequestError(f"The {self.service} failed; its log says more.")


class NotFoundHandler(JsonHandler):
    """What is no endpoint. It refuses after the body, not in ``prepare``: an answer before the body would cost the connection."""

    def refusal(self) -> RequestError:
        """What every method is answered."""
        return NotFound(f"There is nothing at {self.request.path}.")

    async def get(self) -> None:
        raise self.refusal()

    head = post = put = patch = delete = options = get


class HealthHandler(JsonHandler):
    """``GET health``: 200 as long as requests are served, with what the service needs and does not have at present."""

    def troubles(self) -> dict[str, str | None]:
        """By the part that is meant, what is wrong with it, in a sentence for everybody; None: nothing."""
        return {}

    async def state(self) -> dict[str, Any]:
        """What is told of it. Raises Unavailable where it cannot serve."""
        return {}

    async def get(self) -> None:
        state, found = await self.state(), self.troubles()
        self.write_json({"status": "ok", "troubles": {part: trouble for part, trouble in found.items() if trouble is not None}, **state})


class MetricsHandler(JsonHandler):
    """``GET metrics``: to the setting ``metrics_token``, or without one from this host itself, but never through a proxy, since it tells
    of all tenants; and to operators and services."""

    async def exposition(self) -> bytes:
        """All figures, in Prometheus' text format."""
        raise NotImplementedError

    async def get(self) -> None:
        if not may_scrape(self.request, self.context.settings.metrics_token):
            await self.bearer(SERVICE, OPERATE)
        text = await self.exposition()
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.write(text)
