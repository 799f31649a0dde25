"""A pool that answers a spawner's requests, and what a spawner needs of JupyterHub to be built without a hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

OFFERS = [
    {"name": "dev.1gb", "memory_bytes": 2**30, "servable": True, "reason": None, "price_nano_per_second": 10_000, "currency": "USD"},
    {"name": "dev.4gb", "memory_bytes": 2**32, "servable": True, "reason": None, "price_nano_per_second": 100_000, "currency": "USD"},
    {
        "name": "small.64gb",
        "memory_bytes": 2**36,
        "servable": False,
        "reason": "needs 1 MI250, of which there are none",
        "price_nano_per_second": 830_556,
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
    choices: list[tuple[str | None, str]] = field(default_factory=list)
    """What was chosen, and with which token."""


@pytest.fixture
def pool() -> Iterator[Pool]:
    state = Pool()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.tokens.append(self.headers["Authorization"])
            self.send_response(state.status if self.path == "/services/pool/api/flavors" else 404)
            self.send_header("Content-Length", str(len(state.body)))
            self.end_headers()
            self.wfile.write(state.body)

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
    return SimpleNamespace(name="acme-member", id=1, url="/user/acme-member/", escaped_name="acme-member", groups=groups)
