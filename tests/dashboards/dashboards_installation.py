"""The dashboards as a process, between a real pool and a real billing service, signed in by a small hub of our own.

The hub answers the three questions JupyterHub is asked (whose token, sign in, token for a code); a real JupyterHub is used by the
acceptance tests.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import ssl
import subprocess
import sys
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import fork_server
import httpx
from forebay_service.identity import BILLING, COMPUTE, OPERATE, SERVICE, TENANT
from forebay_wire import messages as wire
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from websockets.sync.client import ClientConnection, connect

ROOT = Path(__file__).parents[2]
PREFIX = "/services/dashboards/"
ACCESS = "access:services!service=dashboards"
START_SECONDS = 60
PYTHONPATH = os.pathsep.join(str(ROOT / name) for name in ("wire", "service", "pool", "billing", "dashboards"))


def person(name: str, tenant: str | None, *scopes: str) -> dict[str, Any]:
    """A user as JupyterHub describes one."""
    held = [ACCESS, *(scope.replace("USER", name) for scope in scopes)]
    return {"kind": "user", "name": name, "groups": [f"tenant-{tenant}"] if tenant else [], "admin": False, "scopes": held}


PEOPLE = {
    "acme-member": person("acme-member", "acme", f"{COMPUTE}!user=USER"),
    "acme-owner": person("acme-owner", "acme", f"{COMPUTE}!user=USER", f"{TENANT}!group=tenant-acme"),
    "acme-billing": person("acme-billing", "acme", f"{COMPUTE}!user=USER", f"{BILLING}!group=tenant-acme"),
    "globex-owner": person("globex-owner", "globex", f"{COMPUTE}!user=USER", f"{TENANT}!group=tenant-globex"),
    "operator": person("operator", None, OPERATE),
    "newcomer": person("newcomer", "initech", f"{COMPUTE}!user=USER", f"{TENANT}!group=tenant-initech"),
    "stranger": {**person("stranger", "acme", f"{COMPUTE}!user=USER"), "scopes": []},
    "service": {"kind": "service", "name": "service", "scopes": [ACCESS, SERVICE]},
}


def groups() -> dict[str, list[str]]:
    """The groups of JupyterHub, and who is in them; one of them is no tenant."""
    found: dict[str, list[str]] = {"readers": ["acme-member"]}
    for who, model in PEOPLE.items():
        for name in model.get("groups", ()):
            found.setdefault(name, []).append(who)
    return found


def role_of(name: str) -> str:
    """What a login is in its tenant, as :mod:`forebay_hub.people` says it."""
    held = [scope.partition("!")[0] for scope in PEOPLE[name]["scopes"]]
    return "owner" if TENANT in held else "billing" if BILLING in held else "member"


class Hub:
    """Answers as JupyterHub does. ``sign_in_as`` is whose browser comes to the authorization page."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.tokens = {name: secrets.token_hex(16) for name in PEOPLE}
        self.sign_in_as = "acme-member"
        self.codes: dict[str, str] = {}
        self.challenges: dict[str, str] = {}
        """By code: what the service has to prove that it knows (PKCE)."""
        self.servers: set[str] = set()
        """Paths of the servers of jobs; what runs in them is what a test says in its runner's place."""
        self.broken = False
        self.groups_told = 1
        """In an answer: one at a time, so that somebody must ask for the next."""
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,))
        self._thread.start()
        ready.wait()

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}/hub/api"

    def token_of_service(self, name: str) -> str:
        """All of them have one."""
        return self.tokens["service"]

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()
        self._loop.close()

    def _run(self, ready: threading.Event) -> None:
        self._loop.run_until_complete(self._serve(ready))

    async def _serve(self, ready: threading.Event) -> None:
        self._stopped = asyncio.Event()
        hub = self

        class User(RequestHandler):
            def get(self) -> None:
                token = self.request.headers.get("Authorization", "").removeprefix("token ")
                names = [name for name, known in hub.tokens.items() if known == token]
                if hub.broken:
                    self.set_status(503)
                elif names:
                    self.finish(PEOPLE[names[0]])
                else:
                    self.set_status(403)

        class Authorize(RequestHandler):
            def get(self) -> None:
                code = secrets.token_hex(8)
                hub.codes[code] = hub.sign_in_as
                hub.challenges[code] = self.get_argument("code_challenge")
                self.redirect(self.get_argument("redirect_uri") + "?" + urlencode({"code": code, "state": self.get_argument("state")}))

        class Token(RequestHandler):
            def post(self) -> None:
                code, verifier = self.get_body_argument("code"), self.get_body_argument("code_verifier")
                proof = urlsafe_b64encode(sha256(verifier.encode()).digest()).decode().rstrip("=")
                if hub.challenges.pop(code) != proof:
                    self.set_status(400)
                    return
                self.finish({"access_token": hub.tokens[hub.codes.pop(code)], "token_type": "Bearer"})

        class Server(RequestHandler):
            def get(self) -> None:
                if self.request.path in hub.servers:
                    self.finish({"ready": True, "pending": None})
                else:
                    self.set_status(404)

            def post(self) -> None:
                hub.servers.add(self.request.path)
                self.set_status(201)

            def delete(self) -> None:
                hub.servers.discard(self.request.path)
                self.set_status(204)

        routes = [
            ("/hub/api/user", User),
            ("/hub/api/users/[^/]+/servers/job-[0-9]+", Server),
            *directory_routes(hub),
            ("/hub/api/oauth2/authorize", Authorize),
            ("/hub/api/oauth2/token", Token),
        ]
        sockets = bind_sockets(0, "127.0.0.1")
        self.port = sockets[0].getsockname()[1]
        server = HTTPServer(Application(routes, log_function=lambda handler: None), ssl_options=self._tls)
        server.add_sockets(sockets)
        ready.set()
        await self._stopped.wait()
        server.stop()
        await server.close_all_connections()


