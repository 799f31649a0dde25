"""People who wait for one device, over real links: what they are told, and how they come back to a pool that took another's place."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.request import Request, urlopen

from forebay_wire import messages as wire
from websockets.asyncio.client import ClientConnection, connect

PATIENCE_SECONDS = 30.0


class Person:
    """A process of somebody's with a session link; its token is its name."""

    def __init__(self, name: str, priority: int = 0) -> None:
        self.name = name
        self.priority = priority
        self.link: ClientConnection | None = None
        self.opened: wire.SessionOpened | None = None

    async def _connect(self, port: int) -> None:
        headers = {"Authorization": f"token {self.name}"}
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                try:
                    self.link = await connect(f"ws://127.0.0.1:{port}/api/session", additional_headers=headers, proxy=None)
                    return
                except Exception:  # whatever a port says behind which no pool leads yet
                    await asyncio.sleep(0.02)

    async def say(self, message: wire.Message) -> None:
        assert self.link is not None
        await self.link.send(message.encode())

    async def hears(self, kind: type[Any]) -> Any:
        assert self.link is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                message = wire.to_client(await self.link.recv())
                if isinstance(message, kind):
                    return message

    async def join(self, port: int) -> None:
        await self._connect(port)
        await self.say(wire.Hello(process="python", pid=1, torch="2.13.0", priority=self.priority))
        self.opened = await self.hears(wire.SessionOpened)

    async def ask(self, number: int = 1) -> None:
        await self.say(wire.Acquire(request=number, span=wire.Span(id=f"{self.name}-{number}", kind="cell", label="n.ipynb", cell=1)))

    async def back(self, port: int, number: int = 1) -> None:
        """As the virtual device does it: resumes, and asks again for what was not answered."""
        await self._connect(port)
        assert self.opened is not None and self.opened.resume_key is not None
        await self.say(wire.ResumeSession(session=self.opened.session, key=self.opened.resume_key))
        self.opened = await self.hears(wire.SessionOpened)
        await self.ask(number)

    async def leave(self) -> None:
        assert self.link is not None
        await self.link.close()


async def call(port: int, path: str, method: str = "GET", body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://127.0.0.1:{port}/{path}", data, {"Authorization": "token operator"}, method=method)

    def fetch() -> Any:
        with urlopen(request, timeout=PATIENCE_SECONDS) as answer:  # noqa: S310
            return json.load(answer)

    return await asyncio.to_thread(fetch)


async def queue(port: int, names: list[str]) -> list[tuple[str, int, int]]:
    """Who waits, with priority and since when, as soon as they do in this order: a pool looks again at newcomers later."""
    rows: list[dict[str, Any]] = []
    deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while [row["user"] for row in rows] != names or len({row["position"] for row in rows}) != len(names):
        assert asyncio.get_running_loop().time() < deadline, rows
        await asyncio.sleep(0.05)
        rows = await call(port, "api/queue")
    return [(row["user"], row["priority"], row["since_ns"]) for row in rows]
