"""The pool while its database is away: a server that starts anew, and a disk that is full. No session ends, and no record is lost."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay_pool.store import writer as writing
from forebay_wire import messages as wire

Make = Callable[..., Any]
DISK_BYTES = 2 << 20


async def compute(client: Any, number: int) -> wire.LeaseClosed:
    """A lease that ends by itself."""
    await client.acquire(number)
    client.work("mark")
    closed: wire.LeaseClosed = await client.hears(wire.LeaseClosed)
    assert closed.reason == "drained"
    return closed


async def troubles(running: Any) -> Any:
    return (await running.get("health", None))["troubles"]


async def check_it_goes_on_without(running: Any, away: Callable[[], None], back: Callable[[], None]) -> None:
    """Somebody computes as the database goes away, and while it is; what waits to be written is, once it is back."""
    client = await running.client()
    await client.hello()
    closed = [await compute(client, 1)]
    await running.until(running.records)
    await client.acquire(2)
    away()
    client.work("mark")
    closed.append(await client.hears(wire.LeaseClosed))
    closed.append(await compute(client, 3))
    await running.until(lambda: running.service.writer.backlog == 2 and running.service.writer.trouble)
    assert client.session in running.machine.sessions, "a session ended because of the database"
    assert "database" in await troubles(running)
    back()
    await running.until(lambda: running.service.writer.backlog == 0)
    closed.append(await compute(client, 4))
    await running.until(lambda: len(running.records()) == len(closed))
    assert [row["duration_ns"] for row in running.records()] == [one.duration_ns for one in closed]
    assert {one.reason for one in closed} == {"drained"}
    assert await troubles(running) == {}


@pytest.mark.parametrize("mode", ["immediate", pytest.param("fast", marks=pytest.mark.full_sweep)])
def test_a_database_server_that_starts_anew_ends_no_session_and_all_is_recorded(
    pool: Make, own_postgres: Any, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(writing, "RETRY_SECONDS_MAX", 0.2)

    async def scenario() -> None:
        async with pool(database_url=own_postgres.new_database("forebay")) as running:
            await check_it_goes_on_without(running, lambda: own_postgres.stop(mode), own_postgres.start)

    asyncio.run(scenario())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "state"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)], capture_output=True).returncode != 0:
        pytest.skip("mounting a small disk is not permitted here")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_a_disk_that_is_really_full_ends_no_session_and_all_is_recorded(
    pool: Make, small_disk: Path, migrated_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "RETRY_SECONDS_MAX", 0.2)
    shutil.copy(migrated_file, small_disk)
    filler = small_disk / "filler"

    def fill() -> None:
        with filler.open("ab", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                try:
                    while file.write(b"x" * size):
                        pass
                except OSError:
                    continue

    async def scenario() -> None:
        async with pool() as running:
            await check_it_goes_on_without(running, fill, filler.unlink)

    asyncio.run(scenario())
