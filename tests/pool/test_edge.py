"""Programs outside: all they have is the hub's address by TLS, and the edge leads them to their workers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import ssl
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from conftest import PEOPLE
from forebay_wire import messages as wire
from forebay_wire import stream as commands
from outside import CLOUD_ADDRESS, Cloud, cloud, in_loop, laptop, outcome
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

pytestmark = pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built")
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2")
Make = Callable[..., Any]
TRAIN = """
import hashlib, sys, time, torch
torch.manual_seed(5)
device = "{device}"
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 8)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(256, 64).to(device), torch.randint(0, 8, (256,)).to(device)
for step in range({steps}):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    print(step, loss.item(), flush=True)
    time.sleep({pause})
large = torch.arange(6_000_000, dtype=torch.float32)
back = (large.to(device) + 1).cpu()
assert torch.equal(back, large + 1)
print(hashlib.sha256(b"".join(p.detach().cpu().numpy().tobytes() for p in model.parameters())).hexdigest())
"""


def training(device: str = "cuda", steps: int = 5, pause: float = 0.0) -> str:
    return TRAIN.format(device=device, steps=steps, pause=pause)


class Outsider:
    """A session link from outside, with what the pool says over it."""

    def __init__(self, found: Cloud, who: str = "ada") -> None:
        self._found, self.who = found, who
        self.context = ssl.create_default_context(cafile=str(found.authority))
        self.heard: list[str] = []

    async def __aenter__(self) -> Outsider:
        url = self._found.url.replace("https", "wss") + "/services/pool/api/session"
        headers = {"Authorization": f"token {self.who}", wire.OUTSIDE_HEADER: "1"}
        self._link = await connect(url, additional_headers=headers, compression=None, proxy=None, ssl=self.context)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._link.close()

    async def hears(self, kind: type[Any]) -> Any:
        while True:
            text = await asyncio.wait_for(self._link.recv(), 40)
            self.heard.append(str(text))
            message = wire.to_client(text)
            if isinstance(message, kind):
                return message

    async def granted(self) -> wire.Granted:
        await self._link.send(wire.Hello(process="python train.py", pid=1, torch="2.13.0").encode())
        await self.hears(wire.SessionOpened)
        span = wire.Span(id="span-1", kind="process", label="train.py")
        await self._link.send(wire.Acquire(request=1, span=span).encode())
        found: wire.Granted = await self.hears(wire.Granted)
        return found

    def stream(self, worker: str, who: str | None = None) -> Any:
        """A command stream by the edge."""
        url = self._found.url.replace("https", "wss") + f"/services/edge/api/workers/{worker}/stream"
        headers = {} if who == "" else {"Authorization": f"token {who or self.who}"}
        return connect(url, additional_headers=headers, compression=None, proxy=None, ssl=self.context)


async def refusal(stream: Any) -> tuple[int, str]:
    """The status of an upgrade that is refused, and the word for programs."""
    with pytest.raises(InvalidStatus) as refused:
        await stream.__aenter__()
    response = refused.value.response
    return response.status_code, json.loads(response.body)["error"]["code"]


@NEEDS_ROOT
@in_loop
async def test_a_program_that_reaches_one_port_alone_computes_what_one_inside_computes(pool: Make, tmp_path: Path) -> None:
    with laptop() as at:
        async with cloud(pool, tmp_path, PEOPLE, CLOUD_ADDRESS) as found:
            inside = await found.program(training(), FOREBAY_URL=found.pool.service.url, FOREBAY_OUTSIDE="0")
            expected = await outcome(inside)
            assert await outcome(await found.program(training(), at)) == expected
            reached = f"import socket; socket.create_connection(('127.0.0.1', {found.pool.service.port}))"
            assert await (await found.program(reached, at)).wait() == 1, "the pool's own port is not there"


@pytest.mark.full_sweep
@NEEDS_ROOT
@in_loop
async def test_a_cable_that_is_out_in_mid_cell_changes_no_bit_and_the_same_program_goes_on(pool: Make, tmp_path: Path) -> None:
    with laptop() as at:
        async with cloud(pool, tmp_path, PEOPLE, CLOUD_ADDRESS) as found:
            expected = await outcome(await found.program(training(steps=40)))
            program = await found.program(training(steps=40, pause=0.05), at)
            assert program.stdout is not None
            lines = [(await asyncio.wait_for(program.stdout.readline(), 40)).decode().strip() for _ in range(5)]
            at.cut(True)
            await asyncio.sleep(30.0)
            at.cut(False)
            begun = time.monotonic()
            lines += [(await asyncio.wait_for(program.stdout.readline(), 40)).decode().strip() for _ in range(10)]
            back_seconds = time.monotonic() - begun
            lines += await outcome(program)
            assert lines == expected
            assert back_seconds < 2.0 + 10 * 0.1


@NEEDS_ROOT
@in_loop
async def test_a_laptop_that_sleeps_for_longer_than_others_are_waited_for_goes_on_where_it_was(pool: Make, tmp_path: Path) -> None:
    """Its links fall silent: nobody says that they end, as a system does whose process has ended."""
    waits = {"session_heartbeat_seconds": 0.5, "resume_seconds": 1.0, "reconnect_seconds": 1.0, "outside_resume_seconds": 60.0}
    with laptop() as at:
        async with cloud(pool, tmp_path, PEOPLE, CLOUD_ADDRESS, **waits) as found:
            expected = await outcome(await found.program(training(steps=40)))
            program = await found.program(training(steps=40, pause=0.05), at)
            assert program.stdout is not None
            lines = [(await asyncio.wait_for(program.stdout.readline(), 40)).decode().strip() for _ in range(5)]
            at.cut(True)
            await found.pool.until(lambda: [session.stalled for session in found.pool.machine.sessions.values()] == [True])
            await asyncio.sleep(3.0)
            (session,) = found.pool.machine.sessions.values()
            assert session.lease is None, "it is not billed meanwhile"
            at.cut(False)
            assert lines + await outcome(program) == expected


@in_loop
async def test_an_edge_that_is_started_again_in_mid_cell_changes_no_bit(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE) as found:
        expected = await outcome(await found.program(training(steps=20)))
        program = await found.program(training(steps=20, pause=0.05))
        assert program.stdout is not None
        lines = [(await asyncio.wait_for(program.stdout.readline(), 40)).decode().strip() for _ in range(5)]
        await found.restart_edge()
        assert lines + await outcome(program) == expected


@in_loop
async def test_a_client_outside_is_told_no_address_of_a_worker(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE) as found, Outsider(found) as ada:
        granted = await ada.granted()
        assert granted.address == wire.EDGE and granted.certificate is None
        (worker,) = (one for one in found.pool.machine.fleet.workers.values() if one.session is not None)
        door = worker.door[0].partition(":")[2]
        assert door and not any(door in text for text in ada.heard)
        async with ada.stream(granted.worker) as stream:
            assert not any(door in value for value in stream.response.headers.values())


@in_loop
async def test_a_stream_is_for_whose_session_it_is_with_a_token_that_holds(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE) as found, Outsider(found) as ada:
        granted = await ada.granted()
        assert await refusal(ada.stream(granted.worker, "nobody")) == (HTTPStatus.UNAUTHORIZED, "unauthorized")
        assert await refusal(ada.stream(granted.worker, "")) == (HTTPStatus.UNAUTHORIZED, "unauthorized")
        assert await refusal(ada.stream(granted.worker, "guest")) == (HTTPStatus.FORBIDDEN, "forbidden")
        for other in ("ben", "other-ada", "olga"):
            assert await refusal(ada.stream(granted.worker, other)) == (HTTPStatus.NOT_FOUND, "not_found")
        assert await refusal(ada.stream("no-such-worker")) == (HTTPStatus.NOT_FOUND, "not_found")


@in_loop
async def test_the_pool_tells_a_door_to_services_alone_and_of_sessions_from_outside_alone(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE) as found, Outsider(found) as ada:
        granted = await ada.granted()
        path = f"api/doors/acme/ada/{granted.worker}"
        for who in ("ada", "operator", "nobody"):
            assert (await found.pool.call("GET", path, who)).code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        assert (await found.pool.get(path, "edge"))["address"].startswith("unix:")
        inside = await found.pool.client("ben")
        await inside.hello()
        await inside.ask()
        own: wire.Granted = await inside.hears(wire.Granted)
        refused = await found.pool.call("GET", f"api/doors/acme/ben/{own.worker}", "edge")
        assert refused.code == HTTPStatus.NOT_FOUND, "it is reached straight"


@in_loop
async def test_a_ticket_is_looked_at_by_the_worker_itself(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE) as found, Outsider(found) as ada:
        granted = await ada.granted()
        async with ada.stream(granted.worker) as stream:
            writer = commands.CommandWriter()
            writer.add(commands.Hello(bytes(32), "2.13.0"))
            await stream.send(commands.frame(writer.take()))
            answer = await asyncio.wait_for(stream.recv(), 20)
            assert b"the ticket is not this session's" in answer


@in_loop
async def test_one_user_opens_so_many_streams_and_frees_them_by_closing(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE, edge={"streams_per_user": 3}) as found, Outsider(found) as ada:
        granted = await ada.granted()
        streams = [await ada.stream(granted.worker).__aenter__() for _ in range(3)]
        assert await refusal(ada.stream(granted.worker)) == (HTTPStatus.TOO_MANY_REQUESTS, "too_many_requests")
        await streams[0].close()
        async with asyncio.timeout(10):
            while True:
                try:
                    async with ada.stream(granted.worker):
                        break
                except InvalidStatus:
                    await asyncio.sleep(0.05)


@pytest.mark.full_sweep
@in_loop
async def test_text_and_messages_that_are_too_long_close_a_stream(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE) as found, Outsider(found) as ada:
        granted = await ada.granted()
        for message in ("text", bytes(2 << 20)):
            async with ada.stream(granted.worker) as stream:
                with pytest.raises(ConnectionClosed):
                    await stream.send(message)
                    await asyncio.wait_for(stream.recv(), 20)


@pytest.mark.full_sweep
@in_loop
async def test_an_edge_whose_pool_is_away_says_try_again(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE, edge={"pool_url": "http://127.0.0.1:9/services/pool/"}) as found, Outsider(found) as ada:
        granted = await ada.granted()
        assert await refusal(ada.stream(granted.worker)) == (HTTPStatus.SERVICE_UNAVAILABLE, "unavailable")


@pytest.mark.full_sweep
@in_loop
async def test_processes_that_compute_together_are_refused_outside_in_one_sentence(pool: Make, tmp_path: Path) -> None:
    text = "import torch; torch.ones(2, device='cuda').sum().item()"
    told = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "run"}
    async with cloud(pool, tmp_path, PEOPLE) as found:
        program = await found.program(text, **told)
        _, said = await program.communicate()
        assert b"Processes that compute together cannot be had from outside of the installation" in said, said.decode()


@pytest.mark.full_sweep
@in_loop
async def test_a_hub_whose_certificate_no_authority_signed_is_not_trusted(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE) as found:
        program = await found.program("import torch; torch.ones(2, device='cuda').sum().item()", SSL_CERT_FILE="/dev/null")
        _, said = await program.communicate()
        assert program.returncode == 1 and b"certificate" in said.lower()
