"""A program chooses another flavor, or another priority, while it runs: what it holds goes along, and a no is an error with its reason."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forebay_pool.model.events import QuotaSet
from forebay_pool.model.types import Quota
from forebay_wire import messages as wire
from pool_world import World
from programs import output_of

Make = Callable[..., Any]
needs_extensions = pytest.mark.skipif(
    importlib.util.find_spec("forebay_worker._executor") is None or importlib.util.find_spec("forebay._C") is None,
    reason="the extensions are not built",
)
FLAVORS = """
[[flavors]]
name = "small"
memory = "512 MiB"
equivalents = [{ model = "cpu-dev", count = 1 }]
[[flavors]]
name = "tiny"
memory = "2 MiB"
equivalents = [{ model = "cpu-dev", count = 1 }]
[[flavors]]
name = "large"
memory = "1 GiB"
equivalents = [{ model = "cpu-other", count = 1 }]
[[flavors]]
name = "nowhere"
memory = "1 GiB"
equivalents = [{ model = "MI250", count = 1 }]
"""
REAL = {
    "real_workers": True,
    "devices": [{"kind": "cpu", "model": model, "memory": "1 GiB"} for model in ("cpu-dev", "cpu-other")],
    "default_flavor": "small",
    "heartbeat_seconds": 60.0,
    "idle_release_seconds": 30.0,
}
MOVES = """
import torch, forebay
torch.manual_seed(1)
kept = torch.arange(1 << 20, dtype=torch.int32, device="cuda")
noise = torch.rand(1 << 16, device="cuda")
before = noise.double().sum().item()
print(forebay.flavor().name, torch.cuda.get_device_properties(0).total_memory >> 20)
for name in ("nothing", "nowhere", "tiny"):
    try:
        forebay.flavor(name)
    except RuntimeError as error:
        print(type(error).__name__, error)
print(forebay.flavor("large").name, torch.cuda.get_device_properties(0).total_memory >> 20)
kept += 1
print(int(kept[0]), int(kept[-1]), noise.double().sum().item() == before)
del kept
print(forebay.flavor("tiny").name)
print((noise * 0 + 1).sum().item(), forebay.flavor().name)
"""
ASKS = """
import forebay
print(forebay.priority(), forebay.priority(20), forebay.priority(3), forebay.priority())
try:
    forebay.priority(100)
except ValueError as error:
    print(error)
"""


@needs_extensions
def test_a_running_program_takes_another_flavor_and_its_tensors_along(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        flavors = tmp_path / "flavors.toml"
        flavors.write_text(FLAVORS)
        async with pool(**REAL, flavors_file=flavors) as running:
            out, _ = await output_of(running, MOVES)
            assert out == [
                "small 512",
                "PoolRefused There is no flavor 'nothing'; there are large, nowhere, small, tiny.",
                "PoolRefused nowhere needs 1 MI250; this installation has 1 cpu-dev, 1 cpu-other.",
                "PoolRefused This session holds 4.2 MiB, and tiny has 2.0 MiB; free tensors first.",
                "large 1024",
                "1 1048576 True",
                "tiny",
                "65536.0 tiny",
            ]
            await running.until(lambda: not running.machine.sessions)
            await running.until(lambda: len(running.records()) == 3)
            served = [(record["flavor"], record["device_model"]) for record in running.records()]
            assert served == [("small", "cpu-dev"), ("large", "cpu-other"), ("tiny", "cpu-dev")]

    asyncio.run(scenario())


@needs_extensions
def test_a_program_asks_for_a_priority_and_is_told_what_the_quota_allows(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(**{**REAL, "default_flavor": "dev.1gb"}) as running:
            await running.call("PUT", "api/quotas/acme", body={"priority_max": 5})
            out, err = await output_of(running, ASKS)
            assert out == ["0 5 3 3", "A priority is a whole number from -99 to 99; 100 was given."]
            assert err.count("priority 20 was asked for, and the quotas allow 5: ask an operator for more") == 1
            out, err = await output_of(running, "import forebay; print(forebay.priority())", FOREBAY_PRIORITY="9")
            assert out == ["5"] and "priority 9 was asked for, and the quotas allow 5" in err
            with pytest.raises(AssertionError, match="FOREBAY_PRIORITY is 'high'; it must be a whole number"):
                await output_of(running, "import forebay; print(forebay.priority())", FOREBAY_PRIORITY="high")

    asyncio.run(scenario())


def test_who_waits_goes_ahead_with_a_higher_priority_and_back_with_a_lower_one(world: World) -> None:
    w = world()
    w.do(QuotaSet("acme", None, Quota(priority_max=50)))
    w.lease("holder")
    for name in ("first", "second"):
        w.join(name)
        w.acquire(name)
    w.client("second", wire.ChoosePriority(priority=99))
    assert (w.last("second").type, w.last("second").priority) == ("session", 50)
    assert w.machine.sessions["second"].request.priority == 50
    w.drain("holder")
    w.settle()
    assert w.machine.sessions["second"].lease is not None and w.machine.sessions["first"].lease is None
    w.acquire("holder", 2)
    w.client("first", wire.ChoosePriority(priority=-1))
    w.drain("second")
    w.settle()
    assert w.machine.sessions["holder"].lease is not None and w.machine.sessions["first"].lease is None


def test_a_lease_of_the_flavor_before_is_not_given_again_to_who_chose_another(world: World) -> None:
    w = world()
    w.lease("s", flavor="dev.1gb")
    w.client("s", wire.ChooseFlavor(flavor="dev.4gb"))
    w.acquire("s", 2, span="s-1")
    assert w.machine.sessions["s"].request is not None
    w.drain("s")
    w.settle()
    lease = w.machine.sessions["s"].lease
    assert (lease.flavor.name, lease.number) == ("dev.4gb", 2)
