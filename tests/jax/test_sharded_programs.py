"""A flavor of several devices is several devices to JAX: programs over them have the results of as many devices of a processor."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for sharded_programs

from sharded_programs import PROGRAMS

SCRIPT = Path(__file__).with_name("sharded_programs.py")
SECONDS_MAX = 500
FLAVOR = """
[[flavors]]
name = "gang"
memory = "1 GiB"
equivalents = [{{ model = "cpu-dev", count = {count} }}]
"""
RAISES = {"arrays_of_two_devices_in_one_call", "rows_that_the_devices_cannot_have_equal_parts_of"}
Results = dict[str, list[np.ndarray[Any, Any]]]


def settings(folder: Path, count: int, devices: int | None = None) -> dict[str, str]:
    """Of a program whose virtual device is so many devices; the host has ``devices``."""
    flavors = folder / "flavors.toml"
    flavors.write_text(FLAVOR.format(count=count))
    return {
        "FOREBAY_URL": "local",
        "FOREBAY_POOL_DEVICES": f'[{{kind = "cpu", model = "cpu-dev", memory = "512 MiB", count = {devices or count}}}]',
        "FOREBAY_POOL_FLAVORS_FILE": str(flavors),
        "FOREBAY_POOL_DEFAULT_FLAVOR": "gang",
    }


def output_of(environment: dict[str, str], *command: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY", "JAX", "XLA"))}
    done = subprocess.run([sys.executable, *command], env=inherited | environment, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def loaded(file: Path) -> Results:
    results: Results = {}
    with np.load(file) as read:
        for key in sorted(read.files):
            results.setdefault(key.partition("/")[0], []).append(read[key])
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Results, Results]]:
    """Of all programs, on so many devices of one session and of this process's processor; carried out once."""
    known: dict[int, tuple[Results, Results]] = {}

    def find(count: int) -> tuple[Results, Results]:
        if count not in known:
            folder = tmp_path_factory.mktemp("sharded")
            ours, theirs = folder / "ours.npz", folder / "theirs.npz"
            told = output_of(settings(folder, count), str(SCRIPT), str(ours))
            shown = ", ".join(f"CudaDevice(id={place})" for place in range(count))
            assert told.splitlines() == [f"[{shown}]", "written"]
            local = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={count}"}
            output_of(local, str(SCRIPT), str(theirs))
            known[count] = loaded(ours), loaded(theirs)
        return known[count]

    return find


@pytest.mark.parametrize("count", [4, *(pytest.param(other, marks=pytest.mark.full_sweep) for other in (2, 3, 8))])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_over_several_devices_has_the_processors_results(
    results: Callable[[int], tuple[Results, Results]], name: str, count: int
) -> None:
    """Development devices are a processor's, so they have the same bits; and so have all parts, each on its device."""
    ours, theirs = (each.get(name, []) for each in results(count))
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes(), f"{one}\n{other}"
    raised = [str(one) for one in ours if one.dtype.kind == "U" and "Error" in str(one)]
    assert bool(raised) == (name in RAISES), raised


SHOWN = """
import jax, jax.numpy as jnp, torch, numpy as np
print(jax.devices(), torch.cuda.device_count(), jax.local_device_count(), jax.process_count())
x = jax.device_put(np.ones((256, 1024), np.float32), jax.NamedSharding(jax.make_mesh((2,), ("x",)), jax.P("x")))
print([device.memory_stats()["bytes_in_use"] >> 10 for device in jax.devices()], torch.cuda.memory_allocated() >> 10)
print([device.memory_stats()["bytes_limit"] >> 20 for device in jax.devices()])
for place, device in enumerate(jax.devices()):
    try:
        jax.device_put(np.ones(600 << 18, np.float32), device)
    except jax.errors.JaxRuntimeError as error:
        print(str(error).partition(" bytes are asked")[0])
y = [jax.device_put(np.full(300 << 18, place, np.float32), device) for place, device in enumerate(jax.devices())]
print([float(one[-1]) for one in y])
try:
    jax.jit(lambda y: y + 1)(y[1])
except jax.errors.JaxRuntimeError as error:
    print(str(error).partition(" bytes are asked")[0])
del y
print([float(jax.jit(lambda x: x + 1)(x).max()), float((torch.ones(2, device="cuda") * 3).sum())])
print("all-reduce" in jax.jit(lambda x: x.sum()).lower(x).compile().as_text())
try:
    jax.jit(lambda x: jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x))(x).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    print(str(error).splitlines()[0])
print(float(x.sum()))
"""


