"""What flavors offer, with a real pool and real workers: PyTorch, JAX and `forebay exec`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import fork_server
import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built"),
    pytest.mark.skipif(importlib.util.find_spec("forebay_jax") is None, reason="the plug-in for JAX is not built"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
Make = Callable[..., Any]
PATIENCE_SECONDS = 90
REAL = {"real_workers": True, "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 1}], "process_memory": "1 GiB"}
BODY = {"memory_bytes": 2**30, "equivalents": [{"model": "cpu-dev"}]}
TORCH = "import torch; print(float(torch.arange(4.0, device='cuda').sum()))"
JAX = "import jax.numpy as jnp; print(float(jnp.arange(4.0).sum()))"
BOTH = f"{TORCH}\nimport time; time.sleep(0.1)\n{JAX}"


async def run(running: Any, folder: Path, *words: str, flavor: str, **more: str) -> tuple[int, str, str]:
    """A program on the flavor: its status, and what it said."""
    address = {"FOREBAY_URL": running.service.url, "FOREBAY_TOKEN": "ada", "FOREBAY_FLAVOR": flavor, **more}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        fork_server.services(), *words, cwd=folder, env=os.environ | address, stdout=pipe, stderr=pipe
    )
    output, errors = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    return process.returncode or 0, output.decode(), errors.decode()


def test_a_flavor_serves_what_it_offers_and_refuses_the_rest_in_words_before_anything_is_billed(pool: Make, tmp_path: Path) -> None:
    folder = tmp_path / "folder"  # a user's, beside the pool's
    folder.mkdir()

    async def scenario() -> None:
        async with pool(**REAL) as running:
            for name, runtimes in (("calls", ["torch"]), ("programs", ["xla", "torch"]), ("processes", ["exec"])):
                row = json.loads((await running.call("PUT", f"api/flavors/{name}", "operator", body=BODY | {"runtimes": runtimes})).body)
                assert set(row["runtimes"]) == set(row["runtimes_served"]) == set(runtimes)
            status, output, errors = await run(running, folder, "-c", JAX, flavor="calls")
            offered = "calls does not offer xla (programs of JAX and TensorFlow); choose a flavor that does:"
            assert (status, output) == (1, "") and offered in errors, errors
            status, output, errors = await run(running, folder, "-m", "forebay", "exec", "--", "echo", "here", flavor="calls")
            assert status and not output and "calls does not offer exec (processes of `forebay exec`)" in errors
            status, output, errors = await run(running, folder, "-c", TORCH, flavor="processes")
            assert status and not output and "processes does not offer torch (calls of PyTorch)" in errors
            assert not running.records()
            status, output, errors = await run(running, folder, "-c", BOTH, flavor="calls")
            assert (status, output) == (1, "6.0\n") and "offers no programs of JAX and TensorFlow (xla)" in errors, errors
            assert await run(running, folder, "-c", BOTH, flavor="programs") == (0, "6.0\n6.0\n", "")
            status, output, errors = await run(running, folder, "-m", "forebay", "exec", "--", "echo", "here", flavor="processes")
            assert (status, output) == (0, "here\n"), errors
            assert {record["flavor"] for record in running.records()} == {"calls", "programs", "processes"}

    asyncio.run(scenario())


TENSORFLOW = """
import tensorflow as tf
tf.keras.utils.set_random_seed(7)
weights = tf.Variable(tf.ones((64, 8)))

