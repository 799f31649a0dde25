"""A proxy between browser and notebook server is killed and starts again while a cell computes: the cell goes on, and so does the page."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from notebook_page import GATED, NotebookPage

pytestmark = [pytest.mark.slow, pytest.mark.full_sweep]

COMPUTES = f"import os, torch\nx = torch.ones(64, 64, device='cuda')\nprint('begun', flush=True)\n{GATED}\nprint('ended', x.sum().item())"
CHUNK_BYTES = 65_536
BACK_SECONDS = 60
AWAY_MS = 3_000
"""As long as a proxy takes to start again."""


class Relay:
    """Passes connections on to a server. Cut, it closes all and takes no new ones, as one that was killed."""

    def __init__(self, server: tuple[str, int]) -> None:
        self._server = server
        self._port = 0
        self._listener: socket.socket | None = None
        self._open: set[socket.socket] = set()
        self.taken = 0
        """Connections that were passed on."""

    def start(self) -> str:
        """Its address, which stays the same."""
        listener = socket.create_server(("127.0.0.1", self._port))
        self._port = listener.getsockname()[1]
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return f"http://127.0.0.1:{self._port}"

    def cut(self) -> None:
        if self._listener is not None:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        for one in list(self._open):
            self._end(one)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._server)
            self.taken += 1
            self._open |= {client, server}
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._pass, args=(source, target), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        try:
            while chunk := source.recv(CHUNK_BYTES):
                target.sendall(chunk)
        except OSError:
            pass
        self._end(source)
        self._end(target)

    def _end(self, one: socket.socket) -> None:
        self._open.discard(one)
        try:
            one.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        one.close()


@pytest.fixture(scope="module")
def relay(server: Any) -> Iterator[Relay]:
    address = urlsplit(server.url)
    relay = Relay((address.hostname or "", address.port or 0))
    yield relay
    relay.cut()


@pytest.fixture(scope="module")
def notebook(browser: Any, server: Any, relay: Relay) -> Iterator[NotebookPage]:
    server.write("cut.ipynb", COMPUTES)
    page = NotebookPage(browser, replace(server, url=relay.start()), "lab", "cut.ipynb")
    yield page
    page.close()


def test_a_cell_and_its_panel_go_on_when_the_proxy_was_away(notebook: NotebookPage, relay: Relay, cloud: Any) -> None:
    with notebook.computing(0):
        notebook.await_output(0, "begun")
        notebook.open_panel()
        sessions = [row["session"] for row in cloud.ask("pool", "operator", "GET", "api/sessions")]
        before = relay.taken
        relay.cut()
        notebook.page.wait_for_timeout(AWAY_MS)
        relay.start()
        deadline = time.monotonic() + BACK_SECONDS
        while relay.taken == before:
            assert time.monotonic() < deadline, "the page does not come back"
            notebook.page.wait_for_timeout(50)
        assert notebook.prompt(0) == "[*]:" and "computing" in notebook.status()
        assert [row["session"] for row in cloud.ask("pool", "operator", "GET", "api/sessions")] == sessions
    assert re.search("begun.*ended 4096.0", notebook.ended(0), re.DOTALL)
    notebook.await_status("resident")
    dismiss = notebook.page.locator(".jp-Dialog:visible", has_text="unavailable or unreachable").get_by_text("Dismiss")
    if dismiss.count():  # JupyterLab asks whether to start the server again, and goes on behind its question
        dismiss.click()
    assert notebook.run(0).count("ended") == 1, "the page asks the kernel as before"
