"""A pool and a billing service that answer a spawner's requests, and what a spawner needs of JupyterHub to be built without a hub."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

OFFERS = [
    {
        "name": "dev.1gb",
        "memory_bytes": 2**30,
        "equivalents": [{"model": "cpu-dev", "count": 1, "share_milli": 250}],
        "servable": True,
        "reason": None,
        "price_nano_per_hour": 36_000_000,
        "currency": "USD",
        "waiting": 0,
        "wait_seconds": 0.0,
    },
    {
        "name": "dev.4gb",
        "memory_bytes": 2**32,
        "equivalents": [
            {"model": "cpu-dev", "count": 1, "share_milli": 1000},
            {"model": "T4", "count": 2, "share_milli": 1000, "devices": 2},
            {"model": "L4", "count": 1, "devices": 0},
        ],
        "servable": True,
        "reason": None,
        "price_nano_per_hour": 360_000_000,
        "currency": "USD",
        "waiting": 3,
        "wait_seconds": 130.4,
    },
    {
        "name": "small.64gb",
        "memory_bytes": 2**36,
        "servable": False,
        "reason": "needs 1 MI250, of which there are none",
        "price_nano_per_hour": 2_990_000_000,
        "currency": "USD",
    },
]


@dataclass
class Pool:
    """What the pool answers next, and the tokens it was shown."""

    url: str = ""
    status: int = 200
    body: bytes = json.dumps(OFFERS).encode()
    tokens: list[str | None] = field(default_factory=list)
    choice: bytes = b'{"flavor": "dev.4gb"}'
    budgets: bytes = b"[]"
    choices: list[tuple[str | None, str]] = field(default_factory=list)
    """What was chosen, and with which token."""


@pytest.fixture
def pool() -> Iterator[Pool]:
    state = Pool()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.tokens.append(self.headers["Authorization"])
            pool, billing = "/services/pool/api/", "/services/billing/api/"
            answers = {f"{pool}flavors": state.body, f"{pool}choice": state.choice, f"{billing}budgets": state.budgets}
            body = answers.get(self.path, b"")
            self.send_response(state.status if body else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.choices.append((self.headers["Authorization"], json.loads(body)["flavor"]))
            self.send_response(200 if self.path == "/services/pool/api/choice" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        state.url = f"http://127.0.0.1:{server.server_port}/services/pool/"
        yield state
        server.shutdown()
        thread.join()


@pytest.fixture
def hub() -> Any:
    return SimpleNamespace(public_host="", url="/hub/", base_url="/hub/", api_url="http://127.0.0.1:9/hub/api", server=None)


@pytest.fixture
def user() -> Any:
    groups = [SimpleNamespace(name="tenant-acme")]
    asked: list[dict[str, Any]] = []

    def new_api_token(**how: Any) -> str:
        asked.append(how)
        return "visitors-token"

    name = "acme-member"
    user = SimpleNamespace(name=name, id=1, url=f"/user/{name}/", escaped_name=name, groups=groups)
    user.new_api_token, user.asked = new_api_token, asked
    return user
