"""Where a service's answer leads elsewhere, the token does not go along."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from forebay.errors import PoolRefused
from forebay.service import Service


@contextmanager
def server(location: str | None) -> Iterator[tuple[int, list[str | None]]]:
    """Answers all with a redirect, or with ``{}``; the port, and the Authorization of each request."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_response(200 if location is None else 302)
            if location is not None:
                self.send_header("Location", location)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        try:
            yield running.server_port, seen
        finally:
            running.shutdown()
            thread.join()


@pytest.mark.parametrize(("host", "goes_along"), [("127.0.0.1", True), ("localhost", False)])
def test_the_token_goes_along_to_the_same_host_alone(host: str, goes_along: bool) -> None:
    with server(None) as (port, there), server(f"http://{host}:{port}/x") as (first, here):
        assert Service(f"http://127.0.0.1:{first}/", "secret").get("x") == {}
    assert here == ["token secret"]
    assert there == ["token secret" if goes_along else None]


def test_redirects_without_an_end_are_one_refusal() -> None:
    with server("/x") as (port, seen), pytest.raises(PoolRefused, match="HTTP status 302"):
        Service(f"http://127.0.0.1:{port}/", "secret").get("x")
    assert len(seen) <= 11
