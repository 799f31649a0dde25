"""Which pool serves this process: what FOREBAY_URL and FOREBAY_TOKEN say, or else ``forebay login``; and plain HTTP calls to it."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, replace
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit, urlunsplit

from forebay.errors import ForebayError, NotConfigured, PoolRefused, PoolUnreachable, SessionEnded
from forebay.service import sign_in

URL_VARIABLE = "FOREBAY_URL"
BILLING_VARIABLE = "FOREBAY_BOOKS_URL"
TOKEN_VARIABLE = "FOREBAY_TOKEN"  # noqa: S105 the variable's name, not a token
HUB_TOKEN_VARIABLE = "JUPYTERHUB_API_TOKEN"  # noqa: S105 as above
FLAVOR_VARIABLE = "FOREBAY_FLAVOR"
PRIORITY_VARIABLE = "FOREBAY_PRIORITY"
CERTIFICATES_VARIABLE = "SSL_CERT_FILE"
LOSS_VARIABLE = "FOREBAY_JOB_LOSS"
"""The file in which a job's program tells its runner what stops it."""
BUDGET = "budget"
"""The pool's code of a wait for money, and of a refusal for want of it."""
BY_PEOPLE = ("ended_by_user", "ended_by_operator")
"""Causes of a session's end that somebody wanted."""
PRIORITY_MAX = 99
OUTSIDE_VARIABLE = "FOREBAY_OUTSIDE"
LOCAL = "local"
POOL_PATH, BILLING_PATH = "/services/pool/", "/services/billing/"
"""Where they stand behind a hub."""
FOLLOWER = "follower"
"""What a pool answers while another one leads."""
REQUEST_SECONDS_MAX = 10.0
RESPONSE_BYTES_MAX = 16 * 1024 * 1024
NO_HEADERS: Mapping[str, str] = {}
T = TypeVar("T")
LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Service:
    """The address of a pool, or of billing, with the token that this process presents to it."""

    url: str
    """Ends with a slash."""
    token: str
    others: tuple[str, ...] = ()
    """Where else the pool may be: one of several leads, and may be another after a failure."""
    name: str = "pool"
    variable: str = URL_VARIABLE
    """What holds the address."""
    outside: bool = False
    """Whether this process is outside of the installation, and reaches workers by the edge beside the pool."""
    renewal: str = f"set {TOKEN_VARIABLE} to one that is valid"
    """How to come by a token that is accepted, as part of a sentence."""

    def each(self) -> list[Service]:
        """The service at each address that it may be at."""
        return [self, *(replace(self, url=url, others=()) for url in self.others)]

    def link_url(self, path: str) -> str:
        """The address of a WebSocket of the service."""
        parts = urlsplit(self.url)
        scheme = "wss" if parts.scheme == "https" else "ws"
        return urlunsplit((scheme, parts.netloc, parts.path + path, "", ""))

    def edge_url(self, worker: str) -> str:
        """Where the command stream of a worker is reached from outside: a WebSocket of the edge beside the pool. Raises NotConfigured."""
        scheme, netloc, path, _, _ = urlsplit(self.url)
        if not path.endswith(POOL_PATH):
            raise NotConfigured(f"From outside a pool is reached at {POOL_PATH} of its hub's address, and {self.url} is none like that.")
        edge = path.removesuffix(POOL_PATH) + f"/services/edge/api/workers/{quote(worker, safe='')}/stream"
        return urlunsplit(("wss" if scheme == "https" else "ws", netloc, edge, "", ""))

    @property
    def authorization(self) -> str:
        """The value of the Authorization header."""
        return f"token {self.token}"

    @property
    def is_loopback(self) -> bool:
        """Whether the pool is on this host, where no HTTP proxy may stand between."""
        return urlsplit(self.url).hostname in LOOPBACK_HOSTS

    def get(self, path: str) -> Any:
        """What the service answers to ``GET path``, decoded. Raises PoolUnreachable, PoolRefused."""
        return self._decoded(self._call("GET", path, None))

    def put(self, path: str, body: Mapping[str, Any], expected: Mapping[str, str] = NO_HEADERS) -> Any:
        """What the service answers to ``PUT path``, decoded; done only as far as the headers in ``expected`` allow.

        Raises PoolUnreachable, PoolRefused.
        """
        return self.send("PUT", path, body, expected)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """What the service answers to ``POST path``, decoded. Raises PoolUnreachable, PoolRefused."""
        return self.send("POST", path, body)

    def delete(self, path: str) -> Any:
        """What the service answers to ``DELETE path``, decoded. Raises PoolUnreachable, PoolRefused."""
        return self.send("DELETE", path, None)

    def send(self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str] = NO_HEADERS) -> Any:
        """What the service answers to a change, decoded; None where it answers nothing. Raises PoolUnreachable, PoolRefused."""
        return self._decoded(self._call(method, path, None if body is None else json.dumps(body).encode(), headers=headers))

    def get_bytes(self, path: str) -> bytes:
        """What the service answers to ``GET path``, as it is. Raises PoolUnreachable, PoolRefused."""
        return self._call("GET", path, None)

    def get_text(self, path: str) -> str:
        """What the service answers to ``GET path``, a text. Raises PoolUnreachable, PoolRefused."""
        return self.get_bytes(path).decode("utf-8", "replace")

    def stream(self, path: str, silence_seconds_max: float) -> HTTPResponse:
        """An answer that goes on, to be read by lines and closed. Raises PoolUnreachable, PoolRefused."""
        return self._first(lambda one: one._open("GET", path, None, "application/json", NO_HEADERS, silence_seconds_max))

    def send_text(self, method: str, path: str, text: str) -> Any:
        """What the service answers to a text, decoded. Raises PoolUnreachable, PoolRefused."""
        return self._decoded(self._call(method, path, text.encode(), "text/plain; charset=utf-8"))

    def unreachable(self, why: object) -> PoolUnreachable:
        """The error that says that nobody answers here, and how to find out more."""
        said = " ".join(str(why).split())
        return PoolUnreachable(
            f"The {self.name} at {self.url} ({self.variable}) cannot be reached: {said}. Run `forebay doctor` to find out more."
        )

    def _call(
        self, method: str, path: str, body: bytes | None, kind: str = "application/json", headers: Mapping[str, str] = NO_HEADERS
    ) -> bytes:
        return self._first(lambda one: one._call_one(method, path, body, kind, headers))

    def _first(self, ask: Callable[[Service], T]) -> T:
        """What the first of several answers that can be reached. Raises PoolUnreachable of the last one."""
        *others, last = self.each()
        for one in others:
            with contextlib.suppress(PoolUnreachable):
                return ask(one)
        return ask(last)

    def _call_one(self, method: str, path: str, body: bytes | None, kind: str, headers: Mapping[str, str]) -> bytes:
        with self._open(method, path, body, kind, headers, REQUEST_SECONDS_MAX) as response:
            try:
                return response.read(RESPONSE_BYTES_MAX + 1)
            except (OSError, HTTPException) as error:
                raise self.unreachable(error) from None

    def _open(
        self, method: str, path: str, body: bytes | None, kind: str, headers: Mapping[str, str], seconds: float
    ) -> HTTPResponse:
        sent = {**headers, "Authorization": self.authorization, "Accept": "application/json", "Content-Type": kind}
        request = urllib.request.Request(self.url + path, data=body, headers=sent, method=method)  # noqa: S310 http(s) alone: see service_at
        handlers = [urllib.request.ProxyHandler({})] if self.is_loopback else []
        try:
            response: HTTPResponse = urllib.request.build_opener(_OwnHostRedirects, *handlers).open(request, timeout=seconds)
            return response
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error.code, error.read(RESPONSE_BYTES_MAX)) from None
        except (OSError, HTTPException, ValueError) as error:  # ValueError: a host's name that cannot be one
            raise self.unreachable(getattr(error, "reason", error)) from None

    def _decoded(self, text: bytes) -> Any:
        if not text:
            return None
        try:
            answer = json.loads(text)
        except (ValueError, RecursionError):
            raise self.no_service() from None
        answered.set(self)
        return answer

    def no_service(self) -> PoolUnreachable:
        """The error that says that something else answers here."""
        return PoolUnreachable(f"What answers at {self.url} is not a Forebay {self.name}; check {self.variable}.")

    def token_refused(self, status: int) -> PoolRefused:
        """The error that says that the token is unknown, expired or revoked."""
        sentence = f"The {self.name} at {self.url} does not accept this token; {self.renewal}."
        return PoolRefused(sentence, "unauthorized", status=status)

    def misread(self, error: Exception) -> PoolUnreachable:
        """The error that says that an answer is not as this release reads it, which ``error`` showed."""
        why = " ".join(f"{type(error).__name__}: {error}".split())
        sentence = f"The {self.name} at {self.url} answered what this release of forebay cannot read ({why})"
        return PoolUnreachable(f"{sentence}; check {self.variable}, and both releases.")

    def _refusal(self, status: int, text: bytes) -> PoolRefused | PoolUnreachable:
        try:
            error = json.loads(text)["error"]
            if error["code"] == FOLLOWER:
                return PoolUnreachable(str(error["message"]))
            return PoolRefused(str(error["message"]), str(error["code"]), status=status, fault=error.get("fault"))
        except (ValueError, KeyError, TypeError, RecursionError):
            pass
        if status in (401, 403):
            return self.token_refused(status)
        sentence = f"The {self.name} at {self.url} answered with HTTP status {status}; check {self.variable}."
        return PoolRefused(sentence, "http", status=status)