def test_each_device_has_its_part_of_the_memory_and_pytorch_sees_one(tmp_path: Path) -> None:
    words = [line.strip() for line in output_of(settings(tmp_path, 2), "-c", SHOWN).splitlines()]
    assert words == [
        "[CudaDevice(id=0), CudaDevice(id=1)] 1 2 1",
        "[512, 512] 1024",
        "[512, 512]",
        "RESOURCE_EXHAUSTED: cuda:0 is out of memory: 629145600",
        "RESOURCE_EXHAUSTED: cuda:1 is out of memory: 629145600",
        "[0.0, 1.0]",
        "RESOURCE_EXHAUSTED: cuda:1 is out of memory: 314572800",
        "[2.0, 6.0]",
        "True",
        "UNIMPLEMENTED: callbacks in a program over several devices are not served on the virtual device yet",
        "262144.0",
    ]


SURVIVES = """
import os, signal, sys, time
import jax, jax.numpy as jnp, numpy as np
sys.path.append(sys.argv[1])
from jax import lax

def kill(which):
    from killed_training import parent_of, workers
    members = [pid for pid in workers() if b"--standalone" in open(f"/proc/{pid}/cmdline", "rb").read()]
    first = parent_of(members[0])
    os.kill(first if which == "first" else members[0], signal.SIGKILL)
    while first in workers():
        time.sleep(0.05)

def park():
    from forebay import process
    service = process.installed._service()
    (session,) = service.get("api/sessions")
    process.installed.end_span()
    while service.get("api/sessions")[0]["state"] != "resident":
        time.sleep(0.05)
    service.post(f"api/sessions/{session['session']}/park", {})
    while service.get("api/sessions")[0]["state"] != "parked":
        time.sleep(0.05)

mesh = jax.sharding.Mesh(np.array(jax.devices()), ("x",))
chance = np.random.default_rng(7)
rows = jax.NamedSharding(mesh, jax.P("x"))
inputs = jax.device_put(chance.standard_normal((64, 32), np.float32), rows)
weights = jax.device_put(chance.standard_normal((32, 32), np.float32), jax.NamedSharding(mesh, jax.P(None, "x")))
loss = lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2)
step = jax.jit(lambda w, x: w - 0.1 * jax.grad(loss)(w, x), donate_argnums=0)
swap = lambda x: lax.ppermute(x, "x", [(0, 1), (1, 0)]) + lax.axis_index("x")
turn = jax.jit(jax.shard_map(swap, mesh=mesh, in_specs=jax.P("x"), out_specs=jax.P("x")))
for number in range(20):
    weights, inputs = step(weights, inputs), turn(inputs)
    if number in (6, 12):
        weights.block_until_ready()
        for what in sys.argv[2 + (number == 12) :: 2]:
            park() if what == "park" else kill(what)
print(np.asarray(weights).tobytes().hex()[-4096:], float(inputs.sum()))
"""


@pytest.fixture(scope="module")
def undisturbed() -> str:
    local = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    return output_of(local, "-c", SURVIVES, "")


@pytest.mark.parametrize(
    "what",
    [
        ("first", "other", "park"),
        *(pytest.param((each, each), marks=pytest.mark.full_sweep) for each in ("first", "other", "park")),
    ],
    ids="-".join,
)
def test_what_devices_hold_survives(tmp_path: Path, undisturbed: str, what: tuple[str, ...]) -> None:
    """The death of each process of a gang, and leaving the devices: the first and third after some steps, the second after more."""
    device_tests = str(SCRIPT.parent.parent / "device")
    assert output_of(settings(tmp_path, 2), "-c", SURVIVES, device_tests, *what) == undisturbed
