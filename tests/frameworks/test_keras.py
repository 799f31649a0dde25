"""Keras with PyTorch as its backend trains on the virtual device."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

os.environ["KERAS_BACKEND"] = "torch"
sys.path.append(str(Path(__file__).parent))  # for keras_programs

import keras
import keras_programs
import torch
from keras_programs import PROGRAMS


def test_models_are_made_on_the_virtual_device() -> None:
    assert keras.backend.backend() == "torch"
    (weight, _) = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(2)]).trainable_variables
    assert weight.value.device == torch.device("cuda:0")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_results_that_it_has_on_the_processor(name: str, tmp_path: Path) -> None:
    ours = PROGRAMS[name](tmp_path)
    with keras.device("cpu"):
        theirs = PROGRAMS[name](tmp_path)
    assert ours == pytest.approx(theirs, rel=2e-3, abs=2e-4)


def test_what_draws_learns(tmp_path: Path) -> None:
    first, last = keras_programs.draws(tmp_path)
    assert last < first
