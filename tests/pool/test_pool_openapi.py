"""What ``api/openapi.json`` says is what the pool does: the same operations and scopes, and answers as described to whatever is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

import psutil
import schemathesis
from forebay_pool.http.routes import ROUTES
from forebay_service.identity import COMPUTE, OPERATE, SERVICE
from forebay_service.routes import SWITCHING, Route, handlers
from forebay_wire import messages as wire
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis import checks as conforms
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

Make = Callable[..., Any]
EVENTS = "text/event-stream"
HUB = {"hub_api_url": "http://127.0.0.1:9/hub/api", "hub_token": "pool"}
"""One that does not answer: jobs wait."""
BY_SCOPE = {COMPUTE: "ada", SERVICE: "dashboards", OPERATE: "operator"}
HAS_TENANT = ("api/session", "api/choice")
PLACEHOLDERS = {"tenant": "acme", "user": "ada", "worker": "none", "model": "cpu-dev"}
PLACEHOLDERS |= {"device": "main/cpu:0", "node": "main", "name": "made.1gb"}
PLACEHOLDERS |= {"job": "1", "schedule": "1", "shared": "1"}
CHECKS = [
    conforms.not_a_server_error,
    conforms.status_code_conformance,
    conforms.content_type_conformance,
    conforms.response_schema_conformance,
    conforms.response_headers_conformance,
]


def answers(operation: Route) -> bool:
    """Whether it answers at once and in HTTP, as neither links nor the event stream do."""
    return operation.status != SWITCHING and EVENTS not in operation.media


def test_every_method_of_every_handler_is_in_the_table() -> None:
    served = {
        (method, path)
        for path, handler in handlers(ROUTES).items()
        for method in handler.SUPPORTED_METHODS
        if getattr(handler, method.lower()) is not getattr(RequestHandler, method.lower())
    }
    assert sorted((route.method, route.pattern) for route in ROUTES) == sorted(served)


def test_scopes_are_those_that_the_table_says(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0, **HUB) as running:
            for operation in [one for one in ROUTES if EVENTS not in one.media and one.path != "api/worker"]:
                path = operation.shown.format(**PLACEHOLDERS, session="none")
                local = operation.path == "metrics"
                for scope, who in BY_SCOPE.items():
                    allowed = local or not operation.scopes or scope in operation.scopes
                    code = (await running.call(operation.method, path, who)).code
                    assert (code not in (401, 403)) == allowed, (operation, who, code)
                alone = (await running.call(operation.method, path, None)).code
                assert (alone != 401) == (operation.scopes is None or local), (operation, alone)

    asyncio.run(scenario())


def test_the_description_is_served_without_a_token_under_the_prefix(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0, prefix="/services/pool/") as running:
            description = await running.get("api/openapi.json", None)
            assert description["openapi"] == "3.1.0" and description["servers"] == [{"url": "/services/pool"}]
            assert description["components"]["schemas"]["FlavorRow"]["properties"]["residents_max"]["anyOf"][0] == {"type": "integer"}

    asyncio.run(scenario())


def test_what_peoples_environments_should_be_is_told_without_a_token(pool: Make) -> None:
    async def scenario() -> None:
        page = "https://wheels.example.org/index.html"
        async with pool(warm_workers=0, wheels_url=page) as running:
            assert await running.get("api/release", None) == {"version": version("forebay-pool"), "protocol": wire.PROTOCOL, "index": page}

    asyncio.run(scenario())


def test_whatever_is_sent_is_answered_as_described(pool: Make) -> None:
    async def scenario() -> None:
        few: dict[str, Any] = {"jobs_waiting_per_user_max": 2, "schedules_per_user_max": 2, "shared_notebooks_per_user_max": 2}
        async with hub() as address, pool(revoke_grace_seconds=0.2, hub_api_url=address, hub_token="pool", **few) as running:
            job = await starting_job(running)
            resting = await running.client("ada")
            await resting.hello()
            await resting.say(wire.Release(epoch=(await resting.acquire()).epoch))
            await running.until(lambda: running.machine.sessions[resting.session].state == "resident")
            sessions = []
            for who in ("ada", "ben"):
                client = await running.client(who)
                await client.hello()
                sessions.append(client.session)
                await client.ask()
            await running.until(lambda: running.leases)
            siege = Siege(running.service.url, await running.get("api/openapi.json", None))
            outside = running.machine.sessions[sessions[0]]
            outside.client.outside, served_by = True, outside.worker.id
            await asyncio.to_thread(siege.ask_what_has_each_answer, *sessions, resting.session, job, served_by)
            names = {**{name: [one] for name, one in PLACEHOLDERS.items()}, "session": sessions, "job": [job]}
            for operation in filter(answers, ROUTES):
                await asyncio.to_thread(siege.bombard, operation, names)
                expected = {(operation, operation.status), *((operation, status) for status in operation.refusals)}
                assert siege.seen >= expected, expected - siege.seen
            assert not running.service.stopped.is_set() and len(await running.get("api/devices")) == 1

    asyncio.run(scenario())


@asynccontextmanager
async def hub() -> AsyncIterator[str]:
    """A JupyterHub that starts every server at once."""

    class Server(RequestHandler):
        def get(self, _path: str) -> None:
            self.finish({"ready": True})

        def post(self, _path: str) -> None:
            self.set_status(201)

        def delete(self, _path: str) -> None:
            self.set_status(204)

    sockets = bind_sockets(0, "127.0.0.1")
    server = HTTPServer(Application([("/hub/api/users/(.*)", Server)], log_function=lambda _: None))
    server.add_sockets(sockets)
    yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}/hub/api"
    server.stop()
    await server.close_all_connections()


async def starting_job(running: Any) -> str:
    """A job of ada's whose runner is waited for."""
    made = await running.call("POST", "api/jobs", "ada", {"kind": "script", "file": "train.py"})
    number = str(json.loads(made.body)["id"])
    while (await running.get(f"api/jobs/{number}", "ada"))["state"] != "starting":
        await asyncio.sleep(0.02)
    return number


