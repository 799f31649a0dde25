"""A program of JAX over several devices whose flavor changes: arrays stay, programs for more devices than there are say so."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import output_of
from test_pool_resized_trainings import COUNTS, FLAVORS, REAL

Make = Callable[..., Any]
pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("forebay_worker._executor", "forebay._C", "jax", "forebay_jax")),
    reason="the extensions are not built, or JAX is not installed",
)
COMPUTES = """
import json
import forebay, jax, jax.numpy as jnp, numpy as np
devices = jax.devices()
mesh = jax.sharding.Mesh(np.array(devices), ("x",))
x = jax.device_put(np.arange(12, dtype=np.int32), jax.NamedSharding(mesh, jax.P("x")))
shift = jax.jit(lambda x: jnp.roll(x, 1) + 1)
x, told = shift(x), []
for flavor in ("two", "one", "four"):
    forebay.flavor(flavor)
    try:
        x = shift(x)
    except (ValueError, jax.errors.JaxRuntimeError) as error:
        told.append(str(error).splitlines()[0])
    last = jax.device_put(np.ones(3, np.float32), devices[1]) if flavor == "two" else None
    told.append([np.asarray(x).tolist(), None if last is None else float((last * 2).sum())])
print(json.dumps({"devices": len(devices), "told": told}))
"""


def test_arrays_stay_where_a_flavor_has_fewer_devices(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        flavors = tmp_path / "flavors.toml"
        flavors.write_text(FLAVORS)
        async with pool(**{**REAL, "default_flavor": "four"}, flavors_file=flavors) as running:
            (line,), _ = await output_of(running, COMPUTES)
            found = json.loads(line)
            await running.until(lambda: not running.machine.sessions)
            served = {record["flavor"]: record["devices"] for record in running.records()}
        once = [12, *range(1, 12)]
        refused = "UNIMPLEMENTED: the program is for device 3, and this session has {} now: choose another flavor"
        assert found["devices"] == 4
        assert found["told"] == [
            refused.format("2 devices"),
            [once, 6.0],
            refused.format("1 device"),
            [once, None],
            [[once[-1] + 1, *(value + 1 for value in once[:-1])], None],
        ]
        assert served == COUNTS

    asyncio.run(scenario())
