"""``flooders.py URL KIND [KIND …]``: fifty members who send a pool whatever costs it time, each as fast as the pool reads, until killed.

Says ``flooding`` once all of them have begun. Each kind is a function here; members take the kinds in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import resource
import sys
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from flooded_pool import FLOODERS
from forebay_wire import messages as wire
from websockets.asyncio.client import ClientConnection, connect

IDLE_EACH = 60
BODY_BYTES = 16 * 2**20
PATHS = ("api/flavors", "api/sessions", "api/queue", "api/leases", "api/jobs", "api/nodes", "api/trends", "api/nothing", "health")


async def _linked(url: str, who: str) -> ClientConnection:
    headers = {"Authorization": f"token {who}"}
    link = await connect(url.replace("http", "ws", 1) + "api/session", additional_headers=headers, compression=None, ping_interval=None)
    await link.send(wire.Hello(process="flood", pid=1, torch="2.13.0", flavor="flood-1").encode())
    return link


async def _send_forever(url: str, who: str, *messages: wire.Message) -> None:
    """Again and again, while its request waits."""
    link = await _linked(url, who)
    reader = asyncio.create_task(_read(link))
    await link.send(_acquire(1).encode())
    for message in itertools.cycle(one.encode() for one in messages):
        await link.send(message)
    await reader


async def _read(link: ClientConnection) -> None:
    async for _ in link:
        pass


def _acquire(number: int) -> wire.Acquire:
    return wire.Acquire(request=number, span=wire.Span(id=f"s{number}", kind="cell", label="n.ipynb", cell=1))


async def priorities(url: str, who: str) -> None:
    await _send_forever(url, who, wire.ChoosePriority(priority=1), wire.ChoosePriority(priority=2))


async def flavors(url: str, who: str) -> None:
    await _send_forever(url, who, wire.ChooseFlavor(flavor="flood-1"), wire.ChooseFlavor(flavor="flood-2"))


async def requests(url: str, who: str) -> None:
    """Asks for what it cannot get, and takes it back."""
    await _send_forever(url, who, _acquire(1), wire.ChooseFlavor(flavor="flood-2"), wire.ChoosePriority(priority=3), wire.Cancel(request=1))


async def pings(url: str, who: str) -> None:
    link = await _linked(url, who)
    while True:
        await link.ping(b"x")


async def gets(url: str, who: str) -> None:
    """Many requests on one connection, none of whose answers it waits for."""
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    drained = asyncio.create_task(_drain(reader))
    for path in itertools.cycle(PATHS):
        writer.write(f"GET {where.path}{path} HTTP/1.1\r\nHost: x\r\nAuthorization: token {who}\r\n\r\n".encode())
        await writer.drain()
    await drained


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(65_536):
        pass


async def bodies(url: str, who: str) -> None:
    """The beginning of a long body, on many connections, and slowly on."""
    where = urlsplit(url)
    opened = []
    for _ in range(8):
        _, writer = await asyncio.open_connection(where.hostname, where.port)
        head = f"POST {where.path}api/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: token {who}\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
        writer.write(head.encode() + b" " * (BODY_BYTES // 2))
        opened.append(writer)
    while True:
        for writer in opened:
            writer.write(b" ")
        await asyncio.sleep(1)


async def strangers(url: str, who: str) -> None:
    """Tokens of nobody."""
    for number in itertools.count():
        await gets_once(url, f"{who}-{number}")


async def gets_once(url: str, token: str) -> None:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(f"GET {where.path}api/flavors HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: token {token}\r\n\r\n".encode())
    with contextlib.suppress(ConnectionError):
        await _drain(reader)
    writer.close()


async def idlers(url: str, who: str) -> None:
    """Connections on which nothing comes."""
    where = urlsplit(url)
    opened = [await asyncio.open_connection(where.hostname, where.port) for _ in range(IDLE_EACH)]
    await asyncio.Event().wait()
    del opened


KINDS: dict[str, Callable[[str, str], Awaitable[None]]] = {
    kind.__name__: kind for kind in (priorities, flavors, requests, pings, gets, bodies, strangers, idlers)
}


async def again(kind: Callable[[str, str], Awaitable[None]], url: str, who: str) -> None:
    """Whom the pool throws out comes again at once."""
    while True:
        with contextlib.suppress(Exception):
            await kind(url, who)
        await asyncio.sleep(0.1)


async def main(url: str, *kinds: str) -> None:
    members = [f"flooder-{number}" for number in range(FLOODERS)]
    floods = [asyncio.create_task(again(KINDS[kind], url, who)) for who, kind in zip(members, itertools.cycle(kinds), strict=False)]
    await asyncio.sleep(0.5)
    print("flooding", flush=True)
    await asyncio.gather(*floods)


if __name__ == "__main__":
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(main(*sys.argv[1:]))
