"""Programs in JAX have the results that they have on the processor. What is not served says so, and nothing is computed elsewhere."""

from __future__ import annotations

import os
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

from jax_programs import PROGRAMS

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


REFUSED = {
    "pure_callback": lambda: jax.pure_callback(np.sin, jax.ShapeDtypeStruct((3,), jnp.float32), jnp.ones(3)),
    "debug.print": lambda: jax.jit(lambda x: (jax.debug.print("{}", x), x)[1])(jnp.ones(3)),
    "compiler options": lambda: jax.jit(jnp.sin, compiler_options={"xla_embed_ir_in_executable": True})(jnp.ones(3)),
    "four bits": lambda: jnp.ones(3, jnp.int4) + 0,
}


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_not_served_is_refused_in_a_sentence_and_the_session_goes_on(case: str) -> None:
    kept = jnp.arange(3.0)
    with pytest.raises(Exception, match=r"not served on the virtual device|PJRT_\w+ is not served|does not support|not supported"):
        jax.block_until_ready(REFUSED[case]())
    np.testing.assert_array_equal(kept * 2, [0, 2, 4])


def test_flax_and_optax_train_with_the_losses_of_the_processor() -> None:
    import optax
    from flax import linen

    class Net(linen.Module):
        @linen.compact
        def __call__(self, images: jax.Array) -> jax.Array:
            images = linen.relu(linen.Conv(8, (3, 3))(images))
            images = linen.avg_pool(images, (2, 2), (2, 2)).reshape(images.shape[0], -1)
            return linen.Dense(10)(linen.LayerNorm()(images))

    def train() -> list[float]:
        net, optimizer = Net(), optax.adamw(1e-3)
        chance = np.random.default_rng(SEED)
        images, labels = chance.standard_normal((16, 8, 8, 1)).astype(np.float32), chance.integers(0, 10, 16)
        weights = jax.jit(net.init)(jax.random.key(SEED), images)
        state = jax.jit(optimizer.init)(weights)

        @jax.jit
        def step(weights: Any, state: Any) -> Any:
            def loss(weights: Any) -> jax.Array:
                return optax.softmax_cross_entropy_with_integer_labels(net.apply(weights, images), labels).mean()

            value, slopes = jax.value_and_grad(loss)(weights)
            updates, state = optimizer.update(slopes, state, weights)
            return optax.apply_updates(weights, updates), state, value

        losses = []
        for _ in range(5):
            weights, state, value = step(weights, state)
            losses.append(float(value))
        return losses

    losses = train()
    assert losses == on_processor(train)
    assert losses[-1] < losses[0]


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
