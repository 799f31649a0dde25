"""The address of a job's server: JupyterHub wants an answer there, and people who open it are told what it is."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

SILENCE_SECONDS_MAX = 10.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Page)


class _Page(BaseHTTPRequestHandler):
    server_version = "forebay"
    sys_version = ""
    timeout = SILENCE_SECONDS_MAX

    def do_GET(self) -> None:
        text = b"A job runs here, and no notebook. `forebay jobs list` in a terminal shows it, and so does the page of jobs.\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(text)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the output is the program's."""


@contextmanager
def served(url: str) -> Iterator[None]:
    """Answers at the address that JupyterHub gave (``JUPYTERHUB_SERVICE_URL``). Raises OSError."""
    parts = urlsplit(url)
    server = _Server(parts.hostname or "127.0.0.1", parts.port or 8888)
    threading.Thread(target=server.serve_forever, name="forebay-page", daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
