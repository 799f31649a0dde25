"""The reference models learn on ``cuda:0`` as they do on the CPU, and take the memory there that is told of them.

All run in this process, one after the other, as they would by themselves; each in its own folder's place on the path.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from forebay.toolkit.reference_models.catalogue import FOLDER, ReferenceModel, models

MODELS = models()
SAME = 1e-5
"""How far a loss may be off, as a part of it. A worker on a CPU calls the same kernels in the same order on the same samples, so losses
were the same to the last bit; on a processor where a kernel adds in another order, by how memory lies, they may be rounded otherwise."""
MEMORY_SLACK = 0.05
"""As a part of what is told: kernels of another build of PyTorch may want a little more for themselves."""
STEPS = 4
"""LoRA comes in the second half; optimizer states take room from the second step on."""
LEARNT = 0.95
"""At most so much of its first ten losses a model has after the steps that it takes by itself."""

Trained = dict[str, Any]


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[..., str]]:
    """Runs a model's program; what it printed."""
    files = {path.stem for path in FOLDER.rglob("*.py")}
    before = set(sys.modules)

    def run(model: ReferenceModel, *options: str) -> str:
        monkeypatch.syspath_prepend(str(model.program.parent))
        monkeypatch.setattr(sys, "argv", [str(model.program), *options])
        capsys.readouterr()
        runpy.run_path(str(model.program), run_name="__main__")
        return capsys.readouterr().out

    yield run
    for name in files & set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_has_the_losses_of_the_cpu_and_takes_the_memory_that_is_told(name: str, train: Callable[..., str]) -> None:
    expected = json.loads(train(MODELS[name], "--json", "--steps", str(STEPS), "--device", "cpu"))
    torch.cuda.reset_peak_memory_stats()
    found = json.loads(train(MODELS[name], "--json", "--steps", str(STEPS)))
    assert (expected["device"], found["device"]) == ("cpu", "cuda")
    assert len(found["losses"]) == STEPS == len(set(found["losses"]))
    assert found["losses"] == pytest.approx(expected["losses"], rel=SAME, abs=0)
    assert found["samples_per_second"] > 0
    assert found["peak_memory_bytes"] == pytest.approx(MODELS[name].memory_bytes, rel=MEMORY_SLACK, abs=1 << 20)


@pytest.mark.parametrize("name", ["whisper", "dlrm"])
def test_another_seed_is_another_training_and_the_same_seed_the_same(name: str, train: Callable[..., str]) -> None:
    losses = [json.loads(train(MODELS[name], "--json", "--steps", "1", "--batch", "2", "--seed", seed))["losses"] for seed in "778"]
    assert losses[0] == losses[1] != losses[2]


def test_a_model_that_writes_writes_on_the_device(train: Callable[..., str]) -> None:
    step, told, text = train(MODELS["gpt2"], "--steps", "1", "--batch", "1").split("\n", 2)
    assert step.startswith("step 1/1  loss ") and "samples per second on Forebay dev.1gb (virtual), at most " in told
    assert text.startswith("The statement ") and len(text) == len("The statement ") + 120 + 1


def test_a_model_that_draws_draws_on_the_device(train: Callable[..., str]) -> None:
    step, _, picture = train(MODELS["diffusion"], "--steps", "1", "--batch", "1").split("\n", 2)
    assert step.startswith("step 1/1  loss ")
    assert [len(line) for line in picture.splitlines()] == [32] * 16 and len(set(picture)) > 3


@pytest.mark.full_sweep
@pytest.mark.parametrize("name", MODELS)
def test_a_model_learns_in_the_steps_that_it_takes_by_itself(name: str, train: Callable[..., str]) -> None:
    losses = json.loads(train(MODELS[name], "--json"))["losses"]
    assert sum(losses[-10:]) < LEARNT * sum(losses[:10])
