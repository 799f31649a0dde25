"""Servers of tools over HTTP, one for each token that agents show: processes in the user's environment, each with that token alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from forebay.errors import ForebayError
from forebay.service import TOKEN_VARIABLE
from forebay.toolkit.environments.environment import in_use
from forebay.toolkit.jobs.child_processes import end_with_parent

SERVERS_MAX = 8
START_SECONDS_MAX = 60.0
END_SECONDS_MAX = 10.0
IDLE_SECONDS = 3600.0
"""One that nobody asks for so long ends, with its kernels."""
LOOK_SECONDS = 60.0
PIPES: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
HUB = "JUPYTERHUB_"
"""How variables begin that are the notebook server's own, its token among them."""


@dataclass
class _Served:
    """A server, from when it is started on."""

    ready: asyncio.Future[int]
    """Its port; or why it does not start."""
    process: asyncio.subprocess.Process | None = None
    open: int = 0
    """Requests that are under way."""
    idle_since: float = field(default_factory=time.monotonic)


class TokenServers:
    """Starts them when they are first asked for, and ends those that nobody asks."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._environment = {name: value for name, value in environment.items() if not name.startswith(HUB)}
        self._servers: dict[str, _Served] = {}
        self._watch: asyncio.Task[None] | None = None

    async def use(self, token: str, work: Callable[[int], Awaitable[None]]) -> None:
        """Does ``work`` with the port of the token's server. Raises ForebayError where there can be none."""
        served = self._servers.get(token) or self._begin(token)
        served.open += 1
        try:
            await work(await asyncio.shield(served.ready))
        finally:
            served.open -= 1
            served.idle_since = time.monotonic()

    def _begin(self, token: str) -> _Served:
        if len(self._servers) >= SERVERS_MAX:
            raise ForebayError(f"Agents with {SERVERS_MAX} other tokens are served already; one of them has to be idle for an hour.")
        loop = asyncio.get_running_loop()
        served = self._servers[token] = _Served(loop.create_future())
        self._watch = self._watch or loop.create_task(self._end_idle())
        task = loop.create_task(self._start(token, served))
        served.ready.add_done_callback(lambda _: task)  # the loop alone would forget it
        return served

    async def _start(self, token: str, served: _Served) -> None:
        used = in_use()
        python = sys.executable if used is None else str(used.python)
        command = (python, "-m", "forebay", "mcp", "--http", "0")
        environment = {**self._environment, TOKEN_VARIABLE: token}
        try:
            served.process = process = await asyncio.create_subprocess_exec(*command, env=environment, preexec_fn=end_with_parent, **PIPES)
            served.ready.set_result(await _port_of(process))
            await process.communicate()
        except (OSError, TimeoutError, ValueError, ForebayError) as error:
            if not served.ready.done():
                served.ready.set_exception(error if isinstance(error, ForebayError) else ForebayError(f"It does not start: {error}."))
                served.ready.exception()  # whoever waits gets it
        finally:
            self._servers.pop(token, None)
            await _ended(served)

    async def _end_idle(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            await self.end_idle(time.monotonic() - IDLE_SECONDS)

    async def end_idle(self, since: float) -> None:
        """Ends those that nobody has asked from then on."""
        for served in list(self._servers.values()):
            if served.ready.done() and not served.open and served.idle_since <= since:
                await _ended(served)

    async def forget(self, token: str) -> None:
        """The token is nobody's any more."""
        if token in self._servers:
            await _ended(self._servers[token])


async def _port_of(process: asyncio.subprocess.Process) -> int:
    """Raises ForebayError with what it says if it does not start, TimeoutError."""
    out, err = process.stdout, process.stderr
    line = "" if out is None else (await asyncio.wait_for(out.readline(), START_SECONDS_MAX)).decode().strip()
    if line:
        return int(line.rsplit(":", 1)[1].partition("/")[0])
    said = "" if err is None else (await err.read()).decode(errors="replace").strip()
    raise ForebayError((said.splitlines() or ["It does not start."])[-1].removeprefix("forebay: "))


async def _ended(served: _Served) -> None:
    process = served.process
    if process is None or process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), END_SECONDS_MAX)
        except TimeoutError:
            process.kill()
            await process.wait()