class _OwnHostRedirects(urllib.request.HTTPRedirectHandler):
    """Sends the token to no other host, and not in clear where it went encrypted."""

    def redirect_request(self, req: urllib.request.Request, *answer: Any) -> urllib.request.Request | None:
        request = super().redirect_request(req, *answer)
        if request is not None:
            before, after = urlsplit(req.full_url), urlsplit(request.full_url)
            if before.hostname != after.hostname or (before.scheme, after.scheme) == ("https", "http"):
                request.remove_header("Authorization")
        return request


answered: ContextVar[Service | None] = ContextVar("answered", default=None)
"""Whose answer was read last."""


def configured(environment: Mapping[str, str] = os.environ) -> str | None:
    """The value of FOREBAY_URL; where it is not set at all, the pool of who signed in by `forebay login`; None where nobody did.

    Raises NotConfigured where that sign-in cannot be read.
    """
    if URL_VARIABLE in environment:
        return environment[URL_VARIABLE].strip() or None
    signed_in = sign_in.kept()
    return None if signed_in is None else signed_in.pool


def priority_of(environment: Mapping[str, str] = os.environ) -> int:
    """The value of FOREBAY_PRIORITY, 0 where none is set. Raises NotConfigured."""
    text = environment.get(PRIORITY_VARIABLE, "").strip() or "0"
    try:
        return checked_priority(int(text))
    except ValueError:
        raise NotConfigured(f"{PRIORITY_VARIABLE} is {text!r}; it must be a whole number, -{PRIORITY_MAX} to {PRIORITY_MAX}.") from None