def directory_routes(hub: Hub) -> list[tuple[str, type[RequestHandler]]]:
    """Who is in which group and role. Groups only our services may ask for, the people of a tenant its own admins and operators."""

    def asks(handler: RequestHandler) -> str | None:
        token = handler.request.headers.get("Authorization", "").removeprefix("token ")
        return next((name for name, known in hub.tokens.items() if known == token), None)

    class People(RequestHandler):
        def get(self, tenant: str, what: str) -> None:
            who, found = PEOPLE[asks(self) or "stranger"], groups()
            own = f"tenant-{tenant}" in who.get("groups", ()) and any(scope in str(who["scopes"]) for scope in (TENANT, BILLING))
            if not (own or OPERATE in who["scopes"]):
                self.set_status(403)
            elif f"tenant-{tenant}" not in found:
                self.set_status(404)
                self.finish({"error": {"code": "not_found", "message": f"There is no tenant {tenant}."}})
            elif what == "invitations":
                self.finish({"invitations": []})
            else:
                members = [{"name": name, "role": role_of(name)} for name in sorted(found[f"tenant-{tenant}"])]
                self.finish({"members": members})

    class Audit(RequestHandler):
        def get(self) -> None:
            self.finish({"entries": [], "next": None})

    class Groups(RequestHandler):
        """As many groups at a time as ``hub.groups_told`` says."""

        def get(self) -> None:
            if asks(self) != "service" or "jupyterhub-pagination" not in self.request.headers["Accept"]:
                self.set_status(403)
                return
            found, offset, limit = sorted(groups().items()), int(self.get_argument("offset")), hub.groups_told
            items = [{"kind": "group", "name": name, "users": users} for name, users in found[offset : offset + limit]]
            following = {"offset": offset + limit, "limit": limit, "url": "-"} if offset + limit < len(found) else None
            self.finish({"items": items, "_pagination": {"offset": offset, "limit": limit, "total": len(found), "next": following}})

    return [
        ("/hub/api/groups", Groups),
        ("/hub/api/forebay/tenants/([^/]+)/(members|invitations)", People),
        ("/hub/api/forebay/audit", Audit),
    ]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


INTERPRETERS = {
    "forebay_pool": fork_server.services,
    "forebay_billing": fork_server.billing,
    "forebay_dashboards": fork_server.dashboards,
}


@dataclass
class Process:
    """A service of ours as a process of its own."""

    module: str
    environment: dict[str, str]
    health_url: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    forked: bool = True
    """Whether it is a fork of one that has imported what it needs; ``process`` then stands for it."""

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, **self.environment}
        with self.log.open("ab") as log:
            command = [INTERPRETERS[self.module]() if self.forked and self.module in INTERPRETERS else sys.executable, "-m", self.module]
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=self.log.parent)
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.module} does not start:\n{self.log.read_text()}")
            try:
                if httpx.get(self.health_url).is_success:
                    return
            except httpx.TransportError:
                time.sleep(0.05)

    def stop(self) -> int:
        """Ends it as JupyterHub does; the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(timeout=60)

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops it for as long as the block runs; it runs again afterwards, however the block ends."""
        self.stop()
        try:
            yield
        finally:
            self.start()


