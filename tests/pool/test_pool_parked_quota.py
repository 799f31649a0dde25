"""A tenant's bound on what is parked for it: nothing is parked beyond it, and nothing is lost without a word."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from typing import Any

import fork_server
import pytest
from forebay_pool.model.events import QuotaSet, SessionLeft
from forebay_pool.model.node_events import DeviceSet, NodeDrain
from forebay_pool.model.types import Quota
from forebay_wire import messages as wire
from pool_world import World

Make = Callable[..., Any]
GIB = 2**30
MIB = 2**20
PATIENCE_SECONDS = 60.0
needs_extensions = pytest.mark.skipif(
    importlib.util.find_spec("forebay_worker._executor") is None or importlib.util.find_spec("forebay._C") is None,
    reason="the extensions are not built",
)
PROGRAM = """
import sys, torch
kept = torch.arange(COUNT, dtype=torch.int32, device="cuda")
print(int(kept[-1]), flush=True)
torch.cuda.synchronize()
print("rests", flush=True)
sys.stdin.readline()
print(int(kept[-1]), int(kept[7]), flush=True)
"""


def resident(w: World, session: str, tenant: str, used_bytes: int) -> None:
    """Joins, computes, and rests with so much on the device."""
    w.join(session, "dev.4gb", tenant=tenant)
    w.lease(session)
    w.worker(w.worker_of(session), wire.Drained(epoch=w.epoch(session), memory_bytes=used_bytes))


def allow(w: World, tenant: str, user: str | None = None, **quota: Any) -> None:
    w.do(QuotaSet(tenant, user, Quota(**quota)))


def parked(w: World, session: str) -> bool:
    return any(isinstance(message, wire.Park) for message in w.ordered(w.worker_of(session)))


def test_who_may_not_be_parked_stays_and_another_goes_in_its_place(world: World) -> None:
    w = world()
    allow(w, "acme", parked_bytes=GIB)
    resident(w, "old", "acme", 3 * GIB)
    resident(w, "young", "globex", 3 * GIB)
    w.join("new", "dev.4gb", tenant="initech")
    w.acquire("new")
    assert (parked(w, "old"), parked(w, "young")) == (False, True)


def test_who_needs_the_room_waits_with_a_reason_until_the_bound_is_raised(world: World) -> None:
    w = world()
    allow(w, "acme", parked_bytes=GIB)
    resident(w, "one", "acme", 3 * GIB)
    resident(w, "two", "acme", 3 * GIB)
    w.join("new", "dev.4gb", tenant="globex")
    w.acquire("new")
    told = w.last("new")
    assert (told.code, told.reason) == (
        "shortage",
        "A device is free, but the sessions that rest there may not be parked: their tenants' quotas for that are used up.",
    )
    assert not parked(w, "one") and not parked(w, "two")
    allow(w, "acme", parked_bytes=4 * GIB)
    assert (parked(w, "one"), parked(w, "two")) == (True, False)


def test_nothing_is_kept_for_who_waits_for_that_room(world: World) -> None:
    w = world()
    allow(w, "acme", parked_bytes=0)
    resident(w, "one", "acme", 3 * GIB)
    w.join("large", "dev.8gb", tenant="globex")
    w.acquire("large")
    assert w.last("large").reason.startswith("A device is free, but")
    w.join("small", "dev.4gb", tenant="initech")
    w.lease("small")


def test_room_is_made_once_something_that_was_parked_is_over(world: World) -> None:
    w = world()
    allow(w, "acme", parked_bytes=3 * GIB)
    resident(w, "one", "acme", 3 * GIB)
    resident(w, "two", "acme", 3 * GIB)
    w.join("large", "dev.8gb", tenant="globex")
    w.join("first", "dev.4gb", tenant="globex")
    w.lease("first")  # one was parked for it
    w.drain("first")
    w.acquire("large")
    assert w.last("large").code == "shortage" and not parked(w, "two")
    w.do(SessionLeft("one"))
    assert parked(w, "two")
    w.settle()
    assert w.machine.sessions["large"].lease is not None


def test_where_the_quota_says_so_the_session_ends_and_its_process_is_told_why(world: World) -> None:
    w = world()
    allow(w, "acme", parked_bytes=GIB, on_parked_full="end")
    resident(w, "one", "acme", 3 * GIB)
    w.join("new", "dev.8gb", tenant="globex")
    w.acquire("new")
    told = w.last("one")
    assert (type(told), told.message) == (
        wire.SessionLost,
        "This session ended with its tensors (3.0 GiB): its device was needed while it did not compute, and Tenant acme may keep "
        "1.0 GiB parked. End sessions that are not needed, or ask an operator for more.",
    )
    assert told.cause.values == {"held_bytes": 3 * GIB, "parked_bytes": GIB}
    assert "one" not in w.machine.sessions
    assert [record.close_reason for record in w.records] == ["drained"]


def test_a_session_that_fits_the_bound_is_parked_rather_than_another_ended(world: World) -> None:
    w = world()
    allow(w, "acme", parked_bytes=GIB, on_parked_full="end")
    resident(w, "large", "acme", 3 * GIB)
    resident(w, "small", "acme", GIB)
    w.join("new", "dev.4gb", tenant="globex")
    w.acquire("new")
    assert parked(w, "small") and "large" in w.machine.sessions


def test_the_bound_of_a_user_holds_beside_the_tenants(world: World) -> None:
    w = world()
    allow(w, "acme", parked_bytes=100 * GIB)
    allow(w, "acme", "ada", parked_bytes=0)
    resident(w, "one", "acme", GIB)
    w.join("new", "dev.8gb", tenant="globex")
    w.acquire("new")
    assert not parked(w, "one")


def test_a_device_that_is_emptied_parks_what_the_bound_forbids(world: World) -> None:
    w = world()
    allow(w, "acme", parked_bytes=0, on_parked_full="end")
    resident(w, "one", "acme", GIB)
    w.do(NodeDrain("main", True))
    assert parked(w, "one")


def test_a_device_closed_for_new_leases_leaves_those_who_rest_there(world: World) -> None:
    w = world()
    allow(w, "acme", parked_bytes=0, on_parked_full="end")
    resident(w, "one", "acme", GIB)
    w.do(DeviceSet("main/cpu:0", True, "fan"))
    assert "one" in w.machine.sessions


class Program:
    """A process on the pool's device that keeps MiB there and rests until it is told to go on."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            return (await self.process.stdout.readline()).decode().strip()

    async def rests(self) -> None:
        assert await self.line(), await self.errors()
        assert await self.line() == "rests", await self.errors()

    async def goes_on(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        return await self.line()

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await asyncio.wait_for(self.process.stderr.read(), PATIENCE_SECONDS)).decode()


