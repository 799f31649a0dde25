"""Programs in TensorFlow and Keras compute on the virtual device, with the results that they have on the processor."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

os.environ["KERAS_BACKEND"] = "tensorflow"
sys.path.append(str(Path(__file__).parent.parent / "frameworks"))  # for keras_programs

import tensorflow as tf
from forebay import _C
from keras_programs import PROGRAMS

BRIEF = {"callbacks"}
"""Programs that every run tries."""


def commands() -> int:
    return int(_C.statistics()["commands"])


def test_the_device_is_listed_as_a_gpu() -> None:
    (device,) = tf.config.list_physical_devices("GPU")
    assert (device.name, device.device_type) == ("/physical_device:GPU:0", "GPU")
    assert [one.name for one in tf.config.list_logical_devices("GPU")] == ["/device:GPU:0"]


def test_what_is_placed_nowhere_is_computed_there() -> None:
    before = commands()
    x = tf.constant([1.0, 2.0, 3.0])
    y = tf.sin(x) * 2
    assert y.device.endswith("/device:GPU:0")
    np.testing.assert_allclose(y, np.sin([1.0, 2.0, 3.0]) * 2, rtol=1e-6)
    assert commands() > before


def test_the_host_computes_where_the_program_says_so() -> None:
    before = commands()
    with tf.device("/CPU:0"):
        assert float(tf.reduce_sum(tf.ones(3) * 2)) == 6
    assert commands() == before


@pytest.mark.parametrize("compiled", [False, True], ids=["by operators", "as a whole"])
def test_a_function_with_its_slope_trains(compiled: bool) -> None:
    def train() -> float:
        chance = np.random.default_rng(1)
        weights = tf.Variable(chance.standard_normal((8, 4)).astype(np.float32))
        inputs, wanted = (tf.constant(chance.standard_normal((32, size)).astype(np.float32)) for size in (8, 4))

        @tf.function(jit_compile=compiled)
        def step() -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.tanh(inputs @ weights) - wanted) ** 2)
            weights.assign_sub(0.1 * tape.gradient(loss, weights))
            return loss

        return [float(step()) for _ in range(5)][-1]

    with tf.device("/CPU:0"):
        expected = train()
    assert train() == pytest.approx(expected, rel=1e-6)


def test_a_convolution_with_what_follows_it_is_computed_by_operators() -> None:
    chance = np.random.default_rng(1)
    images, filters, bias = (chance.standard_normal(sizes).astype(np.float32) for sizes in ((2, 6, 6, 3), (3, 3, 3, 4), (4,)))

    def layer(images: tf.Tensor) -> tf.Tensor:
        return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(images, filters, 1, "VALID"), bias))

    with tf.device("/CPU:0"):
        expected = layer(images)
    found = tf.function(layer)(tf.constant(images))
    assert found.device.endswith("GPU:0")
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_two_variables_of_one_buffer_stay_apart() -> None:
    first = tf.Variable([1.0, 2.0])
    second = tf.Variable(first)
    second.assign(first.read_value())

    @tf.function(jit_compile=True)
    def change() -> None:
        first.assign_add([1.0, 1.0])
        second.assign_sub([1.0, 1.0])

    change()
    np.testing.assert_array_equal(first, [2, 3])
    np.testing.assert_array_equal(second, [0, 1])


def test_a_checkpoint_is_restored(tmp_path: Path) -> None:
    weights, steps = tf.Variable([1.5, -2.0]), tf.Variable(3, dtype=tf.int64)
    saved = tf.train.Checkpoint(weights=weights, steps=steps).save(str(tmp_path / "state"))
    weights.assign([0.0, 0.0])
    steps.assign(0)
    tf.train.Checkpoint(weights=weights, steps=steps).restore(saved).assert_consumed()
    np.testing.assert_array_equal(weights, [1.5, -2.0])
    assert int(steps) == 3 and weights.device.endswith("GPU:0")


def test_a_result_of_a_size_that_only_the_values_tell_is_refused_in_a_compiled_function() -> None:
    kept = tf.constant([1.0, 2.0])
    with pytest.raises(tf.errors.OpError, match="is not served on the virtual device"):
        tf.function(lambda x: tf.where(x > 1), jit_compile=True)(kept)
    np.testing.assert_array_equal(kept + 1, [2, 3])


def test_data_is_read_on_the_host_and_used_there() -> None:
    data = tf.data.Dataset.from_tensor_slices((np.arange(8, dtype=np.float32), ["a"] * 8)).shuffle(8, seed=1).batch(3).prefetch(1)
    with tf.device("/GPU:0"):
        total = sum(float(tf.reduce_sum(numbers * 2)) for numbers, _ in data)
    assert total == 56


@pytest.mark.parametrize("name", [name if name in BRIEF else pytest.param(name, marks=pytest.mark.full_sweep) for name in PROGRAMS])
def test_a_program_in_keras_has_the_results_of_the_processor(name: str, tmp_path: Path) -> None:
    before = commands()
    ours = PROGRAMS[name](tmp_path)
    assert commands() > before
    with tf.device("/CPU:0"):
        theirs = PROGRAMS[name](tmp_path)
    np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


PROGRAM = """
import tensorflow as tf
try:
    print("computed on", tf.constant([1.0]).device.rpartition("/")[2])
except Exception as error:
    print("refused:", error)
"""


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "There is no virtual device for TensorFlow in this process: FOREBAY_URL is not set."),
        ({"FOREBAY_URL": "nonsense"}, "There is no virtual device for TensorFlow in this process: "),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "computed on device:CPU:0"),
    ],
    ids=["off", "wrong", "processor"],
)
def test_without_a_virtual_device_nothing_is_computed_unasked(environment: dict[str, str], words: str) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY", "CUDA"))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=inherited | environment, capture_output=True, text=True, timeout=200)
    told = done.stdout + done.stderr
    assert words in told, told
    assert words.startswith("computed") or "computed on" not in done.stdout
