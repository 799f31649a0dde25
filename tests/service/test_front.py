"""The front of an HTTP service holds bodies, connections and requests within bounds, and lets everybody else through."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import ClassVar

import pytest
from forebay_service.handler import JsonHandler
from forebay_service.identity import Identity, TokenAuthenticator
from forebay_service.peers import front as front_module
from forebay_service.peers import rate_limit as rate_limit_module
from forebay_service.peers.front import FrontServer
from forebay_service.process import listen
from tornado.web import Application

PEOPLE = {
    "ada": Identity("ada", "user", "acme", frozenset()),
    "mallory": Identity("mallory", "user", "evil", frozenset()),
    "pool": Identity("pool", "service", None, frozenset()),
}


class _Echo(JsonHandler):
    async def get(self) -> None:
        await self.bearer()
        self.write_json({})

    async def post(self) -> None:
        self.write_json({"bytes": len(self.body_bytes()), "who": (await self.bearer()).name})


class _Large(JsonHandler):
    async def get(self) -> None:
        self.write("x" * (32 * 2**20))


@asynccontextmanager
async def served(share: float = 0.5, connections_max: int = 1_000) -> AsyncIterator[tuple[FrontServer, int]]:
    given = {"context": SimpleNamespace(authenticator=TokenAuthenticator(PEOPLE))}
    application = Application([("/", _Echo, given), ("/large", _Large, given)], log_function=lambda _: None)
    server = FrontServer(application, share=share, connections_max=connections_max)
    sockets = listen("127.0.0.1", 0)
    server.add_sockets(sockets)
    try:
        yield server, sockets[0].getsockname()[1]
    finally:
        while Caller.opened:
            Caller.opened.pop().writer.close()
        server.stop()
        await server.close_all_connections()


class Caller:
    """A connection that says what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    opened: ClassVar[list[Caller]] = []

    @classmethod
    async def to(cls, port: int) -> Caller:
        cls.opened.append(cls(*await asyncio.open_connection("127.0.0.1", port)))
        return cls.opened[-1]

    def say(self, who: str, method: str = "GET", length: int = 0, body: bytes = b"", path: str = "/") -> None:
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAuthorization: token {who}\r\nContent-Length: {length}\r\n\r\n"
        self.writer.write(head.encode() + body)

    async def hears(self) -> tuple[int, bytes]:
        """Status and body."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)
        length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
        return int(head.split()[1]), await self.reader.readexactly(length)

    async def is_closed(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), 20) == b""
        except ConnectionError:
            return True


def test_a_long_body_is_read_one_at_a_time_of_each_user_and_short_ones_and_others_pass() -> None:
    async def scenario() -> None:
        async with served() as (_, port):
            known = [await Caller.to(port) for _ in range(2)]
            for who, caller in zip(("mallory", "ada"), known, strict=True):
                caller.say(who)
                assert (await caller.hears())[0] == 200
            body = b"x" * 2**20
            unfinished, second = await Caller.to(port), await Caller.to(port)
            unfinished.say("mallory", "POST", len(body), body[:100_000])
            second.say("mallory", "POST", len(body), body)
            for who, length in (("mallory", 10), ("ada", len(body))):
                other = await Caller.to(port)
                other.say(who, "POST", length, b"x" * length)
                assert json.loads((await other.hears())[1]) == {"bytes": length, "who": who}
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(second.reader.read(1), 0.2)
            unfinished.writer.write(body[100_000:])
            assert json.loads((await unfinished.hears())[1])["bytes"] == len(body)
            assert json.loads((await second.hears())[1])["bytes"] == len(body)

    asyncio.run(scenario())


def test_a_body_that_breaks_off_leaves_its_place_to_the_next() -> None:
    async def scenario() -> None:
        async with served() as (_, port):
            first = await Caller.to(port)
            first.say("ada")
            await first.hears()
            for _ in range(3):
                broken = await Caller.to(port)
                broken.say("ada", "POST", 2**20, b"x" * 1000)
                await broken.writer.drain()
                await asyncio.sleep(0.01)
                broken.writer.close()
            whole = await Caller.to(port)
            whole.say("ada", "POST", 2**20, b"x" * 2**20)
            assert (await whole.hears())[0] == 200

    asyncio.run(scenario())


def test_where_there_are_too_many_connections_the_ones_that_were_idle_longest_go() -> None:
    async def scenario() -> None:
        async with served(connections_max=20) as (_, port):
            idle = [await Caller.to(port) for _ in range(20)]
            slow = await Caller.to(port)
            slow.say("ada", "POST", 1000, b"x")
            honest = await Caller.to(port)
            honest.say("ada")
            assert (await honest.hears())[0] == 200
            assert await idle[0].is_closed() and await idle[1].is_closed()
            more = [await Caller.to(port) for _ in range(17)]
            await asyncio.sleep(0.1)
            slow.writer.write(b"x" * 999)
            assert (await slow.hears())[0] == 200, "it was at work, and those who are idle went first"
            more[-1].say("ada")
            assert (await more[-1].hears())[0] == 200

    asyncio.run(scenario())


def test_unfinished_requests_cannot_keep_others_out() -> None:
    async def scenario() -> None:
        async with served(connections_max=20) as (_, port):
            for _ in range(60):
                caller = await Caller.to(port)
                caller.say("mallory", "POST", 1000, b"x")
                await asyncio.sleep(0)
            honest = await Caller.to(port)
            honest.say("ada")
            assert (await honest.hears())[0] == 200

    asyncio.run(scenario())


def test_a_peer_that_does_not_read_its_answer_is_closed_and_one_that_reads_slowly_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front_module, "SWEEP_SECONDS", 0.1)
    monkeypatch.setattr(front_module, "STALL_SECONDS", 0.5)

    async def scenario() -> None:
        async with served() as (server, port):
            loop = asyncio.get_running_loop()
            asks = b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n"
            deaf, slow = socket.create_connection(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port))
            for one in (deaf, slow):
                one.setblocking(False)
                await loop.sock_sendall(one, asks)
            read = 0
            for _ in range(24):
                read += len(await loop.sock_recv(slow, 2**20))
                await asyncio.sleep(0.05)
            assert len(server._front.connections or ()) == 1, "only the one that reads is left"
            while read < 32 * 2**20:
                read += len(await loop.sock_recv(slow, 2**20))
            deaf.close()
            slow.close()

    asyncio.run(scenario())


def test_who_has_too_many_requests_waiting_is_refused_and_neither_others_nor_services_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rate_limit_module, "WAITING_MAX", 4)
    monkeypatch.setattr(front_module, "REQUEST_SECONDS", 0.1)

    async def scenario() -> None:
        async with served(share=0.5) as (server, port):
            for who in PEOPLE:
                first = await Caller.to(port)
                first.say(who)
                assert (await first.hears())[0] == 200
            rate_limit = server._front.rate_limit
            assert rate_limit is not None
            rate_limit.peer("evil", "mallory").waiting_max = 4
            flood = [await Caller.to(port) for _ in range(12)]
            for caller in flood:
                caller.say("mallory")
            answers = asyncio.gather(*(caller.hears() for caller in flood))
            await asyncio.sleep(0.05)
            for who in ("pool", "ada"):
                other = await Caller.to(port)
                other.say(who)
                assert (await other.hears())[0] == 200
            told = await answers
            refused = [json.loads(body)["error"]["code"] for status, body in told if status == 429]
            assert refused and set(refused) == {"too_many_requests"}
            assert len(refused) < len(flood)

    asyncio.run(scenario())
