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
    "a row that there is not": lambda: tf.gather(tf.ones((2, 3)), [0, 2]),
    "a row below zero": lambda: tf.gather(tf.ones((2, 3)), tf.constant([-1], tf.int64), axis=-2),
    "a column that there is not": lambda: tf.gather(tf.ones((5, 3)), tf.constant([3], tf.int64), axis=1),
    "a place that there is not": lambda: tf.gather_nd(tf.ones((2, 3)), [[1, 0], [1, 3]]),
    "numbers put where no place is": lambda: tf.scatter_nd([[4]], [1.0], [4]),
    "numbers put below zero": lambda: tf.tensor_scatter_nd_update(tf.ones((4,)), [[-1]], [1.0]),
    "a segment that there is not": lambda: tf.math.unsorted_segment_sum(tf.ones((2, 3)), [0, 2], 2),
    "a label that there is not": lambda: tf.nn.sparse_softmax_cross_entropy_with_logits([0, 3], tf.ones((2, 3))),
    "a band that is wider than the matrix": lambda: tf.linalg.band_part(tf.ones((3, 2)), 0, 3),
}


ERRORS_ONE_BY_ONE = {
    "a diagonal that there is not": lambda: tf.linalg.diag_part(tf.ones((3, 3)), k=-99),
    "a row of a variable that there is not": lambda: tf.nn.embedding_lookup(tf.Variable(tf.ones((2, 3))), [2]),
    "a place of a variable that there is not": lambda: tf.Variable(tf.ones((2, 3))).gather_nd([[2]]),
    "numbers put into a variable where no place is": lambda: tf.Variable(tf.ones((2, 3))).scatter_add(tf.IndexedSlices([[1.0] * 3], [2])),
    "numbers put into a variable by places": lambda: tf.Variable(tf.ones((2, 3))).scatter_nd_update([[1, 3]], [1.0]),
    "sizes that differ": lambda: tf.raw_ops.SigmoidGrad(y=tf.ones((2, 3)), dy=tf.ones((3,))),
}
"""Functions make no variables, and see sizes before they run."""


WAYS = [*((name, False) for name in ERRORS | ERRORS_ONE_BY_ONE), *((name, True) for name in ERRORS)]


@pytest.mark.parametrize(("name", "in_function"), WAYS)
def test_what_is_an_error_on_the_processor_is_one_here(name: str, in_function: bool) -> None:
    case = (ERRORS | ERRORS_ONE_BY_ONE)[name]
    for device in ("/CPU:0", "/GPU:0"):
        with pytest.raises(tf.errors.InvalidArgumentError):
            on(device, tf.function(case) if in_function else case)


def test_places_within_bounds_and_segments_below_zero_have_values() -> None:
    def found() -> Any:
        x, variable = tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.Variable([[5.0, 6.0], [7.0, 8.0]])
        variable.scatter_nd_add(tf.constant([[1, 0], [1, 0]], tf.int64), [1.0, 2.0])
        gathered = tf.gather(x, tf.constant([], tf.int64)), tf.gather(x, [[1], [0]], batch_dims=1, axis=1)
        return *gathered, variable.sparse_read([1, 1]), tf.math.unsorted_segment_sum(x, [-7, 1], 2), tf.linalg.band_part(x, 2, -5)

    check_same(on("/GPU:0", found), on("/CPU:0", found))


def test_a_pool_of_numbers_that_are_none_is_the_processors() -> None:
    images = tf.constant([[[[np.nan], [1.0], [-np.inf], [-np.inf]], [[2.0], [np.nan], [-np.inf], [-np.inf]]]])

    def pooled() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(images)
            made = tf.nn.max_pool2d(images, 2, 2, "VALID")
        return made, tape.gradient(made, images)

    check_same(on("/GPU:0", tf.function(pooled)), on("/CPU:0", tf.function(pooled)))


def test_a_generator_has_the_processors_numbers() -> None:
    def drawn() -> Any:
        generator = tf.random.Generator.from_seed(7)
        first = generator.normal((3,)), generator.uniform((2,), maxval=9, dtype=tf.int32)
        generator.skip(5)
        return *first, generator.uniform((3,)), generator.state.read_value()

    for one, other in zip(on("/GPU:0", drawn), on("/CPU:0", drawn), strict=True):
        np.testing.assert_array_equal(one, other)


def test_slopes_of_empty_slices_have_the_sizes_of_what_was_sliced() -> None:
    def slopes(begin: int, end: int) -> Any:
        x = tf.Variable([[1.0, 2.0, 3.0]])
        with tf.GradientTape() as tape:
            y = x[:, begin:end]
        return tape.gradient(y, x)

    for begin, end in ((3, 3), (2, 1), (-1, -3), (0, 0)):
        check_same(on("/GPU:0", lambda one=begin, other=end: slopes(one, other)), [np.zeros((1, 3), np.float32)])
    with pytest.raises(tf.errors.UnimplementedError, match="of this empty slice is not served"):
        on("/GPU:0", lambda: slopes(9, 2))


REFUSED = {
    "ResourceScatterMax": lambda x: x.scatter_max(tf.IndexedSlices([np.nan], [1])),
    "ResourceScatterMin": lambda x: x.scatter_min(tf.IndexedSlices([np.nan], [1])),
    "ResourceScatterDiv": lambda x: x.scatter_div(tf.IndexedSlices([0.0], [1])),
    "ResourceApplyFtrl": lambda x: tf.raw_ops.ResourceApplyFtrl(
        var=x.handle, accum=x.handle, linear=x.handle, grad=[np.nan] * 3, lr=0.1, l1=1.0, l2=0.0, lr_power=-0.5
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_changes_of_variables_with_other_values_are_refused(name: str) -> None:
    variable = tf.Variable([1.0, 2.0, 3.0])
    with pytest.raises(tf.errors.UnimplementedError, match=f"{name} is not served on the virtual device"):
        REFUSED[name](variable)
    np.testing.assert_array_equal(variable, [1, 2, 3])
    whole = tf.Variable(tf.constant([1, 2, 3], tf.int64))
    whole.scatter_max(tf.IndexedSlices(tf.constant([9], tf.int64), [1]))
    np.testing.assert_array_equal(whole, [1, 9, 3])


def test_random_numbers_are_the_processors() -> None:
    def drawn() -> Any:
        return tf.random.normal((5,)), tf.keras.initializers.GlorotUniform(seed=3)((4, 4)), tf.random.stateless_normal((3,), [1, 2])

    for one, other in zip(on("/GPU:0", drawn), on("/CPU:0", drawn), strict=True):
        np.testing.assert_array_equal(one, other)
