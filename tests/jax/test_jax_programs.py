"""Programs in JAX have the results that they have on the processor. What is not served says so, and nothing is computed elsewhere."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from forebay import _C

sys.path.insert(0, str(Path(__file__).parent))  # for jax_programs
sys.path.append(str(Path(__file__).parent.parent / "device"))  # for killed_training

from jax_programs import PROGRAMS
from killed_training import workers

SEED = 7
BRIEF = {"jit", "vmap", "scan", "fft", "bfloat16", "float8", "complex_numbers", "empty_and_scalar", "qr", "donation", "copies"}
"""Programs that every run tries: each way an array or a program goes, and none that is compiled in many pieces."""


@pytest.fixture(autouse=True)
def no_failure_left_behind() -> Iterator[None]:
    yield
    torch.cuda.synchronize()


def commands() -> int:
    return _C.statistics()["commands"]


def on_processor(program: Any) -> Any:
    with jax.default_device(jax.devices("cpu")[0]):
        return program()


def test_the_devices_are_the_virtual_ones() -> None:
    assert [str(device) for device in jax.devices()] == ["cuda:0"]
    assert repr(jax.devices()) == "[CudaDevice(id=0)]"
    assert (jax.default_backend(), jax.devices("gpu"), jax.local_device_count()) == ("gpu", jax.devices("cuda"), 1)
    assert jax.devices()[0].device_kind == torch.cuda.get_device_name(0)


@pytest.mark.parametrize("name", [name if name in BRIEF else pytest.param(name, marks=pytest.mark.full_sweep) for name in PROGRAMS])
def test_a_program_has_the_results_that_it_has_on_the_processor(name: str) -> None:
    """A development device is a processor, so they have the same bits."""
    expected, before = on_processor(PROGRAMS[name]), commands()
    given = PROGRAMS[name]()
    assert commands() > before, "it was carried out there"
    for ours, theirs in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        one, other = np.asarray(ours), np.asarray(theirs)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        np.testing.assert_array_equal(one, other)


def test_a_call_is_not_waited_for() -> None:
    step = jax.jit(lambda x: x * 2 + 1)
    x = step(jnp.ones(3)).block_until_ready()
    asked = _C.statistics()["syncs"]
    for _ in range(20):
        x = step(x)
    assert _C.statistics()["syncs"] == asked
    assert float(x[0]) == 2.0**22 - 1


def test_arrays_count_as_memory_of_the_session_that_pytorch_uses_too() -> None:
    before = torch.cuda.memory_allocated()
    x = jnp.ones((1024, 1024))
    y = torch.ones(1024, 1024, device="cuda:0")
    assert torch.cuda.memory_allocated() - before == 2 * (4 << 20)
    stats = jax.devices()[0].memory_stats()
    assert stats is not None and stats["bytes_in_use"] == torch.cuda.memory_allocated()
    assert float(x.sum()) == float(y.sum())
    del x, y
    assert torch.cuda.memory_allocated() == before


def test_too_much_memory_is_an_error_and_the_rest_stays() -> None:
    kept = jnp.arange(4.0)
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED.*out of memory"):
        jax.jit(lambda: jnp.ones((1 << 20, 1 << 10)))()
    np.testing.assert_array_equal(kept + 1, [1, 2, 3, 4])


def test_a_donated_array_is_deleted_and_its_memory_given_back() -> None:
    x = jnp.ones(1 << 20)
    before = torch.cuda.memory_allocated()
    y = jax.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert x.is_deleted() and torch.cuda.memory_allocated() == before
    with pytest.raises(RuntimeError, match="deleted"):
        x + 1
    assert float(y[0]) == 2


def test_a_failure_on_the_device_is_told_with_its_line_and_once() -> None:
    """The product needs more memory while the program runs than the device has; nobody knows before."""
    smallest = jax.jit(lambda x: jnp.sort(x @ x.T, axis=0)[0, 0])
    made = smallest(jnp.ones((20000, 2)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"RESOURCE_EXHAUSTED: xla::jit__lambda: CUDA out of memory") as told:
        made.block_until_ready()
    assert re.search(r"issued at .*test_jax_programs\.py, line \d+", str(told.value))
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of memory"):
        np.asarray(made)
    assert float(smallest(jnp.ones((20, 2)))) == 2


def test_a_worker_that_dies_is_replaced_and_its_work_done_again() -> None:
    def train(kills: bool) -> jax.Array:
        chance = np.random.default_rng(SEED)
        weights, inputs = (jnp.asarray(chance.standard_normal(sizes), jnp.float32) for sizes in ((32, 32), (64, 32)))
        step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w))
        for number in range(20):
            weights = step(weights, inputs)
            if kills and number == 9:
                weights.block_until_ready()
                for worker in workers():
                    os.kill(worker, signal.SIGKILL)
        return weights

    expected = on_processor(lambda: train(False))
    np.testing.assert_array_equal(train(True), expected)


REFUSED = {
    "large callbacks": lambda: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((1 << 22,), jnp.float32), jnp.ones(1 << 22)),
    "compiler options": lambda: jax.jit(jnp.sin, compiler_options={"xla_embed_ir_in_executable": True})(jnp.ones(3)),
    "four bits": lambda: jnp.ones(3, jnp.int4) + 0,
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_not_served_is_refused_in_a_sentence_and_the_session_goes_on(case: str) -> None:
    kept = jnp.arange(3.0)
    with pytest.raises(Exception, match=r"not served on the virtual device|PJRT_\w+ is not served|does not support|not supported"):
        jax.block_until_ready(REFUSED[case]())
    np.testing.assert_array_equal(kept * 2, [0, 2, 4])


def losses_of(initial: Any, apply: Any) -> list[float]:
    """Of a classifier that is trained by optax: its weights at first, and what it makes of weights and images."""
    import optax

    optimizer = optax.adamw(1e-3)
    chance = np.random.default_rng(SEED)
    images, labels = chance.standard_normal((16, 8, 8, 1)).astype(np.float32), chance.integers(0, 10, 16)
    weights = jax.jit(initial)(jax.random.key(SEED), images)
    state = jax.jit(optimizer.init)(weights)

    @jax.jit
    def step(weights: Any, state: Any) -> Any:
        def loss(weights: Any) -> jax.Array:
            return optax.softmax_cross_entropy_with_integer_labels(apply(weights, images), labels).mean()

        value, slopes = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(slopes, state, weights)
        return optax.apply_updates(weights, updates), state, value

    losses = []
    for _ in range(5):
        weights, state, value = step(weights, state)
        losses.append(float(value))
    assert losses[-1] < losses[0]
    return losses


def test_optax_trains_with_the_losses_of_the_processor() -> None:
    def train() -> list[float]:
        initial, apply = lambda key, _: jax.random.normal(key, (64, 10)), lambda weights, images: images.reshape(16, 64) @ weights
        return losses_of(initial, apply)

    assert train() == on_processor(train)


@pytest.mark.full_sweep
def test_flax_trains_with_the_losses_of_the_processor() -> None:
    from flax import linen

    layers = linen.Conv(8, (3, 3)), linen.relu, lambda images: images.reshape(len(images), -1), linen.LayerNorm(), linen.Dense(10)
    net = linen.Sequential(layers)

    def train() -> list[float]:
        return losses_of(net.init, net.apply)

    assert train() == on_processor(train)


RESTARTED = """
import jax, jax.numpy as jnp
def step(weights, inputs):
    for _ in range(6):
        inputs = jnp.tanh(inputs @ weights) + jnp.linalg.solve(weights + 9 * jnp.eye(32), inputs)
    return (inputs ** 2).mean()
