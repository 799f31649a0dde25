"""An agent: a client by the official SDK, before a server that it starts as agents' programs do."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

TICK_SECONDS = 1.0
"""How often the pool tells billing what runs, and hears what budgets do."""
WAIT_SECONDS = 30.0
TORCH = "import torch\nx = torch.ones(300, 300).cuda()\nx.sum().item()"
ENDLESS = "while True:\n    y = x @ x\n    y.sum().item()"


class Refusal(Exception):
    """What a tool answers in place of a result."""


class Agent:
    """Calls tools."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self._portal = portal
        self.client = client
        self.progress: list[tuple[float, str | None]] = []

    def call(self, tool: str, **arguments: Any) -> Any:
        """What a tool answers. Raises Refusal."""
        return self.begin(tool, **arguments).result()

    def begin(self, tool: str, **arguments: Any) -> Future[Any]:
        """Calls a tool, and waits for nothing; to cancel the future is to cancel the call."""
        return self._portal.start_task_soon(self._call, tool, arguments)

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        answer = await self.client.call_tool(tool, arguments, progress_callback=self._progressed)
        if answer.is_error:
            raise Refusal(answer.content[0].text)  # type: ignore[union-attr]  # refusals are texts
        found = answer.structured_content
        return found["result"] if isinstance(found, dict) and set(found) == {"result"} else found

    async def _progressed(self, done: float, _total: float | None, message: str | None) -> None:
        self.progress.append((done, message))

    def run(self, code: str, experiment: str = "main", **more: Any) -> Any:
        return self.call("run_code", code=code, experiment=experiment, **more)

    def budget(self, experiment: str, amount: str) -> Any:
        return self.call("set_budget", experiment=experiment, budget=amount)

    def experiment(self, name: str) -> Any:
        return next(row for row in self.call("list_experiments") if row["name"] == name)

    def tools(self) -> list[Any]:
        return list(self._portal.call(self.client.list_tools).tools)


def until(condition: Any, what: str) -> Any:
    """Asks again until it holds."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


@contextmanager
def serving(variables: dict[str, str]) -> Iterator[Agent]:
    """With a server of its own, which ends with it."""
    server = StdioServerParameters(command=sys.executable, args=["-m", "forebay", "mcp"], env=variables, cwd=variables["HOME"])
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Client(server)) as client:
        yield Agent(portal, client)


@contextmanager
def web_server(variables: dict[str, str], address: str = "0") -> Iterator[str]:
    """A server over HTTP: its URL."""
    command = [sys.executable, "-m", "forebay", "mcp", "--http", address]
    with subprocess.Popen(command, env=variables, cwd=variables["HOME"], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
    assert server.returncode == 0, "it ends in order"


@contextmanager
def reaching(url: str, token: str) -> Iterator[Agent]:
    """A client of a server over HTTP."""

    @asynccontextmanager
    async def client() -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as http, Client(streamable_http_client(url, http_client=http)) as made:
            yield made

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(client()) as found:
        yield Agent(portal, found)
