"""Keras with JAX as its backend trains on the virtual device."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import jax
import pytest

os.environ["KERAS_BACKEND"] = "jax"
sys.path.append(str(Path(__file__).parent.parent / "frameworks"))  # for keras_programs

import keras
import keras_programs
from keras_programs import PROGRAMS

GALLERY = Path(__file__).parents[2] / "lab" / "gallery"
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


@pytest.mark.full_sweep
@pytest.mark.parametrize("name", ["keras", "keras-sequences"])
def test_the_gallerys_programs_learn_on_jax_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "jax")  # undone afterwards, as the program sets it
    policy, space = keras.mixed_precision.dtype_policy(), {"__name__": "__main__"}
    try:
        for code in re.findall(r"^```python\n(.*?)^```$", (GALLERY / f"{name}.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            exec(code, space)  # noqa: S102 a page of our own
    finally:
        keras.mixed_precision.set_global_policy(policy)
    told = capsys.readouterr().out
    losses = [(float(first), float(last)) for first, last in re.findall(r"loss ([\d.]+) -> ([\d.]+)", told)]
    assert "jax cuda:0" in told and len(losses) == 2, told
    assert all(last < first for first, last in losses), told
