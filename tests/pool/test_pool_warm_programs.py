"""Workers that are started ahead of need have loaded what programs of JAX need, before a session sends one."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forebay_pool.model.events import FlavorSet
from forebay_pool.model.instructions import Launch
from forebay_pool.model.types import Device, Equivalent, Flavor
from pool_world import GIB, World
from programs import output_of

Make = Callable[..., Any]
has_jax = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("forebay_worker._executor", "forebay._C", "jax", "forebay_jax")),
    reason="the extensions are not built, or JAX is not installed",
)
REAL = {
    "worker_python": Path(sys.executable),
    "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "2 GiB", "count": 1}],
    "heartbeat_seconds": 0.2,
}
LIBRARY = "jaxlib"
TORCH = Flavor("torch", GIB, (Equivalent("cpu-dev"),), runtimes=("torch",))
BOTH = Flavor("both", GIB, (Equivalent("cpu-dev"),))
COMPUTES = "import jax, jax.numpy as jnp; print(float(jax.jit(lambda x: (x * 3).sum())(jnp.arange(5.0))))"


def has_loaded(worker: int) -> bool:
    """Whether its process has mapped a library of jaxlib's."""
    return LIBRARY in Path(f"/proc/{worker}/maps").read_text()


@has_jax
def test_a_worker_that_waits_for_a_session_loads_what_programs_need_and_serves_one(
    pool: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forebay_pool.hosts.launcher")

    async def scenario() -> None:
        async with pool(**REAL, warm_workers=1, warm_programs=True, worker_log_level="info") as running:
            workers, pids = running.machine.fleet.workers, running.service.shell.launcher._pids
            await running.until(lambda: [worker.state for worker in workers.values()] == ["warm"])
            (first,) = workers
            await running.until(lambda: "what programs need is loaded in" in caplog.text)
            assert has_loaded(pids[first]) and not running.machine.sessions
            lines, _ = await output_of(running, COMPUTES)
            assert lines == ["30.0"]
            await running.until(lambda: first not in workers)  # it had the session, which is over

    asyncio.run(scenario())


@has_jax
def test_an_operator_may_have_workers_load_it_with_the_first_program(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**REAL, warm_workers=1, warm_programs=False) as running:
            workers, pids = running.machine.fleet.workers, running.service.shell.launcher._pids
            await running.until(lambda: [worker.state for worker in workers.values()] == ["warm"])
            await asyncio.sleep(1.0)
            assert not any(has_loaded(pids[worker]) for worker in workers)
            lines, _ = await output_of(running, COMPUTES)
            assert lines == ["30.0"]

    asyncio.run(scenario())


def launches(world: World) -> list[bool]:
    """Of each worker that was started, whether it is to load what programs need."""
    return [one.programs for one in world.out if isinstance(one, Launch)]


def make(world: Callable[..., World], *flavors: Flavor, **more: Any) -> World:
    """A host of two devices."""
    devices = [Device(f"a/cpu:{index}", "a", "cpu", index, "cpu-dev", 8 * GIB) for index in range(2)]
    return world(devices, list(flavors), **({"warm_workers": 1} | more))


def test_it_is_loaded_where_a_flavor_of_the_device_offers_programs_and_its_host_serves_them(world: Callable[..., World]) -> None:
    other = Flavor("other", GIB, (Equivalent("h100"),))
    w = make(world, TORCH, other)
    w.tick()
    assert launches(w) == [False]
    w = make(world, TORCH, BOTH)
    w.tick()
    assert launches(w) == [True]
    w.served = {"a": ("torch",)}
    w.settle()
    w.join("s", "torch")
    w.acquire("s")
    w.settle()
    w.tick()
    assert launches(w) == [True, False], "a worker has said since that its host serves none"


def test_it_is_not_loaded_where_the_operator_says_so(world: Callable[..., World]) -> None:
    w = make(world, BOTH, warm_programs=False)
    w.tick()
    assert launches(w) == [False]


@pytest.mark.parametrize(("runtime", "loads"), [("xla", True), ("torch", False)])
def test_a_worker_that_a_session_waits_for_loads_it_for_programs_alone(world: Callable[..., World], runtime: str, loads: bool) -> None:
    w = make(world, TORCH, warm_workers=0)
    w.do(FlavorSet(BOTH))
    w.join("s", "both")
    w.acquire("s", runtime=runtime)
    assert launches(w) == [loads]
