"""Libraries on JAX have the results that they have on the processor. Of each the test runs where the library is installed:
``pip install equinox diffrax numpyro orbax-checkpoint flax optax``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from forebay import _C

pytestmark = pytest.mark.full_sweep


def equinox() -> Any:
    """Losses of a network, with batches that were normalized and drawn."""
    eqx, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")
    net, optimizer = eqx.nn.MLP(4, 1, 32, 2, key=jax.random.key(0)), optax.adam(1e-2)
    state = optimizer.init(eqx.filter(net, eqx.is_array))
    inputs = jax.random.normal(jax.random.key(1), (64, 4))

    @eqx.filter_jit
    def step(net: Any, state: Any) -> Any:
        loss, slopes = eqx.filter_value_and_grad(lambda net: jnp.mean((jax.vmap(net)(inputs) - inputs.sum(1, keepdims=True)) ** 2))(net)
        updates, state = optimizer.update(slopes, state, net)
        return eqx.apply_updates(net, updates), state, loss

    losses = []
    for _ in range(20):
        net, state, loss = step(net, state)
        losses.append(loss)
    assert float(losses[-1]) < float(losses[0])
    return losses


def diffrax() -> Any:
    """A solver that chooses its steps, of which one calls back to complain of what it cannot solve."""
    solvers = pytest.importorskip("diffrax")
    term, times = solvers.ODETerm(lambda t, y, rate: -rate * y * (1 + t)), solvers.SaveAt(ts=jnp.linspace(0, 3, 7))
    control = solvers.PIDController(rtol=1e-5, atol=1e-6)
    solved = solvers.diffeqsolve(
        term, solvers.Tsit5(), 0.0, 3.0, 0.1, jnp.array([1.0, 2.0]), args=0.7, saveat=times, stepsize_controller=control
    )
    return solved.ys, solved.stats["num_steps"]


def numpyro() -> Any:
    """Draws of NUTS."""
    infer, dist = pytest.importorskip("numpyro.infer"), pytest.importorskip("numpyro.distributions")
    sample = pytest.importorskip("numpyro").sample
    x = np.linspace(-1, 1, 40, dtype=np.float32)
    y = (1.5 * x + 0.3 + 0.1 * np.sin(9 * x)).astype(np.float32)

    def model() -> None:
        slope, height, noise = sample("slope", dist.Normal(0, 1)), sample("height", dist.Normal(0, 1)), sample("noise", dist.HalfNormal(1))
        sample("y", dist.Normal(slope * x + height, noise), obs=y)

    chain = infer.MCMC(infer.NUTS(model), num_warmup=100, num_samples=100, progress_bar=False)
    chain.run(jax.random.key(3))
    drawn = chain.get_samples()
    assert abs(float(drawn["slope"].mean()) - 1.5) < 0.2
    return drawn


def flax() -> Any:
    """Losses of a network with statistics of its batches, and numbers that are left out by chance."""
    linen, optax = pytest.importorskip("flax.linen"), pytest.importorskip("optax")

    class Net(linen.Module):  # type: ignore[misc, name-defined]
        @linen.compact
        def __call__(self, x: Any) -> Any:
            x = linen.relu(linen.BatchNorm(use_running_average=False)(linen.Conv(4, (3, 3))(x)))
            return linen.Dense(3)(linen.Dropout(0.25, deterministic=False)(x.reshape(len(x), -1)))

    net, images, labels = Net(), jax.random.normal(jax.random.key(0), (8, 6, 6, 1)), jnp.arange(8) % 3
    made = net.init({"params": jax.random.key(1), "dropout": jax.random.key(2)}, images)
    weights, statistics, optimizer = made["params"], made["batch_stats"], optax.sgd(0.05)
    state = optimizer.init(weights)

    @jax.jit
    def step(weights: Any, statistics: Any, state: Any, key: Any) -> Any:
        def loss(weights: Any) -> Any:
            given = {"params": weights, "batch_stats": statistics}
            told, changed = net.apply(given, images, mutable=["batch_stats"], rngs={"dropout": key})
            return optax.softmax_cross_entropy_with_integer_labels(told, labels).mean(), changed["batch_stats"]

        (value, statistics_then), slopes = jax.value_and_grad(loss, has_aux=True)(weights)
        updates, state = optimizer.update(slopes, state)
        return optax.apply_updates(weights, updates), statistics_then, state, value

    losses = []
    for number in range(10):
        weights, statistics, state, value = step(weights, statistics, state, jax.random.key(number))
        losses.append(value)
    return losses, statistics


@pytest.mark.parametrize("program", [equinox, diffrax, numpyro, flax])
def test_a_librarys_results_have_the_bits_of_the_processor(program: Callable[[], Any]) -> None:
    with jax.default_device(jax.devices("cpu")[0]):
        expected = program()
    torch.cuda.synchronize()
    before = _C.statistics()["commands"]
    given = program()
    assert _C.statistics()["commands"] > before, "it was carried out there"
    pairs = list(zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True))
    assert pairs
    for ours, theirs in pairs:
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_orbax_saves_from_the_device_and_restores_to_it(tmp_path: Path) -> None:
    checkpoints = pytest.importorskip("orbax.checkpoint")
    tree = {"w": jax.random.normal(jax.random.key(5), (33, 7)), "n": jnp.arange(5), "b": jnp.array([1.5, jnp.nan, -0.0], jnp.bfloat16)}
    with checkpoints.StandardCheckpointer() as saver:
        saver.save(tmp_path / "made", tree)
        saver.wait_until_finished()
        back = saver.restore(tmp_path / "made", jax.tree.map(jnp.zeros_like, tree))
    for name, array in tree.items():
        assert back[name].dtype == array.dtype and back[name].devices() == {jax.devices()[0]}
        assert np.asarray(back[name]).tobytes() == np.asarray(array).tobytes()