@contextlib.asynccontextmanager
async def program(pool: Any, who: str, mib: int) -> AsyncIterator[Program]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    environment |= {"FOREBAY_URL": pool.service.url, "FOREBAY_TOKEN": who, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    text = PROGRAM.replace("COUNT", str(mib * MIB // 4))
    process = await asyncio.create_subprocess_exec(fork_server.programs(), "-c", text, env=environment, **pipes)
    try:
        yield Program(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


REAL = {
    "real_workers": True,
    "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "1 GiB"}],
    "default_flavor": "dev.1gb",
    "heartbeat_seconds": 0.5,
    "idle_release_seconds": 0.3,
}


@needs_extensions
def test_real_sessions_are_parked_as_far_as_the_bound_goes_and_keep_what_they_hold(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            await running.call("PUT", "api/quotas/acme", body={"parked_bytes": 100 * MIB})
            async with program(running, "ada", 64) as first, program(running, "ben", 64) as second:
                await first.rests()
                await second.rests()  # the first was parked for it
                await running.until(lambda: len(running.records()) >= 2 and not running.leases)
                quota = await running.get("api/quotas/acme")
                assert 64 * MIB <= quota["parked_bytes_held"] <= 66 * MIB
                async with program(running, "other-ada", 1) as third:
                    await running.until(lambda: _told(running, "globex") is not None)
                    assert "may not be parked" in _told(running, "globex").reason
                    await running.call("PUT", "api/quotas/acme", body={"parked_bytes": 200 * MIB})
                    await third.rests()
                count = 64 * MIB // 4 - 1
                assert await first.goes_on() == f"{count} 7"
                assert await second.goes_on() == f"{count} 7"

    asyncio.run(scenario())


@needs_extensions
def test_a_real_session_that_may_not_be_parked_ends_with_the_reason_in_its_process(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            await running.call("PUT", "api/quotas/acme", body={"parked_bytes": 10 * MIB, "on_parked_full": "end"})
            async with program(running, "ada", 64) as first:
                await first.rests()
                await running.until(lambda: running.records() and not running.leases)
                async with program(running, "other-ada", 1) as second:
                    await second.rests()
                await first.goes_on()
                assert "Tenant acme may keep 10.0 MiB parked" in await first.errors()

    asyncio.run(scenario())


def _told(running: Any, tenant: str) -> Any:
    return next((s.request.told for s in running.machine.sessions.values() if s.tenant == tenant and s.request is not None), None)