made = jax.jit(jax.value_and_grad(step))(jnp.ones((32, 32)) / 3, jnp.ones((32, 32)))
print([part.tobytes().hex() for part in jax.device_get(made)])
"""


def test_a_restarted_program_finds_what_was_compiled(tmp_path: Path) -> None:
    def run() -> str:
        """In a process with a pool of its own."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY")}
        environment = inherited | {"FOREBAY_URL": "local", "XDG_CACHE_HOME": str(tmp_path)}
        done = subprocess.run([sys.executable, "-c", RESTARTED], env=environment, capture_output=True, text=True, timeout=250, check=True)
        return done.stdout

    first = run()
    kept = {path: path.stat().st_ino for path in tmp_path.rglob("*.so")}
    assert kept, "the step takes more than a tenth of a second to compile"
    for path in kept:
        os.utime(path, (1, 1))
    assert run() == first
    assert {path: path.stat().st_ino for path in tmp_path.rglob("*.so")} == kept, "none was compiled again"
    assert all(path.stat().st_mtime > 1 for path in kept), "each was read"


MISSING = """
import jax, jax.numpy as jnp
try:
    print("computed on", jnp.ones(3).devices())
except RuntimeError as error:
    print("refused:", error)
"""


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "refused: Unable to initialize backend 'cuda': There is no virtual device for JAX in this process: FOREBAY_URL is not set."),
        ({"FOREBAY_URL": "nonsense"}, "refused: Unable to initialize backend 'cuda': There is no virtual device for JAX in this process: "),
        ({"JAX_PLATFORMS": "cpu"}, "computed on {CpuDevice(id=0)}"),
    ],
    ids=["off", "wrong", "processor"],
)
def test_without_a_virtual_device_nothing_is_computed_unasked(environment: dict[str, str], words: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY", "JAX"))}
    done = subprocess.run([sys.executable, "-c", MISSING], env=inherited | environment, capture_output=True, text=True, timeout=200)
    assert done.stdout.startswith(words), done.stdout + done.stderr
