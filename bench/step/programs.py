"""What JAX costs on the virtual device against JAX on this machine's processor: a call for the program's thread, a step, and an upload.

Bars on one host: a call of a compiled function takes the client's thread at most 5 µs more than JAX's own, a step of 20 ms and more at most
1.10 times as long, and arrays go up at 3 GB/s (10^9 bytes). Both sides take turns in one process; the worker is a process of its own on the
same cores, as with a development device. Needs JAX and ``forebay-jax``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from time import perf_counter_ns, sleep, thread_time_ns
from typing import Any

from report import SKIPPED, report

os.environ.setdefault("FOREBAY_URL", "local")
os.environ.setdefault("FOREBAY_FLAVOR", "dev.4gb")

CALLS = 2_000
"""In a block. Nothing is read meanwhile."""
WARM_UP_BLOCKS = 2
REST_SECONDS = 0.02
"""Before a block, until the threads of the other side's kernels wait for work no more."""
WIDTHS = {"step, width 1024": (1024, 5), "step, width 2048": (2048, 3)}
"""Of the layers, and steps in a block."""
UPLOAD_MIB = 256
BAR_CALL_US, BAR_STEP, BAR_UPLOAD = 5.0, 1.10, 3.0

Block = Callable[[], float]
"""Runs once; what it measured."""


def call_of(device: Any) -> Block:
    """Microseconds of this thread's processor for a call."""
    import jax
    import jax.numpy as jnp

    function, x = jax.jit(lambda x: x * 0.5 + 1.0), jax.device_put(jnp.ones(16), device)
    function(x).block_until_ready()

    def block() -> float:
        made = x
        start = thread_time_ns()
        for _ in range(CALLS):
            made = function(made)
        took = thread_time_ns() - start
        made.block_until_ready()
        return took / CALLS / 1e3

    return block


def step_of(width: int, steps: int, device: Any) -> Block:
    """Milliseconds of a training step of four layers, of which the last one's loss is read."""
    import jax
    import jax.numpy as jnp

    def loss(weights: Any, x: Any) -> Any:
        for one in weights:
            x = jnp.tanh(x @ one)
        return jnp.mean(x**2)

    @partial(jax.jit, donate_argnums=0)
    def step(weights: Any, moments: Any, x: Any) -> Any:
        value, slopes = jax.value_and_grad(loss)(weights, x)
        moments = [0.9 * moment + slope for moment, slope in zip(moments, slopes, strict=True)]
        return [one - 0.01 * moment for one, moment in zip(weights, moments, strict=True)], moments, value

    keys = jax.random.split(jax.random.key(0), 4)
    weights: Any = jax.device_put([jax.random.normal(key, (width, width)) / width**0.5 for key in keys], device)
    moments = jax.device_put([jnp.zeros((width, width)) for _ in keys], device)
    x = jax.device_put(jnp.ones((128, width)), device)

    def block() -> float:
        nonlocal weights, moments
        start = perf_counter_ns()
        for _ in range(steps):
            weights, moments, value = step(weights, moments, x)
        float(value)
        return (perf_counter_ns() - start) / steps / 1e6

    return block


def upload_of(device: Any) -> Block:
    """GB/s of an array of this program that becomes one of the device."""
    import jax
    import numpy as np

    array = np.ones(UPLOAD_MIB << 18, np.float32)

    def block() -> float:
        start = perf_counter_ns()
        jax.device_put(array, device).block_until_ready()
        return array.nbytes / (perf_counter_ns() - start)

    return block


def compared(make: Callable[[Any], Block], blocks: int) -> tuple[float, float]:
    """Medians here and on the device, taken by turns."""
    import jax

    sides = [make(jax.devices("cpu")[0]), make(jax.devices()[0])]
    taken: list[list[float]] = [[], []]
    for number in range(WARM_UP_BLOCKS + blocks):
        for side, found in zip(sides, taken, strict=True):
            sleep(REST_SECONDS)
            value = side()
            if number >= WARM_UP_BLOCKS:
                found.append(value)
    return statistics.median(taken[0]), statistics.median(taken[1])


def row(what: str, unit: str, here: float, there: float, bar: str, met: bool) -> dict[str, Any]:
    return {"what": what, "unit": unit, "processor": here, "device": there, "ratio": there / here, "bar": bar, "met": met}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=9, help="blocks of each side (default: 9)")
    blocks = parser.parse_args().blocks
    if find_spec("jax") is None or find_spec("forebay_jax") is None:
        print("JAX and forebay-jax are not installed")
        return SKIPPED
    here, there = compared(call_of, blocks)
    rows = [row("a call, client's thread", "µs", here, there, f"+{BAR_CALL_US:g} µs", there - here <= BAR_CALL_US)]
    for what, (width, steps) in WIDTHS.items():
        here, there = compared(partial(step_of, width, steps), blocks)
        rows.append(row(what, "ms", here, there, f"÷ {BAR_STEP:g}", there / here <= BAR_STEP))
    here, there = compared(upload_of, blocks)
    rows.append(row(f"upload of {UPLOAD_MIB} MiB", "GB/s", here, there, f"{BAR_UPLOAD:g} GB/s", there >= BAR_UPLOAD))
    report("programs", rows, blocks=blocks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
