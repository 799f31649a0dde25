"""Programs outside whose network lets them out by an HTTP proxy alone."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PEOPLE
from connecting_proxy import ConnectingProxy, proxy
from outside import CLOUD_ADDRESS, PATIENCE_SECONDS, cloud, in_loop, laptop, outcome
from test_edge import training

pytestmark = pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built")
NEEDS_ROOT = pytest.mark.skipif(os.getuid() != 0 or shutil.which("ip") is None, reason="network namespaces need root and iproute2")
HUB = "127.0.0.2"
"""An address that a laptop in a network namespace of its own cannot reach, and that no rule of loopback addresses lets past a proxy."""
CREDENTIALS, AS_WRITTEN = "ann:p@ss:wörd/%", "ann:p%40ss%3Aw%C3%B6rd%2F%25"
Make = Callable[..., Any]
DOCTOR = "import torch\nfrom forebay.toolkit.command import main\nraise SystemExit(main(['doctor']))"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"):
        for spelt in (name, name.lower()):
            monkeypatch.delenv(spelt, raising=False)


def by(found: ConnectingProxy, credentials: str = "", **more: str) -> dict[str, str]:
    """The variables of a program."""
    return {"HTTPS_PROXY": found.address(credentials), **more}


async def failure(process: asyncio.subprocess.Process) -> str:
    """What a program said that does not end well."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        _, said = await process.communicate()
    assert process.returncode == 1
    return said.decode()


@NEEDS_ROOT
@in_loop
async def test_a_program_that_reaches_a_proxy_alone_computes_what_one_inside_computes(pool: Make, tmp_path: Path) -> None:
    with laptop() as at:
        async with cloud(pool, tmp_path, PEOPLE, HUB) as found, proxy(CLOUD_ADDRESS, CREDENTIALS) as out:
            inside = await found.program(training(), FOREBAY_URL=found.pool.service.url, FOREBAY_OUTSIDE="0")
            expected = await outcome(inside)
            assert await outcome(await found.program(training(), at, **by(out, AS_WRITTEN))) == expected
            assert len(out.targets) >= 2 and set(out.targets) == {found.url.removeprefix("https://")}, "its link and its stream"
            assert out.strangers == 0


@in_loop
async def test_tunnels_that_break_in_mid_cell_change_no_bit(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE, HUB) as found, proxy() as out:
        expected = await outcome(await found.program(training(steps=20), **by(out)))
        program = await found.program(training(steps=20, pause=0.05), **by(out))
        assert program.stdout is not None
        lines = [(await asyncio.wait_for(program.stdout.readline(), 40)).decode().strip() for _ in range(5)]
        before = len(out.targets)
        out.cut()
        assert lines + await outcome(program) == expected
        assert len(out.targets) > before, "they were made again, through the proxy"


@in_loop
async def test_a_host_of_no_proxy_is_reached_straight_and_small_letters_count(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE, HUB) as found, proxy() as out:
        for excepted in (HUB, found.url.removeprefix("https://"), "*"):
            await outcome(await found.program(training(steps=1), **by(out, NO_PROXY=excepted)))
        assert out.targets == []
        told = await outcome(await found.program(DOCTOR, HTTPS_PROXY="http://127.0.0.1:1", https_proxy=out.address()))
        assert any(f"{found.url}/services/pool/ answers, through the proxy 127.0.0.1:{out.port}" in line for line in told), told
        assert len(out.targets) >= 2, "a call and a link"


@in_loop
async def test_a_proxy_that_wants_other_credentials_is_told_of_and_none_are_shown(pool: Make, tmp_path: Path) -> None:
    async with cloud(pool, tmp_path, PEOPLE, HUB) as found, proxy(credentials="ann:right") as out:
        for credentials in ("", "ann:wrongword", "ann"):
            said = await failure(await found.program(training(steps=1), **by(out, credentials)))
            assert "407" in said and "wrongword" not in said, said
        assert out.targets == [] and out.strangers >= 3


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ("407 Proxy Authentication Required", "does not accept these credentials, or wants some (HTTP status 407)"),
        ("403 Forbidden", "does not connect to 127.0.0.2:"),
    ],
)
@in_loop
async def test_a_proxy_that_lets_links_through_and_no_stream_is_told_of(pool: Make, tmp_path: Path, status: str, sentence: str) -> None:
    async with cloud(pool, tmp_path, PEOPLE, HUB) as found, proxy(refused=lambda number: status if number else None) as out:
        said = await failure(await found.program(training(steps=1), **by(out)))
        assert f"the proxy {out.host}:{out.port} {sentence}" in said, said


@in_loop
async def test_a_proxy_that_cannot_connect_at_present_is_asked_again(pool: Make, tmp_path: Path) -> None:
    busy = {1: "502 Bad Gateway", 2: "503 Service Unavailable", 3: "504 Gateway Timeout"}
    async with cloud(pool, tmp_path, PEOPLE, HUB) as found, proxy(refused=busy.get) as out:
        await outcome(await found.program(training(steps=1), **by(out)))
        assert len(out.targets) >= 5
