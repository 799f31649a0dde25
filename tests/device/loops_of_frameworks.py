"""Loops that frameworks run: ``transformers.Trainer`` and ``lightning.Trainer`` (``divided_loops.py``)."""

from __future__ import annotations

import logging
import os
import tempfile
from typing import Any

import torch
from divided_loops import ROWS, STEPS, Run, loop
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, SequentialSampler, TensorDataset

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", TOKENIZERS_PARALLELISM="false", TQDM_DISABLE="1")
WORDS = 31
LENGTH = 8
FULL_BATCHES = 8
"""Without padding, before as many that have some."""


class Lines(Dataset[dict[str, Tensor]]):
    """Lines of words, the first ones of one word alone; from some on, the ends do not count."""

    def __init__(self, run: Run, batches: int, padded_from: int) -> None:
        words = torch.cat([run.classes(number, WORDS, ROWS, LENGTH) for number in range(batches)])
        lengths = 2 + run.whole_numbers(LENGTH - 1, len(words))
        lengths[: padded_from * ROWS] = LENGTH
        lengths[padded_from * ROWS : padded_from * ROWS + ROWS // 2] = 1  # a half whose labels are none, as they are shifted by one
        mask = torch.arange(LENGTH) < lengths[:, None]
        self.fields = {"input_ids": words, "attention_mask": mask.long(), "labels": words.masked_fill(~mask, -100)}

    def __len__(self) -> int:
        return len(self.fields["labels"])

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: field[index] for name, field in self.fields.items()}


@loop
def language_model_of_a_trainer(run: Run) -> None:
    """A small GPT-2; an evaluation after each half, which has a smaller last batch."""
    import transformers

    class Trainer(transformers.Trainer):
        """In the order of the lines; its losses are told as they are."""

        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

        def compute_loss(self, *given: Any, **named: Any) -> Any:
            found = super().compute_loss(*given, **named)
            run.tell(found[0] if isinstance(found, tuple) else found)
            return found

    transformers.logging.set_verbosity_error()
    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **drops))
    lines, others = Lines(run, 2 * FULL_BATCHES, FULL_BATCHES), Lines(run, 5, 3)
    others.fields = {name: field[:-5] for name, field in others.fields.items()}
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"per_device_train_batch_size": ROWS, "per_device_eval_batch_size": ROWS, "eval_steps": FULL_BATCHES, "logging_steps": 1}
        kinds: dict[str, Any] = {"eval_strategy": "steps", "save_strategy": "no", "report_to": [], "use_cpu": run.device == "cpu"}
        options: dict[str, Any] = {"num_train_epochs": 1, "learning_rate": 1e-3, "disable_tqdm": True, "dataloader_pin_memory": False}
        arguments = transformers.TrainingArguments(folder, **sizes, **kinds, **options)
        trainer = Trainer(model=model, args=arguments, train_dataset=lines, eval_dataset=others)
        trainer.train()
    told = ("loss", "eval_loss", "grad_norm")
    run.tell(torch.tensor([value for entry in trainer.state.log_history for name, value in entry.items() if name in told]))
    run.keep(model)


@loop
def classifier_of_lightning(run: Run) -> None:
    """It gathers gradients of two batches, clips them, and evaluates after each epoch."""
    import lightning

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Classifier(lightning.LightningModule):
        """Tells classes apart; its losses are told."""

        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))

        def training_step(self, batch: list[Tensor], index: int) -> Tensor:
            loss = functional.cross_entropy(self.net(batch[0]), batch[1])
            run.tell(loss)
            return loss

        def validation_step(self, batch: list[Tensor], index: int) -> None:
            scores = self.net(batch[0])
            run.tell(functional.cross_entropy(scores, batch[1]), (scores.argmax(1) == batch[1]).sum())

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-2, eps=1e-3)

    x = torch.cat([run.numbers(step, ROWS, 8) + 0.1 * run.drawn(ROWS, 8) for step in range(STEPS)])
    y = torch.cat([run.classes(step, 3, ROWS) for step in range(STEPS)])
    model, batches = Classifier(), DataLoader(TensorDataset(x[:-5], y[:-5]), ROWS)
    quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False, "logger": False}
    with tempfile.TemporaryDirectory() as folder:
        options: dict[str, Any] = {"max_epochs": 2, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5, "default_root_dir": folder}
        lightning.Trainer(accelerator="cpu" if run.device == "cpu" else "gpu", devices=1, **options, **quiet).fit(model, batches, batches)
    run.keep(model.cpu())
