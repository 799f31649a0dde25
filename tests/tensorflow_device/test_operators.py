"""TensorFlow's operators have the values that they have on the processor, one by one and in functions, or say that they are not served."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

sys.path.insert(0, str(Path(__file__).parent))  # for the next two

from comparisons import arrays_of, check_same
from operator_cases import CASES

SEED = 3
BRIEF = {"sums", "casts", "ties", "sizes_by_values", "gathered", "gradients", "lists", "control_flow", "large_whole_numbers", "counts"}
"""Cases that every run tries."""


@pytest.fixture(autouse=True)
def nothing_is_computed_beforehand() -> None:
    """TensorFlow computes what is constant in a function on the processor."""
    tf.config.optimizer.set_experimental_options({"constant_folding": False})


def on(device: str, case: Any) -> list[np.ndarray]:
    tf.random.set_seed(SEED)
    with tf.device(device):
        return arrays_of(case())


@pytest.mark.parametrize("in_function", [False, True], ids=["one by one", "in a function"])
@pytest.mark.parametrize("name", [name if name in BRIEF else pytest.param(name, marks=pytest.mark.full_sweep) for name in CASES])
def test_operators_have_the_values_of_the_processor(name: str, in_function: bool) -> None:
    case = CASES[name]
    ours, theirs = [on(device, tf.function(case) if in_function else case) for device in ("/GPU:0", "/CPU:0")]
    check_same(ours, theirs)


VALUES = np.array([0.0, -0.0, 1.0, 1.0, -1.0, 0.5, 2.5, -2.5, 3.0, 0.1, -7.0, 7.0], np.float32)
KINDS = ("float32", "float64", "bfloat16", "float16", "int8", "int32", "int64", "uint8", "bool", "complex64")


def compiled_operators() -> list[tuple[str, list[str]]]:
    """The operators that XLA compiles on the device and that take tensors of one type alone, with their inputs' names."""
    from tensorflow.python.framework import kernels, op_def_registry

    found = {}
    for kernel in kernels.get_all_registered_kernels().kernel:
        operator = op_def_registry.get(kernel.op)
        if kernel.device_type != "FOREBAY" or kernel.priority != 1 or operator is None:
            continue
        inputs = list(operator.input_arg)
        needed = [one for one in operator.attr if not one.HasField("default_value") and one.type != "type"]
        if inputs and not needed and all(one.type_attr == inputs[0].type_attr and one.type_attr and not one.number_attr for one in inputs):
            found[kernel.op] = [one.name for one in inputs]
    return sorted(found.items())


UNLIKE = {"Erf", "Empty"}
"""Erf of infinity in float64 is no number in TensorFlow on a processor."""


@pytest.mark.full_sweep
@pytest.mark.parametrize("kind", KINDS)
def test_every_operator_of_one_type_has_the_values_of_the_processor(kind: str) -> None:
    tried = 0
    for operator, names in compiled_operators():
        for sizes in ((12,), (3, 4), (0, 3), ()):
            count = int(np.prod(sizes))
            values = np.abs(VALUES) if kind == "uint8" else VALUES
            given = {name: tf.cast(np.roll(values, 5 * place)[:count].reshape(sizes), kind) for place, name in enumerate(names)}
            case = lambda operator=operator, given=given: getattr(tf.raw_ops, operator)(**given)  # noqa: E731
            if operator in UNLIKE:
                continue
            try:
                expected = on("/CPU:0", case)
            except (tf.errors.OpError, TypeError, ValueError):  # it does not take this
                continue
            try:
                given_there = on("/GPU:0", case)
            except tf.errors.OpError:  # that is no value
                continue
            tried += 1
            try:
                check_same(given_there, expected)
            except AssertionError as error:
                raise AssertionError(f"{operator} of {kind}, sizes {sizes}: {error}") from None
    assert tried > 100 or kind == "bool"


ERRORS = {
    "a number that is none": lambda: tf.debugging.check_numerics(tf.constant([1.0, np.nan]) * 2, "words"),
    "a quotient by zero": lambda: tf.constant([4, 5], tf.int64) // tf.constant([2, 0], tf.int64),
    "a remainder by zero": lambda: tf.constant([4, 5], tf.int64) % tf.constant([2, 0], tf.int64),
    "a power below zero": lambda: tf.constant([4, 5], tf.int64) ** tf.constant([2, -1], tf.int64),
    "a count of less than nothing": lambda: tf.raw_ops.DenseBincount(input=[1, -1], size=4, weights=[1.0, 1.0]),
    "no permutation": lambda: tf.math.invert_permutation(tf.constant([0, 7], tf.int64)),
    "a length below zero": lambda: tf.reverse_sequence(tf.ones((2, 3)), [1, -1], seq_axis=1),
    "a diagonal that there is not": lambda: tf.linalg.diag_part(tf.ones((3, 3)), k=-99),
}


@pytest.mark.parametrize("name", ERRORS)
def test_what_is_an_error_on_the_processor_is_one_here(name: str) -> None:
    for device in ("/CPU:0", "/GPU:0"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            on(device, ERRORS[name])


def test_random_numbers_are_the_processors() -> None:
    def drawn() -> Any:
        return tf.random.normal((5,)), tf.keras.initializers.GlorotUniform(seed=3)((4, 4)), tf.random.stateless_normal((3,), [1, 2])

    for one, other in zip(on("/GPU:0", drawn), on("/CPU:0", drawn), strict=True):
        np.testing.assert_array_equal(one, other)
