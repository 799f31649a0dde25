"""What is saved from the virtual device opens in a process without one, and the other way round."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fork_server
import pytest
import torch
import torch.distributed.checkpoint
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from torch import nn
from torch.testing import assert_close


def on_a_plain_machine(code: str, folder: Path) -> None:
    """Runs code in a process for which Forebay does not exist; its ``folder`` is the working directory."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    preamble = "import torch\nassert not torch.cuda.is_available()\n"
    command = [fork_server.programs(), "-c", preamble + code]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def network() -> nn.Sequential:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model on the device after one step, and its optimizer."""
    model = network().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 6, device="cuda")).sum().backward()
    optimizer.step()
    return model, optimizer


def test_a_checkpoint_of_the_device_opens_on_a_plain_machine(tmp_path: Path) -> None:
    model, optimizer = trained()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint.pt")
    torch.save(model, tmp_path / "whole.pt")
    torch.save({name: value.cpu() for name, value in model.state_dict().items()}, tmp_path / "expected.pt")
    on_a_plain_machine(
        """
expected = torch.load("expected.pt")
state = torch.load("checkpoint.pt", map_location="cpu", weights_only=True)
assert all(torch.equal(state["model"][name], value) for name, value in expected.items())
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3))
model.load_state_dict(state["model"])
optimizer = torch.optim.AdamW(model.parameters())
optimizer.load_state_dict(state["optimizer"])
model(torch.ones(2, 6)).sum().backward()
optimizer.step()
whole = torch.load("whole.pt", map_location="cpu", weights_only=False)
assert torch.equal(whole[0].weight, expected["0.weight"])
try:
    torch.load("checkpoint.pt")
except RuntimeError as error:
    assert "map_location=torch.device('cpu')" in str(error), error
else:
    raise SystemExit("tensors of a device opened where there is none")
""",
        tmp_path,
    )


def test_a_checkpoint_of_a_plain_machine_opens_on_the_device(tmp_path: Path) -> None:
    on_a_plain_machine("torch.save({'a': torch.arange(6.0).reshape(2, 3).t(), 'b': torch.ones(2)}, 'plain.pt')", tmp_path)
    ways: list[Any] = ["cuda", "cuda:0", torch.device("cuda"), {"cpu": "cuda:0"}, lambda storage, place: storage.cuda()]
    for way in ways:
        for mapped in (False, True):
            state = torch.load(tmp_path / "plain.pt", map_location=way, weights_only=not callable(way), mmap=mapped)
            assert state["a"].is_cuda and state["a"].stride() == (1, 3)
            assert state["a"].t().flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_checkpoint_comes_back_to_the_device_it_was_saved_from(tmp_path: Path) -> None:
    model, optimizer = trained()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "random": torch.cuda.get_rng_state()}, tmp_path / "c.pt")
    drawn = torch.rand(4, device="cuda")
    state = torch.load(tmp_path / "c.pt")
    assert state["model"]["0.weight"].is_cuda and state["optimizer"]["state"][0]["exp_avg"].is_cuda
    assert torch.equal(state["model"]["0.weight"], model.state_dict()["0.weight"])
    torch.cuda.set_rng_state(state["random"])
    assert torch.equal(torch.rand(4, device="cuda"), drawn)


def test_safetensors_open_on_either_side(tmp_path: Path) -> None:
    model, _ = trained()
    save_file(model.state_dict(), tmp_path / "device.safetensors")
    save_model(model, str(tmp_path / "model.safetensors"))
    on_a_plain_machine(
        """
from safetensors.torch import load_file, save_file
state = load_file("device.safetensors")
assert all(value.device.type == "cpu" for value in state.values())
save_file({name: value * 2 if value.is_floating_point() else value for name, value in state.items()}, "plain.safetensors")
""",
        tmp_path,
    )
    for device in ("cuda", "cuda:0", 0):
        state = load_file(tmp_path / "plain.safetensors", device=device)
        assert state["0.weight"].is_cuda
        assert_close(state["0.weight"], 2 * model.state_dict()["0.weight"])
    with safe_open(tmp_path / "plain.safetensors", framework="pt", device="cuda") as opened:
        assert opened.get_slice("0.weight")[:2].is_cuda
    other = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)).cuda()
    load_model(other, str(tmp_path / "model.safetensors"), device="cuda")
    assert all(torch.equal(one, two) for one, two in zip(other.parameters(), model.parameters(), strict=True))


def test_a_pretrained_model_is_saved_and_loaded_onto_the_device(gpt: Callable[..., Any], text: torch.Tensor, tmp_path: Path) -> None:
    model = gpt().cuda().eval()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).to("cuda").eval()
    assert_close(loaded(input_ids=text[:2].cuda()).logits, model(input_ids=text[:2].cuda()).logits)


def test_a_device_map_puts_a_pretrained_model_onto_the_device(gpt: Callable[..., Any], tmp_path: Path) -> None:
    gpt().save_pretrained(tmp_path)
    program = """
import torch, transformers
for options in ({"device_map": "cuda"}, {"device_map": "auto"}, {"device_map": {"": 0}, "dtype": torch.bfloat16}):
    model = transformers.GPT2LMHeadModel.from_pretrained(".", **options)
    assert {p.device for p in model.parameters()} == {torch.device("cuda", 0)}, options
    print(model(torch.ones(1, 3, dtype=torch.long, device="cuda")).logits.float().sum().isfinite().item())
"""
    # transformers sets 1.2 GiB of a device aside before it places a model by a map: the default flavor, which has 1 GiB, is too small.
    environment = {**os.environ, "FOREBAY_URL": "local", "FOREBAY_FLAVOR": "dev.4gb"}
    command = [fork_server.programs(), "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "True\n" * 3), done.stderr


@pytest.mark.parametrize("place", ["cuda", "cpu"])
def test_a_distributed_checkpoint_of_one_process_goes_round(tmp_path: Path, place: str) -> None:
    model, _ = trained()
    torch.distributed.checkpoint.save({"model": model.state_dict()}, checkpoint_id=tmp_path, no_dist=True)
    other = network().to(place)
    state = {"model": other.state_dict()}
    torch.distributed.checkpoint.load(state, checkpoint_id=tmp_path, no_dist=True)
    other.load_state_dict(state["model"])
    assert all(torch.equal(one.cpu(), two.cpu()) for one, two in zip(other.parameters(), model.parameters(), strict=True))
