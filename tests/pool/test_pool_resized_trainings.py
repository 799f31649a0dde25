"""A training whose flavor changes between one, four and two devices goes on where it was, and each lease is billed for its devices."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import output_of, printed

Make = Callable[..., Any]
COUNTS = {"one": 1, "two": 2, "four": 4}
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("forebay_worker._executor") is None or importlib.util.find_spec("forebay._C") is None,
    reason="the extensions are not built",
)
FLAVORS = """
[[flavors]]
name = "one"
memory = "512 MiB"
equivalents = [{ model = "cpu-dev", count = 1 }]
[[flavors]]
name = "two"
memory = "512 MiB"
equivalents = [{ model = "cpu-dev", count = 2 }]
[[flavors]]
name = "four"
memory = "512 MiB"
equivalents = [{ model = "cpu-dev", count = 4 }]
"""
REAL = {
    "real_workers": True,
    "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "512 MiB", "count": 4}],
    "default_flavor": "one",
    "heartbeat_seconds": 60.0,
    "idle_release_seconds": 30.0,
}
TRAINS = """
import json, os, sys
import torch
if os.environ.get("FOREBAY_URL"):
    import forebay
    from forebay import gang_work
from torch import nn
from torch.nn import functional
torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
sizes = sys.argv[1:]
device = "cuda" if sizes else "cpu"
torch.manual_seed(3)
layers = nn.Linear(32, 64), nn.LayerNorm(64), nn.Tanh(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 7)
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
chance = torch.Generator().manual_seed(4)
losses, divided = [], []
for part in range(4):
    if sizes:
        forebay.flavor(sizes[part])
    for step in range(6):
        x, y = torch.randn(24, 32, generator=chance).to(device), torch.randint(0, 7, (24,), generator=chance).to(device)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    work = gang_work.read(0) if sizes else None
    divided.append([work.devices, work.divided.calls] if work else [1, 0])
weights = [value.detach().cpu().flatten().tolist() for value in model.state_dict().values()]
print(json.dumps({"losses": losses, "divided": divided, "weights": sum(weights, [])}))
"""


@pytest.mark.parametrize(
    "sizes", [("one", "four", "two", "one"), pytest.param(("four", "one", "two", "four"), marks=pytest.mark.full_sweep)]
)
def test_a_training_goes_on_with_another_number_of_devices(pool: Make, tmp_path: Path, sizes: tuple[str, ...]) -> None:
    async def scenario() -> None:
        flavors = tmp_path / "flavors.toml"
        flavors.write_text(FLAVORS)
        (line,), _ = await printed(TRAINS)
        expected = json.loads(line)
        async with pool(**REAL, flavors_file=flavors) as running:
            (line,), _ = await output_of(running, TRAINS, *sizes)
            found = json.loads(line)
            await running.until(lambda: not running.machine.sessions)
            await running.until(lambda: len(running.records()) >= len(sizes))
            served = [(record["flavor"], record["devices"]) for record in running.records()]
            assert served[-len(sizes) :] == [(size, COUNTS[size]) for size in sizes]
        assert found["losses"] == pytest.approx(expected["losses"], rel=1e-9)
        assert found["weights"] == pytest.approx(expected["weights"], rel=1e-7, abs=1e-9)
        assert [devices for devices, _ in found["divided"]] == [COUNTS[size] for size in sizes]
        for size, (_, calls) in zip(sizes, found["divided"], strict=True):
            assert (calls > 0) == (size != "one"), size

    asyncio.run(scenario())


