"""Programs on the virtual device call functions of this process: with the results, the order and the errors of the processor."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax import lax
from jax.experimental import io_callback

sys.path.append(str(Path(__file__).parent.parent / "device"))  # for killed_training

from killed_training import workers

FLOATS, HALVES = jax.ShapeDtypeStruct((3,), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.bfloat16)


def on_processor(function: Any) -> Any:
    with jax.default_device(jax.devices("cpu")[0]):
        return function()


def sine(x: Any) -> Any:
    return jax.pure_callback(lambda x: np.sin(x), jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")


PURE = {
    "alone": lambda: sine(jnp.arange(3.0)),
    "in a program": lambda: jax.jit(lambda x: sine(x * 2) + 1)(jnp.arange(3.0)),
    "mapped": lambda: jax.vmap(sine)(jnp.arange(6.0).reshape(2, 3)),
    "in a loop": lambda: jax.jit(lambda x: lax.scan(lambda c, _: (sine(c) + 1, c), x, length=5))(jnp.arange(3.0)),
    "in a branch": lambda: jax.jit(lambda i, x: lax.cond(i > 0, sine, jnp.cos, x))(1, jnp.arange(3.0)),
    "of no array": lambda: jax.jit(lambda: jax.pure_callback(lambda: np.float32(4), jax.ShapeDtypeStruct((), jnp.float32)))(),
    "of many": lambda: jax.pure_callback(lambda a, b: (b, a), (FLOATS, HALVES), jnp.ones(2, jnp.bfloat16), jnp.arange(3.0)),
    "of an empty one": lambda: sine(jnp.zeros((0, 3))),
}


@pytest.mark.parametrize("case", list(PURE))
def test_a_pure_callback_has_the_results_that_it_has_on_the_processor(case: str) -> None:
    given, expected = PURE[case](), on_processor(PURE[case])
    for ours, theirs in zip(jax.tree.leaves(given), jax.tree.leaves(expected), strict=True):
        assert ours.devices() == {jax.devices()[0]}
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_effects_come_in_order_and_once() -> None:
    seen: list[int] = []

    def count(x: Any) -> Any:
        seen.append(int(x))
        return np.int32(len(seen))

    @jax.jit
    def program(x: jax.Array) -> jax.Array:
        def step(carry: jax.Array, number: jax.Array) -> tuple[jax.Array, None]:
            return carry + io_callback(count, jax.ShapeDtypeStruct((), jnp.int32), number, ordered=True), None

        return lax.scan(step, x, jnp.arange(5))[0]

    first, second = program(jnp.int32(0)), program(jnp.int32(100))
    jax.effects_barrier()
    assert seen == [*range(5), *range(5)]
    assert (int(first), int(second)) == (1 + 2 + 3 + 4 + 5, 100 + 6 + 7 + 8 + 9 + 10)


def test_programs_print(capfd: pytest.CaptureFixture[str]) -> None:
    @jax.jit
    def program(x: jax.Array) -> jax.Array:
        jax.debug.print("x is {}", x)
        jax.debug.print("and {y}", y=x + 1, ordered=True)
        return x

    program(jnp.arange(2))
    jax.effects_barrier()
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "and [1 2]", "x is [0 1]"]


def test_an_exception_reaches_the_program_and_what_comes_after_goes_on() -> None:
    def fail(x: Any) -> Any:
        raise LookupError("the callback's own words")

    kept = jnp.arange(3.0)
    before = torch.cuda.memory_allocated()
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"(?s)error calling callback.*LookupError: the callback's own words"):
        jax.jit(lambda x: jax.pure_callback(fail, FLOATS, x) + 1)(kept).block_until_ready()
    np.testing.assert_array_equal(kept + 1, [1, 2, 3])
    assert torch.cuda.memory_allocated() == before


def test_an_interrupt_in_a_callback_is_the_programs() -> None:
    def interrupt(x: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jax.jit(lambda x: jax.pure_callback(interrupt, FLOATS, x))(jnp.arange(3.0)).block_until_ready()
        threading.Event().wait(1)  # the signal comes between two instructions
    np.testing.assert_array_equal(jnp.arange(3.0) + 1, [1, 2, 3])


def test_a_callback_that_uses_the_device_is_refused_in_a_sentence() -> None:
    kept = jnp.arange(3.0)

    def uses(x: Any) -> Any:
        return np.asarray(kept * x)

    with pytest.raises(jax.errors.JaxRuntimeError, match="a host callback cannot use the virtual device"):
        jax.jit(lambda x: jax.pure_callback(uses, FLOATS, x))(kept).block_until_ready()
    np.testing.assert_array_equal(kept * 2, [0, 2, 4])


def test_no_callback_is_called_again_for_a_worker_that_died() -> None:
    seen: list[int] = []

    def count(x: Any) -> Any:
        seen.append(int(x))
        return np.float32(len(seen))

    program = jax.jit(lambda x: io_callback(count, jax.ShapeDtypeStruct((), jnp.float32), x) + x)
    made = program(jnp.float32(1))
    for worker in workers():
        os.kill(worker, signal.SIGKILL)
    with pytest.raises(jax.errors.JaxRuntimeError, match="lost"):
        np.asarray(made + 1)
    assert seen == [1]
    assert float(program(jnp.float32(1))) == 3, "the next session goes on"


def test_another_thread_works_on_while_a_callback_runs() -> None:
    began, ended = threading.Event(), threading.Event()

    def slow(x: Any) -> Any:
        began.set()
        assert ended.wait(20)
        return x

    def work() -> None:
        began.wait(20)
        threading.Timer(0.3, ended.set).start()
        sums.append(float((torch.ones(1000, device="cuda:0") * 2).sum()))

    sums: list[float] = []
    other = threading.Thread(target=work)
    other.start()
    made = jax.jit(lambda x: jax.pure_callback(slow, FLOATS, x) + 1)(jnp.arange(3.0))
    other.join(30)
    assert sums == [2000.0]
    np.testing.assert_array_equal(made, [1, 2, 3])
