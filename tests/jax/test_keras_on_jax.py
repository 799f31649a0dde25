"""Keras with JAX as its backend trains on the virtual device."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import jax
import pytest

os.environ["KERAS_BACKEND"] = "jax"
sys.path.append(str(Path(__file__).parent.parent / "frameworks"))  # for keras_programs

import keras
import keras_programs
from keras_programs import PROGRAMS

BRIEF = {"callbacks"}
"""Programs that every run tries."""


def test_models_are_made_on_the_virtual_device() -> None:
    assert keras.backend.backend() == "jax"
    (weight, _) = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)]).trainable_variables
    assert weight.value.devices() == {jax.devices()[0]} and str(jax.devices()[0]) == "cuda:0"


@pytest.mark.parametrize("name", [name if name in BRIEF else pytest.param(name, marks=pytest.mark.full_sweep) for name in PROGRAMS])
def test_a_program_has_the_results_that_it_has_on_the_processor(name: str, tmp_path: Path) -> None:
    """A development device is a processor, so they have the same bits."""
    ours = PROGRAMS[name](tmp_path)
    with jax.default_device(jax.devices("cpu")[0]):
        theirs = PROGRAMS[name](tmp_path)
    assert ours == theirs


@pytest.mark.full_sweep
def test_what_draws_learns(tmp_path: Path) -> None:
    first, last = keras_programs.draws(tmp_path)
    assert last < first
