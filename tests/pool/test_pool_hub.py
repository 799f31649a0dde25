"""JupyterHub while its database does not answer: it refuses everybody, and the pool ends nothing for that."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from forebay_pool.errors import HubRefused, HubUnavailable
from forebay_pool.jobs.hub import HubServers
from forebay_service.identity import CACHE_SECONDS, COMPUTE, CONFIRM_SECONDS, HubAuthenticator
from forebay_wire import messages as wire
from tornado.httpclient import HTTPResponse

Make = Callable[..., Any]


class FailingHub:
    """Answers as JupyterHub does: each token is a person's name, and nobody is known while ``ill`` is set."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.ill = False
        self.known = {"pool", "ada"}
        self.servers: set[str] = set()

    def answer(self, method: str, path: str, token: str) -> tuple[int, object]:
        if self.ill or token not in self.known:
            return 403, {"message": "Missing or invalid credentials."}
        if path.endswith("/user"):
            groups = ["tenant-acme"] if token != "pool" else []
            return 200, {"name": token, "kind": "service" if token == "pool" else "user", "groups": groups, "scopes": [COMPUTE]}
        _, _, server = path.rpartition("/")
        if "/users/gone/" in path:
            return 404, {"message": "No such user"}
        if method == "POST":
            self.servers.add(server)
            return 201, {}
        if server not in self.servers:
            return 404, {"message": "No such server"}
        return (204, None) if method == "DELETE" else (200, {"ready": True})


@pytest.fixture
def failing_hub() -> Iterator[FailingHub]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, answer = hub.answer(self.command, self.path, self.headers["Authorization"].split()[-1])
            body = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET

        def log_message(self, *arguments: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = FailingHub(f"http://127.0.0.1:{server.server_port}/hub/api")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield hub
        server.shutdown()
        thread.join()


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_hub_that_refuses_everybody_for_an_hour_ends_no_session(
    pool: Make, failing_hub: FailingHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its database is away, its disk is full: health says so, nobody new is let in, and all goes on by itself."""
    monkeypatch.setattr("forebay_pool.service.TOKEN_CHECK_SECONDS", 3600)  # looks are made here
    clock = Clock()

    async def scenario() -> None:
        authenticator = HubAuthenticator(failing_hub.url, clock, "pool")
        async with pool(authenticator=authenticator) as running:

            async def look(seconds: float) -> None:
                clock.now += seconds
                for link in list(running.service.shell.clients.values()):
                    await link.check_token()

            async def health() -> Any:
                await running.get("health", None)  # begins a look
                assert authenticator._look is not None
                await authenticator._look
                return await running.get("health", None)

            client = await running.client("ada")
            await client.hello()
            await client.acquire()
            assert (await health())["troubles"] == {}
            failing_hub.ill = True
            for _ in range(4):
                await look(20 * CONFIRM_SECONDS)
            assert "its database does not answer" in (await health())["troubles"]["hub"]
            refused: HTTPResponse = await running.call("GET", "api/sessions", "ada")
            assert refused.code == 503
            assert client.session in running.machine.sessions and len(running.leases) == 1
            failing_hub.ill = False
            await look(CACHE_SECONDS)
            assert (await health())["troubles"] == {}
            failing_hub.known.discard("ada")
            await look(CONFIRM_SECONDS)  # refused once
            await look(CONFIRM_SECONDS - 1)
            assert client.session in running.machine.sessions
            await look(CACHE_SECONDS)
            assert (await client.hears(wire.LeaseClosed)).reason == "revoked"
            assert (await client.hears(wire.SessionLost)).message.startswith("The token of this process has expired or was revoked")

    asyncio.run(scenario())


def test_a_hub_that_refuses_everybody_costs_no_job_its_run(failing_hub: FailingHub) -> None:
    """What JupyterHub says of a user or a server that is gone, it says of all where its database is away."""
    servers = HubServers(failing_hub.url, "pool")

    async def scenario() -> None:
        await servers.start("ada", "job-1")
        assert await servers.is_there("ada", "job-1") and not await servers.is_there("ada", "job-2")
        with pytest.raises(HubRefused):
            await servers.start("gone", "job-3")
        failing_hub.ill = True
        for call in (servers.start, servers.is_there, servers.remove):
            with pytest.raises(HubUnavailable, match=r"answered 403 .* does not know the pool's own token"):
                await call("ada", "job-1")
        failing_hub.ill = False
        assert await servers.remove("ada", "job-1") and await servers.remove("ada", "job-2")

    asyncio.run(scenario())
