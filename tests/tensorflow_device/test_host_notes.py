"""What TensorFlow carries out on this machine is told once for each operator, where the program did not ask for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

NOTE = re.compile(r"^forebay: TensorFlow carries out (\w+) on this machine: (.+?)\. Each call copies", re.MULTILINE)
PROGRAM = """
import sys
import tensorflow as tf

x = tf.constant([[4.0, 1.0], [1.0, 3.0]])


def one_by_one():
    for _ in range(2):
        tf.linalg.det(x)
        tf.math.igamma(x, x)
        tf.unique([2.5, 2.5])


def large():
    tf.raw_ops.Svd(input=tf.zeros((2, 256, 256)))


def in_a_function():
    solve = tf.function(lambda x: tf.linalg.inv(x) + 1)
    solve(x), solve(x)


def asked_for():
    with tf.device("/CPU:0"):
        tf.linalg.qr(x)
        tf.function(tf.linalg.eigh)(x)
        tf.function(lambda x: tf.argsort(x))(x)


def asked_for_within():
    @tf.function
    def found(x):
        with tf.device("/CPU:0"):
            return tf.linalg.cholesky(x)

    found(x)


def of_data():
    list(tf.data.Dataset.from_tensor_slices(x).map(lambda row: tf.math.zeta(row, row)))


def words_and_small_numbers():
    tf.strings.length(["a"]), tf.range(3) + 1, tf.constant([7, 2]) // 2, tf.strings.as_string(x[0])


def on_the_device():
    assert (x @ x + tf.nn.relu(x)).device.endswith("GPU:0")


def a_compiled_function():
    total = tf.Variable(1.0)
    add = tf.function(lambda x: total.assign_add(tf.reduce_sum(x)) + x, jit_compile=True)
    tf.function(lambda x: add(x) + 1)(x)


quiet = (asked_for, asked_for_within, of_data, words_and_small_numbers, on_the_device, a_compiled_function)
for stage in (one_by_one, large, in_a_function, *quiet):
    print(f"--{stage.__name__}--", file=sys.stderr, flush=True)
    stage()
"""
WITHOUT_NOTES = "import tensorflow as tf\nprint(tf.linalg.cholesky([[4.0]]).numpy(), tf.constant(1.0).device)"


def errors_of(program: str, **environment: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def stages() -> dict[str, str]:
    """What each part of the program says."""
    parts = re.split(r"^--(\w+)--$", errors_of(PROGRAM), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_each_operator_is_told_once_with_the_reason(stages: dict[str, str]) -> None:
    assert sorted(NOTE.findall(stages["one_by_one"])) == [
        ("Igamma", "XLA has other values for some arguments"),
        ("MatrixDeterminant", "XLA has no program for it"),
        ("Unique", "the size of its result depends on values"),
    ]


def test_how_much_was_copied_is_told(stages: dict[str, str]) -> None:
    assert "copies its tensors from the virtual device and back, 512.0 KiB of arguments this time." in stages["large"]


def test_operators_in_functions_are_told(stages: dict[str, str]) -> None:
    assert NOTE.findall(stages["in_a_function"]) == [("MatrixInverse", "arguments out of range are errors there")]


QUIET = ("asked_for", "asked_for_within", "of_data", "words_and_small_numbers", "on_the_device", "a_compiled_function")


@pytest.mark.parametrize("stage", QUIET)
def test_what_is_where_it_was_asked_for_is_not_told(stage: str, stages: dict[str, str]) -> None:
    assert NOTE.findall(stages[stage]) == []


@pytest.mark.parametrize(("setting", "told"), [("off", False), ("on", True)])
def test_a_setting_leaves_them_out(setting: str, told: bool) -> None:
    errors = errors_of(WITHOUT_NOTES, FOREBAY_TENSORFLOW_NOTES=setting)
    assert ("carries out Cholesky on this machine" in errors) == told
    assert ("FOREBAY_TENSORFLOW_NOTES=off" in errors) == told