@dataclass
class Installation:
    """Everything that runs, and how to speak to it."""

    hub: Hub
    billing: Process
    pool: Process
    dashboards: Process
    edge: Process
    urls: dict[str, str] = field(default_factory=dict)

    def get(self, who: str | None, path: str, **options: Any) -> httpx.Response:
        """A page of the dashboards, asked for with a token."""
        headers = {**({"Authorization": f"token {self.hub.tokens[who]}"} if who else {}), **options.pop("headers", {})}
        return httpx.get(self.urls["dashboards"] + path, headers=headers, timeout=60, **options)

    def post(self, who: str, path: str, data: dict[str, Any], fragment: bool = True) -> httpx.Response:
        """As the pages' scripts send it: what removes something was asked."""
        headers = {"Authorization": f"token {self.hub.tokens[who]}", **({"HX-Request": "true"} if fragment else {})}
        if "remove" in data or data.get("action") == "remove":
            data = {"asked": "1", **data}
        return httpx.post(self.urls["dashboards"] + path, data=data, headers=headers, timeout=60)

    def ask(self, service: str, who: str, method: str, path: str, **options: Any) -> Any:
        """An endpoint of pool or billing."""
        headers = {"Authorization": f"token {self.hub.tokens[who]}"}
        response = httpx.request(method, self.urls[service] + path, headers=headers, timeout=60, **options)
        response.raise_for_status()
        return response.json()

    def record_usage(self, **fields: Any) -> dict[str, Any]:
        """Posts a usage record to billing, as the pool does."""
        identifier = secrets.token_hex(8)
        record = {
            "source": "pool", "id": identifier, "tenant": "acme", "user": "acme-member", "session": "s", "lease": identifier,
            "span": {"id": identifier, "kind": "cell", "label": "digits.ipynb", "cell": 7}, "flavor": "dev.1gb", "device_model": "null",
            "devices": 1, "started_at_ns": time.time_ns() - 10**9, "duration_ns": 842_000_001, "close_reason": "drained", **fields,
        }  # fmt: skip
        self.ask("billing", "service", "POST", "api/usage", json={"records": [record]})
        return record

    @contextmanager
    def session(self, who: str, flavor: str = "dev.1gb") -> Iterator[Session]:
        """A process of ``who`` with a virtual device."""
        url = self.urls["pool"].replace("http", "ws", 1) + "api/session"
        with connect(url, additional_headers={"Authorization": f"token {self.hub.tokens[who]}"}) as link:
            link.send(wire.Hello(process="ipykernel", pid=1, torch="2.13.0", flavor=flavor).encode())
            opened = wire.to_client(link.recv(timeout=60))
            assert isinstance(opened, wire.SessionOpened), opened
            yield Session(link)


@dataclass
class Session:
    """The session link of a process, as the device package speaks it."""

    link: ClientConnection
    request: int = 0

    def acquire(self, label: str = "digits.ipynb", cell: int | None = 3) -> wire.Granted:
        """A lease for a cell, or for a process where ``cell`` is None."""
        self.ask(label, cell)
        while True:
            answer = wire.to_client(self.link.recv(timeout=60))
            if isinstance(answer, wire.Granted):
                return answer
            assert isinstance(answer, wire.Queued), answer

    def ask(self, label: str, cell: int | None) -> None:
        """Asks for a lease without waiting for it."""
        self.request += 1
        kind = "process" if cell is None else "cell"
        span = wire.Span(id=secrets.token_hex(8), kind=kind, label=label, cell=cell)
        self.link.send(wire.Acquire(request=self.request, span=span).encode())

    def release(self, epoch: int) -> wire.LeaseClosed:
        self.link.send(wire.Release(epoch=epoch).encode())
        closed = wire.to_client(self.link.recv(timeout=60))
        assert isinstance(closed, wire.LeaseClosed), closed
        return closed


def install(hub: Hub, worker_python: Path, folder: Path) -> Installation:
    """Describes the services; nothing is started."""
    ports = {name: free_port() for name in ("billing", "pool", "dashboards", "edge")}
    urls = {name: f"http://127.0.0.1:{port}/services/{name}/" for name, port in ports.items()}

    def process(name: str, **settings: str) -> Process:
        environment = {
            "JUPYTERHUB_API_URL": hub.url,
            "JUPYTERHUB_API_TOKEN": hub.token_of_service(name),
            "JUPYTERHUB_SERVICE_NAME": name,
            "JUPYTERHUB_SERVICE_PREFIX": f"/services/{name}/",
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{ports[name]}",
            "JUPYTERHUB_CLIENT_ID": f"service-{name}",
            "JUPYTERHUB_HOST": f"http://127.0.0.1:{hub.port}",
            "JUPYTERHUB_OAUTH_CALLBACK_URL": f"{urls[name]}oauth_callback",
            "JUPYTERHUB_OAUTH_ACCESS_SCOPES": f'["access:services!service={name}"]',
            **{f"FOREBAY_{name.upper()}_{key.upper()}": value for key, value in settings.items()},
        }
        return Process(f"forebay_{name}", environment, urls[name] + "health", folder / f"{name}.log")

    return Installation(
        hub,
        billing=process("billing", database_url=f"sqlite:///{folder / 'billing.sqlite3'}", grams_co2_per_kwh="400"),
        pool=process(
            "pool",
            state_dir=str(folder / "pool"),
            billing_url=urls["billing"],
            worker_python=str(worker_python),
            devices='[{kind = "null", model = "null", memory = "4 GiB", count = 2}]',
        ),
        dashboards=process(
            "dashboards", pool_url=urls["pool"], billing_url=urls["billing"], feed_retry_seconds_max="0.5", upstream_seconds="2"
        ),
        edge=process("edge", pool_url=urls["pool"]),
        urls=urls,
    )


@contextmanager
def running(installation: Installation, *names: str) -> Iterator[Installation]:
    """Starts the named services and ends them."""
    started: list[Process] = []
    try:
        for name in names:
            process: Process = getattr(installation, name)
            started.append(process)
            process.start()
        yield installation
    finally:
        statuses = [process.stop() for process in reversed(started) if process.process is not None and process.process.poll() is None]
    assert not any(statuses), statuses


def eventually(condition: Callable[[], object], seconds: float = 60) -> None:
    """Waits until ``condition`` holds, or fails after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)
