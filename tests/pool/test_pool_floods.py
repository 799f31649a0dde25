"""Fifty members who send whatever costs a pool time, as fast as it reads, keep nobody else from leases and answers."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import fork_server
import pytest
from conftest import Client
from forebay_wire import messages as wire
from tornado.httpclient import AsyncHTTPClient
from websockets.asyncio.client import connect

HERE = Path(__file__).parent
LEASES = 15
PAUSE_SECONDS = 0.1
MORE_SECONDS = 0.5
"""Beside twice of what it takes when all is quiet: flooders, pool, and this test share the processors."""
LEASE_SECONDS_MAX = 10
KINDS = ("priorities", "flavors", "requests", "pings", "gets", "bodies", "strangers", "idlers")


@pytest.fixture
def flooded_pool(tmp_path: Path, fake_python: Path) -> Iterator[str]:
    """Its address."""
    command = [fork_server.services(), str(HERE / "flooded_pool.py"), str(tmp_path / "state"), str(fake_python), "0.5"]
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None and process.stdin is not None
            yield process.stdout.readline().strip()
            process.stdin.close()
            assert process.wait(30) == 0
        finally:
            process.kill()


@contextlib.contextmanager
def flood(url: str, *kinds: str) -> Iterator[None]:
    command = [fork_server.services(), str(HERE / "flooders.py"), url, *kinds]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"flooding\n"
            yield
            assert process.poll() is None, "they flood to the end"
        finally:
            process.kill()


async def seconds_of(url: str) -> tuple[list[float], list[float]]:
    """Of leases of ada, and of answers to ben. Nobody of them is refused."""
    headers, address = {"Authorization": "token ada"}, url.replace("http", "ws", 1) + "api/session"
    link = await connect(address, additional_headers=headers, compression=None, proxy=None, ping_interval=None)
    client, leases, answers = Client(link), [], []
    await client.hello()
    for number in range(LEASES):
        begin = time.perf_counter()
        granted = await asyncio.wait_for(client.acquire(number + 1), LEASE_SECONDS_MAX)
        leases.append(time.perf_counter() - begin)
        await client.say(wire.Release(epoch=granted.epoch))
        await asyncio.wait_for(client.hears(wire.LeaseClosed), LEASE_SECONDS_MAX)
        begin = time.perf_counter()
        answer = await AsyncHTTPClient().fetch(f"{url}api/flavors", headers={"Authorization": "token ben"}, raise_error=False)
        answers.append(time.perf_counter() - begin)
        assert answer.code == 200, answer.body
        await asyncio.sleep(PAUSE_SECONDS)
    await client.close()
    return leases, answers


ALONE = [pytest.param((kind,), marks=pytest.mark.full_sweep, id=kind) for kind in KINDS]


@pytest.mark.parametrize("kinds", [pytest.param(KINDS, id="all kinds"), *ALONE])
def test_members_who_flood_a_pool_with_messages_and_requests_keep_nobody_from_leases(flooded_pool: str, kinds: tuple[str, ...]) -> None:
    asyncio.run(seconds_of(flooded_pool))
    quiet = asyncio.run(seconds_of(flooded_pool))
    with flood(flooded_pool, *kinds):
        flooded = asyncio.run(seconds_of(flooded_pool))
    for before, now in zip(quiet, flooded, strict=True):
        assert statistics.median(now) < 2 * statistics.median(before) + MORE_SECONDS
