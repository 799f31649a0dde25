"""The base of all HTTP handlers: a token becomes an identity, bodies and answers are JSON, refusals have one shape and one set of codes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from typing import Annotated, Any, NamedTuple

import httpx
import pytest
from forebay_service import errors
from forebay_service.errors import Fault
from forebay_service.handler import HealthHandler, JsonHandler, MetricsHandler, NotFoundHandler
from forebay_service.identity import OPERATE, SERVICE, Identity, IdentityUnavailable, SeveralTenants
from forebay_service.openapi import describe
from forebay_service.routes import Route, handlers, rules
from forebay_service.settings import ServiceSettings
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application

BODY_BYTES_MAX = 1000
SCRAPE_TOKEN = "prometheus-reads-the-metrics"


class Authenticator:
    """Knows two people, one whom nobody can serve, and one of whom the hub cannot be asked."""

    async def identify(self, token: str) -> Identity | None:
        if token == "lost":
            raise IdentityUnavailable("JupyterHub cannot be reached; try again")
        if token == "torn":
            raise SeveralTenants("torn", ["acme", "bolt"])
        scopes = {"operator": frozenset({OPERATE}), "ada": frozenset({"custom:forebay:compute"})}
        return Identity(token, "user", "acme", scopes[token]) if token in scopes else None


class Settings(ServiceSettings):
    package = "forebay_bank"


class Context(NamedTuple):
    authenticator: Authenticator
    settings: Settings


class Amount(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    amount: Annotated[int, Field(ge=0)]


class Page(BaseModel):
    model_config = ConfigDict(extra="forbid")

    limit: int = 10


class Busy(errors.Conflict):
    """Somebody computes on it."""

    code = "busy"


class Amounts(JsonHandler):
    service = "bank"
    body_bytes_max = BODY_BYTES_MAX

    async def get(self) -> None:
        await self.bearer()
        self.write_json({"limit": self.query(Page).limit}, '"tag"')

    async def put(self) -> None:
        await self.bearer(OPERATE, SERVICE)
        expected = self.expected()
        if not expected.holds('"tag"'):
            raise errors.PreconditionFailed("It changed.")
        self.write_json({"amount": self.body(Amount).amount})

    async def post(self) -> None:
        raise Busy("Somebody computes on main/cpu:0.", Fault("device_held", values={"device": "main/cpu:0"}))

    async def delete(self) -> None:
        raise RuntimeError("a secret of the service")


class Named(JsonHandler):
    async def get(self, name: str) -> None:
        self.write_json(name)


class Metrics(MetricsHandler):
    async def exposition(self) -> bytes:
        return b"up 1\n"


class Health(HealthHandler):
    async def state(self) -> dict[str, Any]:
        return {"role": "leader"}


ROUTES = (
    Route("GET", "api/amounts", Amounts, "An amount", dict[str, int], query=Page, tagged=True),
    Route("PUT", "api/amounts", Amounts, "Sets it", dict[str, int], Amount, scopes=(OPERATE, SERVICE), conditional=True, idempotent=True),
    Route("GET", "api/names/{name:path}", Named, "A name", str),
    Route("GET", "metrics", Metrics, "Metrics", str, scopes=(SERVICE, OPERATE), media=("text/plain",)),
    Route("GET", "health", Health, "Health", dict[str, str], scopes=None),
)


@pytest.fixture(scope="module", params=[""])
def bank(request: pytest.FixtureRequest) -> Iterator[httpx.Client]:
    """A service of ten lines, under the path of a proxy."""
    loop, sockets = asyncio.new_event_loop(), bind_sockets(0, "127.0.0.1")
    settings = Settings(metrics_token=request.param)
    given = {"context": Context(Authenticator(), settings)}

    async def serve() -> HTTPServer:
        application = Application(
            rules(ROUTES, "/services/bank/", given), default_handler_class=NotFoundHandler, default_handler_args=given
        )  # fmt: skip
        server = HTTPServer(application)
        server.add_sockets(sockets)
        return server

    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(serve(), loop).result(10)
    url = f"http://127.0.0.1:{sockets[0].getsockname()[1]}/services/bank/"
    with httpx.Client(base_url=url, trust_env=False) as client:
        yield client
    server.stop()
    asyncio.run_coroutine_threadsafe(server.close_all_connections(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def by(token: str, **headers: str) -> dict[str, str]:
    return {"Authorization": f"token {token}", **headers}


def test_every_answer_is_kept_by_nobody_and_guessed_by_nobody(bank: httpx.Client) -> None:
    for path in ("health", "metrics", "api/amounts", "nothing"):
        headers = bank.get(path).headers
        assert (headers["Cache-Control"], headers["X-Content-Type-Options"]) == ("no-store", "nosniff"), path
        assert "Server" not in headers


@pytest.mark.parametrize(
    ("method", "path", "sent", "status", "code"),
    [
        ("GET", "api/amounts", {}, 401, "unauthorized"),
        ("GET", "api/amounts", {"headers": by("stranger")}, 401, "unauthorized"),
        ("GET", "api/amounts", {"headers": {"Authorization": "Basic b3BlcmF0b3I6"}}, 401, "unauthorized"),
        ("GET", "api/amounts", {"headers": by("torn")}, 403, "forbidden"),
        ("PUT", "api/amounts", {"headers": by("ada"), "json": {"amount": 1}}, 403, "forbidden"),
        ("GET", "api/amounts", {"headers": by("lost")}, 503, "unavailable"),
        ("GET", "api/amounts?limit=x", {"headers": by("ada")}, 400, "invalid"),
        ("GET", "api/amounts?other=1", {"headers": by("ada")}, 400, "invalid"),
        ("GET", "api/amounts?limit=%ff", {"headers": by("ada")}, 400, "invalid"),
        ("GET", "api/names/%ff", {}, 400, "invalid"),
        ("GET", "api/names/a%00b", {}, 400, "invalid"),
        ("PUT", "api/amounts", {"headers": by("operator"), "content": b"{"}, 400, "invalid"),
        ("PUT", "api/amounts", {"headers": by("operator"), "json": {"amount": -1}}, 400, "invalid"),
        ("PUT", "api/amounts", {"headers": by("operator", **{"If-Match": "untagged"}), "json": {"amount": 1}}, 400, "invalid"),
        ("PUT", "api/amounts", {"headers": by("operator", **{"If-Match": '"old"'}), "json": {"amount": 1}}, 412, "precondition_failed"),
        ("PUT", "api/amounts", {"headers": by("operator"), "content": b" " * (BODY_BYTES_MAX + 1)}, 413, "too_large"),
        ("GET", "nothing", {}, 404, "not_found"),
        ("PUT", "nothing", {"content": b"x"}, 404, "not_found"),
        ("PATCH", "api/amounts", {}, 405, "method_not_allowed"),
        ("POST", "api/amounts", {}, 409, "busy"),
        ("DELETE", "api/amounts", {}, 500, "internal"),
    ],
)
def test_a_refusal_has_a_code_and_a_sentence(
    bank: httpx.Client, method: str, path: str, sent: dict[str, Any], status: int, code: str
) -> None:
    answer = bank.request(method, path, **sent)
    assert answer.headers["Content-Type"] == "application/json"
    assert set(answer.json()) == {"error"}
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert error["message"].endswith((".", "again")) and "secret" not in answer.text
    assert code in ("busy", "invalid") or "fault" not in error
    assert code != "busy" or error["fault"] == {"code": "device_held", "field": None, "values": {"device": "main/cpu:0"}}
    assert ("WWW-Authenticate" in answer.headers) == (status == 401)
    assert answer.headers.get("Retry-After") == ("1" if status == 503 else None)


def test_what_is_right_is_answered(bank: httpx.Client) -> None:
    read = bank.get("api/amounts?limit=1&limit=3", headers=by("ada", **{"If-None-Match": '"tag"'}))
    assert (read.status_code, read.json(), read.headers["ETag"]) == (200, {"limit": 3}, '"tag"')
    bearer = {"Authorization": "Bearer operator", "If-Match": '"tag"'}
    assert bank.put("api/amounts", headers=bearer, json={"amount": 7}).json() == {"amount": 7}
    assert bank.get("api/names/main/cpu:0").json() == "main/cpu:0"
    assert bank.get("health").json() == {"status": "ok", "troubles": {}, "role": "leader"}


def test_a_connection_outlives_refusals_after_the_body(bank: httpx.Client) -> None:
    for path in ("nothing", "api/amounts"):
        answer = bank.put(path, headers=by("operator"), content=b"x" * 2 * BODY_BYTES_MAX)
        assert answer.status_code in (404, 413) and answer.headers.get("Connection") != "close"


def test_metrics_are_for_this_host_and_through_a_proxy_for_those_who_may(bank: httpx.Client) -> None:
    assert bank.get("metrics").text == "up 1\n"
    proxied = {"X-Forwarded-For": "10.1.1.1"}
    statuses = [bank.get("metrics", headers={**proxied, **by(token)}).status_code for token in ("operator", "ada", "stranger")]
    assert statuses == [200, 403, 401]


@pytest.mark.parametrize("bank", [SCRAPE_TOKEN], indirect=True)
def test_where_metrics_have_a_token_they_are_told_to_it_and_to_those_who_may_from_this_host_too(bank: httpx.Client) -> None:
    tokens = (SCRAPE_TOKEN, "operator", "ada", "stranger", SCRAPE_TOKEN[:-1], f"{SCRAPE_TOKEN}x")
    for headers in ({}, {"X-Forwarded-For": "10.1.1.1"}):
        answers = [bank.get("metrics", headers=headers), *(bank.get("metrics", headers={**headers, **by(token)}) for token in tokens)]
        assert [answer.status_code for answer in answers] == [401, 200, 200, 403, 401, 401, 401]
        assert SCRAPE_TOKEN not in "".join(answer.text for answer in answers)
    assert bank.put("api/amounts", headers=by(SCRAPE_TOKEN), json={"amount": 7}).status_code == 401


def test_a_token_for_metrics_is_long_or_there_is_none_and_is_not_shown() -> None:
    with pytest.raises(ValidationError):
        Settings(metrics_token="short")
    assert SCRAPE_TOKEN not in repr(Settings(metrics_token=SCRAPE_TOKEN))


def test_a_table_with_two_handlers_for_a_path_is_refused() -> None:
    with pytest.raises(ValueError, match=r"api/amounts has two handlers: Amounts and Named"):
        handlers([*ROUTES, Route("DELETE", "api/amounts", Named, "Removes it")])


def test_the_description_says_what_follows_from_a_route() -> None:
    described = describe(ROUTES, "/services/bank/", {"title": "Bank", "version": "1"})
    assert described["servers"] == [{"url": "/services/bank"}]
    assert list(described["paths"]) == ["/api/amounts", "/api/names/{name}", "/metrics", "/health"]
    put = described["paths"]["/api/amounts"]["put"]
    assert list(put["responses"]) == ["200", "400", "401", "403", "409", "412", "413", "503"]
    assert [one["name"] for one in put["parameters"]] == ["If-Match", "If-None-Match", "Idempotency-Key"]
    get = described["paths"]["/api/amounts"]["get"]
    assert "ETag" in get["responses"]["200"]["headers"] and get["parameters"][0]["name"] == "limit"
    assert "security" in get and "security" not in described["paths"]["/health"]["get"]
    assert json.loads(json.dumps(described)) == described