def test_a_link_that_is_asked_for_as_a_page_is_refused_as_described(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**HUB) as running:
            await running.until(lambda: any(worker.state == "warm" for worker in running.machine.fleet.workers.values()))
            (token,) = [process.environ()["FOREBAY_WORKER_TOKEN"] for process in psutil.Process().children() if is_worker(process)]
            siege = Siege(running.service.url, await running.get("api/openapi.json", None))
            for operation, who in zip(links, ("ada", token, "ada"), strict=True):
                await asyncio.to_thread(siege.bombard, operation, {}, who)
                handshake = {"Connection": "keep-alive, Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
                for headers in ({}, handshake, {**handshake, "Sec-WebSocket-Key": "a" * 22 + "==", "Sec-WebSocket-Version": "0"}):
                    refused = await running.call("GET", operation.path, who, **headers)
                    assert (refused.code, json.loads(refused.body)["error"]["code"]) == (426, "upgrade_required")
                    connection = "Upgrade" if headers else "close"  # which is what the client asks for
                    assert (refused.headers["Upgrade"], refused.headers["Connection"]) == ("websocket", connection)
                    assert (await running.call("GET", operation.path, None, **headers)).code == 401
            assert siege.seen == {(operation, 426) for operation in links}

    links = [operation for operation in ROUTES if operation.status == SWITCHING]
    asyncio.run(scenario())


def is_worker(process: psutil.Process) -> bool:
    return "FOREBAY_WORKER_TOKEN" in process.environ()


class Siege:
    """Asks a pool, holds each answer against the description, and notes with which statuses each operation answered."""

    def __init__(self, url: str, description: dict[str, Any]) -> None:
        self.seen: set[tuple[Route, int]] = set()
        self._url = url.rstrip("/")
        self._schema = schemathesis.openapi.from_dict(description)

    def ask_what_has_each_answer(self, holder: str, waiting: str, resting: str, job: str, worker: str) -> None:
        """The answers that chance would rarely meet. ``holder`` has a lease, ``waiting`` waits for one, ``resting`` is resident; ``job``
        starts; ``worker`` serves ``holder``, from outside."""
        park = "POST api/sessions/{session}/park"
        choice, revoke, move = "PUT api/choice", "POST api/sessions/{session}/revoke", "POST api/sessions/{session}/move"
        flavor = {"memory_bytes": 2**30, "equivalents": [{"model": "cpu-dev", "share_milli": 250}], "residents_max": 3}
        begin, printed, end = (f"POST api/jobs/{{job}}/{what}" for what in ("begin", "printed", "end"))
        submit, cancel, key, other = "POST api/jobs", "POST api/jobs/{job}/cancel", {"key": "a" * 32}, {"key": "b" * 32}
        program = {"kind": "script", "file": "train.py", "arguments": ["--epochs", "3"], "folder": "work"}
        schedule = ("POST api/schedules", "ada", {}, {**program, "cron": "30 2 * * 1-5", "zone": "Asia/Seoul"})
        notebook, one = ("POST api/shared-notebooks", "ada", {}, {"name": "n", "page": "<p>", "days": 1}), "api/shared-notebooks/{shared}"
        piece, over = {"pieces": [{"number": 1, "text": "x"}]}, {"exit_status": 0, "reason": None}
        quota = {"devices_milli": 1500, "device_seconds": 3600, "window_seconds": 86_400, "on_exhausted": "revoke"}
        for named, who, parameters, body in (
            ("GET api/doors/{tenant}/{user}/{worker}", "dashboards", {"tenant": "acme", "user": "ada", "worker": worker}, None),
            (choice, "ada", {}, {"flavor": "dev.1gb"}),
            (choice, "ada", {}, {"flavor": "large.256gb"}),
            (park, "operator", {"session": waiting}, None),
            (park, "operator", {"session": resting}, None),
            (move, "operator", {"session": waiting}, None),
            (move, "operator", {"session": holder}, None),
            (park, "operator", {"session": "none"}, None),
            (move, "operator", {"session": "none"}, None),
            (revoke, "operator", {"session": "none"}, None),
            (revoke, "operator", {"session": waiting}, None),
            (revoke, "operator", {"session": holder}, None),
            (begin, "ada", {"job": job}, key),
            (begin, "ada", {"job": job}, other),
            (printed, "ada", {"job": job}, {**key, **piece}),
            (printed, "ada", {"job": job}, {**other, **piece}),
            ("GET api/jobs/{job}/output", "ada", {"job": job}, None),
            (end, "ada", {"job": job}, {**other, **over}),
            (end, "ada", {"job": job}, {**key, **over}),
            (cancel, "ada", {"job": job}, None),
            *((submit, "ada", {}, program) for _ in range(3)),
            (cancel, "operator", {"job": str(int(job) + 1)}, None),
            *((what, "ada", {"job": "999"}, {**key, **more}) for what, more in ((begin, {}), (printed, piece), (end, over))),
            *(schedule for _ in range(3)),
            ("DELETE api/schedules/{schedule}", "ada", {"schedule": "1"}, None),
            *(notebook for _ in range(3)),
            *((f"GET {one}{part}", "ada", {"shared": shared}, None) for part in ("", "/page") for shared in ("1", "9")),
            *(("DELETE " + one, "ada", {"shared": "2"}, None) for _ in range(2)),
            ("DELETE api/sessions/{session}", "ada", {"session": resting}, None),
            ("PUT api/devices/{device}", "operator", {"device": "main/cpu:0"}, {"cordoned": False}),
            ("PUT api/devices/{device}", "operator", {"device": "none"}, {"cordoned": False}),
            ("PUT api/models/{model}", "operator", {"model": "none"}, {"tenants": ["acme"]}),
            ("PUT api/models/{model}", "operator", {"model": "cpu-dev"}, {"tenants": ["acme"]}),
            ("PUT api/flavors/{name}", "operator", {"name": "quarter.1gb"}, flavor),
            *(("DELETE api/flavors/{name}", "operator", {"name": name}, None) for name in ("quarter.1gb", "quarter.1gb", "dev.1gb")),
            ("PUT api/quotas/{tenant}", "operator", {"tenant": "globex"}, quota),
            ("PUT api/quotas/{tenant}/{user}", "operator", {"tenant": "globex", "user": "ada"}, quota),
            ("PUT api/quotas/{tenant}", "operator", {"tenant": "globex"}, quota | {"expected": '"gone"'}),
            ("PUT api/quotas/{tenant}/{user}", "operator", {"tenant": "globex", "user": "ada"}, quota | {"expected": '"gone"'}),
        ):
            operation = next(one for one in ROUTES if f"{one.method} {one.shown}" == named)
            given: dict[str, Any] = {} if body is None else {"body": {k: v for k, v in body.items() if k != "expected"}}
            given |= {} if body is None else {"media_type": "application/json"}
            given |= {"headers": {"If-Match": body["expected"]}} if body and "expected" in body else {}
            self._ask(operation, self._described(operation).Case(path_parameters=parameters, **given), who)

    def bombard(self, operation: Route, names: dict[str, list[str]], *bearers: str) -> None:
        """Good and bad bodies, paths with known and unknown names, from people with different scopes, or the bearers of these tokens."""
        varies = operation.body is not None or operation.query is not None or bool(operation.parameters)
        modes = GenerationMode if varies else [GenerationMode.POSITIVE]
        cases = st.one_of([self._described(operation).as_strategy(generation_mode=mode) for mode in modes])
        known = st.fixed_dictionaries({name: st.sampled_from(names[name]) for name in operation.parameters})
        who = st.sampled_from(bearers or [*BY_SCOPE.values(), *["operator"] * 4, "guest", "nobody"])

        @given(case=cases, parameters=st.none() | known, who=who)
        @settings(
            max_examples=settings.get_profile("costly").max_examples if varies else 10,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def send(case: Any, parameters: dict[str, str] | None, who: str) -> None:
            if parameters:
                case.path_parameters = parameters
            self._ask(operation, case, who)

        send()

    def _described(self, operation: Route) -> Any:
        return self._schema["/" + operation.shown][operation.method]

    def _ask(self, operation: Route, case: Any, who: str) -> None:
        headers = {"Authorization": f"token {who}"}
        for name, value in dict(case.headers or {}).items():  # RFC 9110, section 5.5: no server hears of a field with these
            if not str(value).isprintable():
                del case.headers[name]
        response = case.call_and_validate(base_url=self._url, headers=headers, checks=CHECKS, timeout=10)
        self.seen.add((operation, response.status_code))
