"""``accelerate`` takes the virtual device for the GPU it is looking for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from accelerate import Accelerator, cpu_offload, dispatch_model, infer_auto_device_map
from accelerate.state import AcceleratorState
from accelerate.utils import find_executable_batch_size, get_max_memory
from sklearn.datasets import load_digits
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

Trained = tuple[Accelerator, nn.Module, list[float]]


def network() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def train(cpu: bool = False, precision: str = "no") -> Trained:
    """One pass over 64 digits, with everything that a script asks of an accelerator."""
    AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = Accelerator(cpu=cpu, mixed_precision=precision, gradient_accumulation_steps=2)
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images[:64], dtype=torch.float32) / 16, torch.tensor(labels[:64]))
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8), schedule)
    losses = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss).mean().item())
    return accelerator, model, losses


def test_it_finds_the_device_and_learns_as_on_the_cpu() -> None:
    accelerator, model, losses = train()
    assert accelerator.device.type == "cuda" and next(model.parameters()).is_cuda
    assert_close(losses, train(cpu=True)[2], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_mixed_precision_learns_as_full_precision_does(precision: str) -> None:
    assert_close(train(precision=precision)[2], train(cpu=True)[2], rtol=3e-2, atol=3e-2)


def test_a_saved_state_brings_weights_and_random_numbers_back(tmp_path: Path) -> None:
    accelerator, model, _ = train()
    accelerator.save_state(str(tmp_path))
    weight, drawn = model[0].weight.detach().clone(), torch.rand(3, device="cuda")  # type: ignore[index]
    with torch.no_grad():
        model[0].weight.zero_()  # type: ignore[index]
    accelerator.load_state(str(tmp_path))
    assert torch.equal(model[0].weight, weight)  # type: ignore[index]
    assert torch.equal(torch.rand(3, device="cuda"), drawn)


def test_weights_kept_on_the_host_come_to_the_device_when_they_are_needed() -> None:
    x, expected = torch.randn(2, 64), network()
    offloaded = cpu_offload(network(), execution_device=torch.device("cuda", 0))
    assert_close(offloaded(x).cpu(), expected(x), rtol=1e-4, atol=1e-5)
    split = infer_auto_device_map(network(), max_memory={0: 10**9, "cpu": 10**9})
    assert split == {"": 0}, "there is room for all of it on the device"
    parts = dispatch_model(network(), {"0": 0, "1": 0, "2": "cpu"}, main_device=0)
    assert_close(parts(x).cpu(), expected(x), rtol=1e-4, atol=1e-5)
    assert get_max_memory()[0] <= torch.cuda.get_device_properties(0).total_memory


def test_its_search_for_a_batch_size_ends_at_one_that_trains() -> None:
    limit, tried = torch.cuda.get_device_properties(0).total_memory, []

    @find_executable_batch_size(starting_batch_size=1 << 16)  # type: ignore[untyped-decorator]
    def trained(batch_size: int) -> list[float]:
        tried.append(batch_size)
        model = network().cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x, y = torch.ones(batch_size, 64, device="cuda"), torch.zeros(batch_size, dtype=torch.long, device="cuda")
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            activations = torch.empty(batch_size, limit >> 12, dtype=torch.uint8, device="cuda")
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            del activations
        return losses

    losses = trained()
    assert len(tried) > 3 and limit >> 2 < tried[-1] * (limit >> 12) < limit
    assert losses[0] > losses[1] > losses[2]