def checked_priority(value: int) -> int:
    """Raises ValueError for what is no priority."""
    if not -PRIORITY_MAX <= value <= PRIORITY_MAX:
        raise ValueError(f"A priority is a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}; {value} was given.")
    return value


def check_url(url: str) -> None:
    """Raises NotConfigured unless ``url`` is ``local``, or the address of an HTTP service, or several with commas between them."""
    if url != LOCAL and not all(_is_address(one) for one in url.split(",")):
        raise NotConfigured(f"{URL_VARIABLE} is {url!r}; it must be `{LOCAL}` or an address like http://host:port/services/pool/.")


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url.strip())
        return parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        return False


def service_at(url: str, environment: Mapping[str, str] = os.environ) -> Service:
    """The pool at an HTTP address, with the token that the environment holds, or else that of `forebay login`. Raises NotConfigured."""
    check_url(url)
    if url == LOCAL:
        raise NotConfigured(f"{URL_VARIABLE}={LOCAL} names no pool until a process has started one.")
    first, *others = (one.strip().rstrip("/") + "/" for one in url.split(","))
    token = environment.get(TOKEN_VARIABLE) or environment.get(HUB_TOKEN_VARIABLE)
    if not token and URL_VARIABLE not in environment:
        signed_in = sign_in.kept()
        if signed_in is not None and signed_in.reaches(first):
            return Service(first, signed_in.secret(), variable="forebay login", outside=True, renewal=signed_in.renewal())
    if not token:
        raise NotConfigured(f"No token for the pool at {url}: set {TOKEN_VARIABLE}; JupyterHub's servers have {HUB_TOKEN_VARIABLE}.")
    if not token.isascii() or not token.isprintable():
        raise NotConfigured(f"The token in {TOKEN_VARIABLE} has characters that no token has; copy it again.")
    return Service(first, token, tuple(others), outside=environment.get(OUTSIDE_VARIABLE) == "1")


def beside_pool(pool_url: str) -> str | None:
    """Where billing is beside a hub's pool, or beside the first of several; None for a pool at another path."""
    url = pool_url.split(",")[0].strip().rstrip("/") + "/"
    return url.removesuffix(POOL_PATH) + BILLING_PATH if url.endswith(POOL_PATH) else None


def tell_loss(error: ForebayError) -> None:
    """Says to the runner of a job, if this is one, that it lost its tensors by no fault of its own, so that it may be run again."""
    if isinstance(error, SessionEnded) and (error.cause is None or error.cause.code not in BY_PEOPLE):
        tell_runner(str(error))


def has_runner() -> bool:
    """Whether this is a job, or an agent's kernel, whose runner is told what stops it."""
    return bool(os.environ.get(LOSS_VARIABLE))


def tell_runner(what: str) -> None:
    """What stops this job's program, after a line BUDGET where it is that."""
    file = os.environ.get(LOSS_VARIABLE)
    if file:
        with contextlib.suppress(OSError):
            Path(file).write_text(what, encoding="utf-8")


def tell_wait(code: str | None, why: str) -> None:
    """Says to the runner that the program waits for a budget, or for something else."""
    if code == BUDGET:
        tell_runner(f"{BUDGET}\n{why}")
    else:
        forget_budget()


def forget_budget() -> None:
    """There is one again."""
    file = os.environ.get(LOSS_VARIABLE)
    if file:
        with contextlib.suppress(OSError):
            if Path(file).read_text(encoding="utf-8").startswith(f"{BUDGET}\n"):
                Path(file).write_text("", encoding="utf-8")
