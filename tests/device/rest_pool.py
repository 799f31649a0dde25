"""An HTTP server that answers as docs/reference/http.md says, or as the test tells it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "a-token-of-the-test"
MEDIUM = {
    "name": "medium.128gb",
    "memory_bytes": 131_040 * 2**20,
    "equivalents": [
        {"model": "MI250", "count": 1, "share_milli": 1000},
        {"model": "MI210", "count": 2, "share_milli": 1000},
        {"model": "A100", "count": 1, "share_milli": 250},
    ],
    "images_kept": "process",
    "servable": False,
    "reason": "medium.128gb needs 1 MI250; this installation has 1 cpu-dev.",
    "price_nano_per_hour": 2_990_000_000,
    "currency": "USD",
}
DEV = {
    "name": "dev.1gb",
    "memory_bytes": 2**30,
    "equivalents": [{"model": "cpu-dev", "count": 1}],
    "images_kept": "process",
    "runtimes_served": ["torch", "exec"],
    "servable": True,
    "reason": None,
    "price_nano_per_hour": None,
    "currency": None,
}
SESSIONS = [
    {
        "session": "s-1",
        "tenant": "acme",
        "user": "acme-member",
        "flavor": "dev.1gb",
        "state": "active",
        "span": None,
        "process": "python train.py " + "x" * 60,
        "memory_bytes": 300 * 2**20,
        "image": {"bytes": 24 * 2**20, "at_ns": time.time_ns()},
        "position": None,
        "reason": None,
        "since_ns": 0,
        "device_model": "MI250",
    },
    {
        "session": "s-2",
        "tenant": "acme",
        "user": "acme-member",
        "flavor": "dev.1gb",
        "state": "queued",
        "span": None,
        "process": "digits.ipynb",
        "memory_bytes": 0,
        "image": None,
        "position": 2,
        "reason": "all devices are held",
        "since_ns": 0,
    },
]


class RestPool(ThreadingHTTPServer):
    """Keeps the choice that is put, and what else the test sets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.choice: str | None = "dev.1gb"
        self.refusal: tuple[int, bytes] | None = None
        self.answers: dict[str, Any] = {"api/flavors": [DEV, MEDIUM], "api/sessions": SESSIONS, "health": {}}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/pool"


class Handler(BaseHTTPRequestHandler):
    server: RestPool

    def do_GET(self) -> None:
        path = self.path.removeprefix("/services/pool/")
        answers = {**self.server.answers, "api/choice": {"flavor": self.server.choice}}
        self._answer(answers.get(path))

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.refusal is None:
            self.server.choice = body["flavor"]
        self._answer(body)

    do_POST = do_PUT

    def _answer(self, found: Any) -> None:
        status, content = (200, json.dumps(found).encode()) if found is not None else (404, b"no such page")
        if self.headers["Authorization"] != f"token {TOKEN}":
            status, content = 403, b"<html>forbidden</html>"
        if self.server.refusal is not None:
            status, content = self.server.refusal
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Quiet."""


@contextmanager
def served() -> Iterator[RestPool]:
    """While it is open, the pool answers."""
    server = RestPool()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
