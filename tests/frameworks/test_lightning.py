"""``lightning`` trains on the virtual device as ``accelerator="gpu"``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
import torchmetrics
from lightning.pytorch.callbacks import EarlyStopping, StochasticWeightAveraging
from lightning.pytorch.tuner import Tuner
from sklearn.datasets import load_digits
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

EPOCHS = 2


def loader(first: int, last: int) -> DataLoader[tuple[torch.Tensor, ...]]:
    images, labels = load_digits(return_X_y=True)
    return DataLoader(
        TensorDataset(torch.tensor(images[first:last], dtype=torch.float32) / 16, torch.tensor(labels[first:last])), batch_size=16
    )


class Digits(lightning.LightningModule):
    """Tells digits apart, and keeps its losses."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.0), nn.Linear(width, 10))
        self.accuracy = torchmetrics.Accuracy("multiclass", num_classes=10)
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss)
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.accuracy(self.net(batch[0]), batch[1])
        self.log("accuracy", self.accuracy, on_epoch=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def trainer(folder: Path, accelerator: str, **options: Any) -> lightning.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
    return lightning.Trainer(accelerator=accelerator, devices=1, default_root_dir=folder, **quiet, **({"max_epochs": EPOCHS} | options))


def fit(folder: Path, accelerator: str, **options: Any) -> tuple[lightning.Trainer, list[float]]:
    lightning.seed_everything(1, verbose=False)
    model, fitted = Digits(), trainer(folder, accelerator, **options)
    fitted.fit(model, loader(0, 64), loader(64, 96))
    return fitted, [loss.item() for loss in model.losses]


@pytest.mark.parametrize("accelerator", ["gpu", "cuda", "auto"])
def test_it_finds_the_device_and_learns_as_on_the_cpu(tmp_path: Path, accelerator: str) -> None:
    device, losses = fit(tmp_path / "device", accelerator)
    host, expected = fit(tmp_path / "host", "cpu")
    assert device.strategy.root_device.type == "cuda"
    assert_close(losses, expected, rtol=1e-3, atol=1e-3)
    assert device.callback_metrics["accuracy"].cpu() == host.callback_metrics["accuracy"]


@pytest.mark.parametrize("precision", ["16-mixed", "bf16-mixed", "bf16-true", "64-true"])
def test_every_precision_learns_as_full_precision_does(tmp_path: Path, precision: str) -> None:
    _, losses = fit(tmp_path / "device", "gpu", precision=precision)
    assert_close(losses, fit(tmp_path / "host", "cpu")[1], rtol=5e-2, atol=5e-2)


def test_clipping_accumulation_and_callbacks_do_what_they_do_on_the_cpu(tmp_path: Path) -> None:
    def options() -> dict[str, Any]:
        callbacks = [StochasticWeightAveraging(swa_lrs=1e-2, swa_epoch_start=1), EarlyStopping("accuracy", mode="max")]
        return {"gradient_clip_val": 0.5, "accumulate_grad_batches": 2, "callbacks": callbacks, "benchmark": True}

    _, losses = fit(tmp_path / "device", "gpu", **options())
    assert_close(losses, fit(tmp_path / "host", "cpu", **options())[1], rtol=1e-3, atol=1e-3)


def test_a_checkpoint_goes_on_where_it_was_saved_on_the_device_and_on_the_cpu(tmp_path: Path) -> None:
    _, whole = fit(tmp_path / "whole", "gpu", max_epochs=3)
    saved, _ = fit(tmp_path / "saved", "gpu")
    path = saved.checkpoint_callback.best_model_path
    for accelerator in ("gpu", "cpu"):
        model = Digits.load_from_checkpoint(path, map_location="cpu")
        trainer(tmp_path / accelerator, accelerator, max_epochs=3).fit(model, loader(0, 64), loader(64, 96), ckpt_path=path)
        assert_close([loss.item() for loss in model.losses], whole[8:], rtol=1e-3, atol=1e-3)


def test_fabric_runs_a_loop_of_ones_own(tmp_path: Path) -> None:
    fabric = lightning.Fabric(accelerator="cuda", devices=1, precision="bf16-mixed")
    fabric.launch()
    torch.manual_seed(0)
    net = nn.Linear(64, 10)
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.5))
    losses = []
    for x, y in fabric.setup_dataloaders(loader(0, 96)):
        assert x.is_cuda
        loss = nn.functional.cross_entropy(model(x), y)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    fabric.save(tmp_path / "state.ckpt", {"model": model, "optimizer": optimizer})
    weight = net.weight.detach().clone()
    with torch.no_grad():
        net.weight.zero_()
    fabric.load(tmp_path / "state.ckpt", {"model": model, "optimizer": optimizer})
    assert torch.equal(net.weight, weight)


class LargeDigits(Digits):
    """Holds a hundredth of the device's memory for each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.batch_size = 2

    def train_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        return DataLoader(loader(0, 512).dataset, batch_size=self.batch_size)

    def val_dataloader(self) -> DataLoader[tuple[torch.Tensor, ...]]:
        return loader(64, 96)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        room = torch.cuda.get_device_properties(0).total_memory // 100
        activations = torch.empty(len(batch[0]), room, dtype=torch.uint8, device=self.device)
        loss = super().training_step(batch, index)
        del activations
        return loss


@pytest.mark.parametrize(("mode", "least"), [("power", 64), ("binsearch", 90)])
def test_its_search_for_a_batch_size_ends_at_one_that_trains(tmp_path: Path, mode: str, least: int) -> None:
    model, tuned = LargeDigits(), trainer(tmp_path, "gpu", max_epochs=1)
    found = Tuner(tuned).scale_batch_size(model, mode=mode, init_val=2)
    assert least <= found < 100 and model.batch_size == found
    model.losses.clear()
    tuned.fit(model)
    assert len(model.losses) == -(-512 // found) and all(torch.isfinite(loss) for loss in model.losses)