@tf.function(jit_compile=True)
def step(inputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((inputs @ weights) ** 2)
    weights.assign_sub(0.1 * tape.gradient(loss, weights))
    return loss

net = tf.keras.Sequential([tf.keras.layers.Dense(8, activation="relu"), tf.keras.layers.Dense(1)])
net.compile("sgd", "mse")
losses = [float(step(tf.ones((16, 64)))) for _ in range(3)] + net.fit(tf.ones((16, 4)), tf.ones((16, 1)), verbose=0).history["loss"]
print(weights.device.rpartition(":")[0].rpartition(":")[2], losses)
"""


@pytest.mark.skipif({"tensorflow", "forebay_tensorflow"} - packages_distributions().keys() != set(), reason="make setup-tensorflow first")
def test_tensorflow_computes_where_programs_are_offered_and_is_refused_in_words_elsewhere(pool: Make, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()

    async def scenario() -> None:
        async with pool(**REAL) as running:
            for name, runtimes in (("calls", ["torch"]), ("programs", ["xla", "torch"])):
                await running.call("PUT", f"api/flavors/{name}", "operator", body=BODY | {"runtimes": runtimes})
            status, output, errors = await run(running, folder, "-c", TENSORFLOW, flavor="programs")
            assert status == 0 and output.startswith("GPU "), errors
            assert [record["flavor"] for record in running.records()] == ["programs"]
            status, there, errors = await run(running, folder, "-c", TENSORFLOW, flavor="programs", CUDA_VISIBLE_DEVICES="-1")
            assert status == 0 and there.startswith("CPU "), errors
            ours, theirs = (json.loads(one.partition(" ")[2]) for one in (output, there))
            assert len(ours) == 4 and ours == pytest.approx(theirs, rel=1e-5), "another XLA may add in another order"
            status, output, errors = await run(running, folder, "-c", TENSORFLOW, flavor="calls")
            assert (status, output) == (1, ""), errors
            assert "calls does not offer xla (programs of JAX and TensorFlow); choose a flavor that does:" in errors, errors
            assert len(running.records()) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", [[], ["cuda"], "torch", [None], ["torch"] * 17])
def test_runtimes_that_are_none_are_refused(pool: Make, wrong: object) -> None:
    async def scenario() -> None:
        async with pool() as running:
            refused = await running.call("PUT", "api/flavors/new", "operator", body=BODY | {"runtimes": wrong})
            assert refused.code == 400 and b"runtimes" in refused.body, refused.body
            assert "new" not in running.service.store.flavors()

    asyncio.run(scenario())


def test_a_pool_that_allows_no_processes_says_that_its_flavors_have_none(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(processes=False) as running:
            rows = json.loads((await running.call("GET", "api/flavors", "ada")).body)
            assert {tuple(row["runtimes_served"]) for row in rows} == {("torch", "xla")}
            assert {row["runtimes"] for row in rows} == {None}

    asyncio.run(scenario())


@pytest.mark.parametrize("places", [None, [], ["pypi.org:443"], ["PyPI.org:443", "pypi.org:443", "[2001:db8::1]:8443"]])
def test_a_flavor_keeps_the_places_that_its_processes_may_reach_over_a_restart(pool: Make, places: list[str] | None) -> None:
    kept = None if places is None else list(dict.fromkeys(place.lower() for place in places))

    async def scenario() -> None:
        body = BODY if places is None else BODY | {"egress": places}
        async with pool(warm_workers=0) as running:
            answer = await running.call("PUT", "api/flavors/new", "operator", body=body)
            row = json.loads(answer.body)
            assert answer.code == 200 and row["egress"] == kept, row
            same = await running.call("PUT", "api/flavors/new", "operator", body=body, If_Match=row["etag"])
            assert json.loads(same.body)["etag"] == row["etag"]
            other = json.loads((await running.call("PUT", "api/flavors/new", "operator", body=BODY | {"egress": ["a.example:1"]})).body)
            assert other["etag"] != row["etag"]
            assert (await running.call("PUT", "api/flavors/new", "operator", body=body)).code == 200
        async with pool(warm_workers=0) as running:
            (row,) = [row for row in await running.get("api/flavors") if row["name"] == "new"]
            assert row["egress"] == kept

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "wrong", ["a.example:1", ["*:443"], ["pypi.org"], ["169.254.169.254:80"], ["10.0.0.1:0"], ["a.example:1"] * 65, [7], [""]]
)
def test_places_that_nobody_is_let_out_to_are_refused(pool: Make, wrong: object) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            refused = await running.call("PUT", "api/flavors/new", "operator", body=BODY | {"egress": wrong})
            assert refused.code == 400 and b"egress" in refused.body, refused.body
            assert not [row for row in await running.get("api/flavors") if row["name"] == "new"]

    asyncio.run(scenario())
