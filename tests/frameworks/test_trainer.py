"""``transformers.Trainer`` finds the virtual device by itself, and trains on it as on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close
from transformers import Trainer, TrainingArguments

STEPS = 4


class Lines(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Each line is its own label."""

    def __init__(self, lines: torch.Tensor) -> None:
        self.lines = lines

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.lines[index], "labels": self.lines[index]}


class Run:
    """Trains the small GPT on the text."""

    def __init__(self, gpt: Callable[..., Any], text: torch.Tensor, folder: Path) -> None:
        self.gpt, self.data, self.folder = gpt, Lines(text), folder

    def __call__(self, dropout: float = 0.0, resume: str | None = None, **options: Any) -> Trainer:
        given: dict[str, Any] = {"max_steps": STEPS, "learning_rate": 1e-3, "seed": 7, "per_device_train_batch_size": 4}
        quiet = {"logging_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
        arguments = TrainingArguments(output_dir=str(self.folder), **(given | quiet | options))
        trainer = Trainer(model=self.gpt(dropout), args=arguments, train_dataset=self.data, eval_dataset=self.data)
        trainer.train(resume_from_checkpoint=resume)
        return trainer


@pytest.fixture
def run(gpt: Callable[..., Any], text: torch.Tensor, tmp_path: Path) -> Run:
    return Run(gpt, text, tmp_path)


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def test_it_chooses_the_device_and_learns_and_evaluates_as_on_the_cpu(run: Run) -> None:
    device, host = run(), run(use_cpu=True)
    assert device.args.device == torch.device("cuda", 0) and device.args.n_gpu == 1
    assert next(device.model.parameters()).is_cuda
    assert_close(losses(device), losses(host), rtol=1e-3, atol=1e-3)
    assert device.evaluate()["eval_loss"] == pytest.approx(host.evaluate()["eval_loss"], rel=1e-3)


@pytest.mark.parametrize(
    "options",
    [
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        {"gradient_accumulation_steps": 2},
        {"dataloader_num_workers": 2, "dataloader_persistent_workers": True, "dataloader_pin_memory": True},
        {"optim": "adamw_torch_fused"},
        {"optim": "adafactor"},
        {"torch_empty_cache_steps": 1, "auto_find_batch_size": True, "tf32": True},
        {"torch_compile": True},
        {"torch_compile": True, "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
    ],
    ids=lambda options: ", ".join(options.values() if "optim" in options else options),
)
def test_an_option_that_changes_no_result_changes_none(run: Run, options: dict[str, Any]) -> None:
    same = {name: value for name, value in options.items() if name in ("optim", "gradient_accumulation_steps")}
    assert_close(losses(run(**options)), losses(run(use_cpu=True, **same)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_learns_as_full_precision_does(run: Run, precision: str) -> None:
    mixed = run(**{precision: True, f"{precision}_full_eval": True})
    full = run(use_cpu=True)
    assert_close(losses(mixed), losses(full), rtol=2e-2, atol=2e-2)
    assert mixed.evaluate()["eval_loss"] == pytest.approx(full.evaluate()["eval_loss"], rel=2e-2)


def test_a_resumed_run_repeats_the_losses_of_the_whole_run(run: Run) -> None:
    whole = losses(run(dropout=0.2, save_strategy="steps", save_steps=2))
    resumed = losses(run(dropout=0.2, resume=str(run.folder / "checkpoint-2")))
    assert resumed[-2:] == whole[-2:], "the checkpoint keeps weights, optimizer and the device's random numbers"


def test_its_memory_metrics_count_the_devices_memory(run: Run) -> None:
    trainer = run(skip_memory_metrics=False)
    weights = sum(p.numel() * p.element_size() for p in trainer.model.parameters())
    metrics = trainer.state.log_history[-1]
    # AdamW keeps two numbers for each weight.
    assert metrics["train_mem_gpu_alloc_delta"] >= 2 * weights
    assert metrics["train_mem_gpu_peaked_delta"] > 0
