"""Going back to what tensors held: bit for bit, with views, optimizers and generators."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import forebay
import pytest
import torch
from forebay import process
from forebay.errors import ForebayError
from forebay.facade import names as users_names
from torch import nn

MEBIBYTE = 1 << 20
names: dict[str, Any] = {}
"""What stands for the user's names."""


@pytest.fixture(autouse=True)
def user(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    names.clear()
    monkeypatch.setattr(users_names, "named", lambda: list(names.items()))
    yield
    names.clear()


def bits(*tensors: torch.Tensor) -> list[bytes]:
    return [bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()) for tensor in tensors]


def test_tensors_and_their_views_hold_again_what_they_held() -> None:
    base = torch.arange(1000.0, device="cuda:0")
    row, strided = base.view(10, 100)[3], base[::7]
    zeros = torch.zeros(100, device="cuda:0")
    before = bits(base, row, strided, zeros)
    forebay.checkpoint("start")
    row.mul_(2)
    strided.add_(1)
    zeros[5] = 1
    assert bits(base, row, strided, zeros) != before
    went = forebay.restore("start")
    assert bits(base, row, strided, zeros) == before
    assert went.tensors == 2
    assert forebay.restore("start").tensors == 0, "nothing has changed since"


def test_one_goes_back_and_forth() -> None:
    x = torch.zeros(1000, device="cuda:0")
    held = {}
    for name in ("a", "b", "c"):
        x.add_(torch.rand(1000, device="cuda:0"))
        forebay.checkpoint(name)
        held[name] = bits(x)
    for name in ("a", "c", "b", "b", "a", "c"):
        if name == "b":
            x.fill_(7)
        forebay.restore(name)
        assert bits(x) == held[name], name
        y = x * 2
        assert bits(y) == bits(x.cpu() * 2)


def test_undo_skips_what_tensors_hold_now() -> None:
    x = torch.zeros(10, device="cuda:0")
    for value in (1, 2, 3):
        x.fill_(value)
        forebay.checkpoint()
    assert forebay.undo().tensors == 1 and x[0].item() == 2
    assert forebay.undo().tensors == 1 and x[0].item() == 1
    x.fill_(9)
    forebay.checkpoint()
    x.fill_(10)
    forebay.undo(2)
    assert x[0].item() == 1, "the line goes over the checkpoint that was gone back to"
    with pytest.raises(ValueError, match="1 checkpoint or more"):
        forebay.undo(0)


@pytest.mark.parametrize("fused", [False, True])
def test_a_training_goes_on_from_a_checkpoint_as_it_did_before(fused: bool) -> None:
    net = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Dropout(0.3), nn.Linear(64, 4)).to("cuda:0")
    optimizer = torch.optim.Adam(net.parameters(), 0.01, fused=True) if fused else torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)

    def steps(count: int) -> list[bytes]:
        for _ in range(count):
            optimizer.zero_grad()
            net(torch.randn(16, 32, device="cuda:0")).square().mean().backward()
            optimizer.step()
        return bits(*net.state_dict().values(), torch.rand(5, device="cuda:0"))

    steps(3)
    forebay.checkpoint("trained")
    first = steps(4)
    forebay.restore("trained")
    assert steps(4) == first


def test_names_that_lead_elsewhere_and_newer_ones_are_told() -> None:
    names.update(x=torch.ones(3, device="cuda:0"), y=torch.ones(3, device="cuda:0"), net=nn.Linear(2, 2).to("cuda:0"))
    forebay.checkpoint("before")
    names["y"] = names["y"] + 1
    names["z"] = [torch.ones(2, device="cuda:0")]
    names["x"].add_(1)
    names["momentum"] = torch.optim.SGD([names["x"].requires_grad_()], 0.0, momentum=0.9)
    names["x"].grad = torch.ones_like(names["x"])
    names["momentum"].step()
    went = forebay.restore("before")
    assert (list(went.gone), list(went.newer), went.tensors) == (["y"], ["z[0]", "momentum.state[0]['momentum_buffer']"], 1)
    assert names["y"].tolist() == [2, 2, 2] and names["z"][0].tolist() == [1, 1]
    said = str(went)
    assert "y" in said and "z[0]" in said and said.startswith("Back at checkpoint before: 1 tensors")


def test_an_upload_is_not_taken_for_what_a_storage_held_before_it_went_back() -> None:
    first, second = torch.rand(MEBIBYTE), torch.rand(MEBIBYTE)
    x = first.to("cuda:0")
    forebay.checkpoint("first")
    x.copy_(second)
    torch.cuda.synchronize()
    forebay.restore("first")
    assert bits(second.to("cuda:0"), x) == bits(second, first)


def test_what_autograd_kept_is_not_used_after_going_back() -> None:
    weight = torch.full((3,), 3.0, device="cuda:0", requires_grad=True)
    forebay.checkpoint("three")
    with torch.no_grad():
        weight.fill_(5.0)
    loss = (weight * weight).sum()
    forebay.restore("three")
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_storage_of_another_size_is_left_alone() -> None:
    x = torch.ones(10, device="cuda:0")
    forebay.checkpoint("ten")
    x.untyped_storage().resize_(80)
    x.fill_(2)
    went = forebay.restore("ten")
    assert (went.resized, went.tensors) == (1, 0)
    assert x.tolist() == [2] * 10


def test_checkpoints_are_dropped_before_memory_is_short() -> None:
    limit = torch.cuda.get_device_properties(0).total_memory
    x = torch.zeros(limit // 4 // 4, device="cuda:0")
    forebay.checkpoint("named")
    x.add_(1)
    taken = forebay.checkpoint()
    x.add_(1)  # both are kept, beside the tensor
    assert {"named", taken.name} <= {one.name for one in forebay.checkpoints()}
    y = torch.ones(limit // 4 // 3, device="cuda:0")
    there = [one.name for one in forebay.checkpoints()]
    assert "named" in there and taken.name not in there
    forebay.restore("named")
    assert x[-1].item() == 0
    x.fill_(2)
    z = y + 1
    assert z[-1].item() == 2 and x[-1].item() == 2
    with pytest.raises(ForebayError, match="Checkpoint named is not there any more, and nothing has changed: memory was short"):
        forebay.restore("named")
    assert x[-1].item() == 2


def test_going_back_takes_no_memory() -> None:
    x = torch.zeros(int(torch.cuda.get_device_properties(0).total_memory / 4 * 0.45), device="cuda:0")
    forebay.checkpoint("zero")
    x.add_(1)
    forebay.checkpoint("one")
    for name, value in (("zero", 0), ("one", 1), ("zero", 0)):
        assert forebay.restore(name).tensors == 1
        assert x[0].item() == x[-1].item() == value


def test_the_user_hears_that_checkpoints_were_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.zeros(torch.cuda.get_device_properties(0).total_memory // 4 // 3, device="cuda:0")
    forebay.checkpoint()
    x.add_(1)
    y = torch.ones_like(x)
    z = torch.ones_like(x[1 << 20 :])
    assert process.installed is not None
    process.installed.end_span()
    deadline = time.monotonic() + 20
    while "checkpoints were dropped" not in capsys.readouterr().err:
        assert time.monotonic() < deadline
        time.sleep(0.05)
        forebay.checkpoint()
    assert y[-1].item() == z[-1].item() == x[-1].item() == 1


def test_a_checkpoint_of_another_name_is_refused() -> None:
    torch.ones(1, device="cuda:0")
    forebay.checkpoint("there")
    with pytest.raises(ForebayError, match="There is no checkpoint 'nowhere'"):
        forebay.restore("nowhere")
    assert "there" in [taken.name for taken in forebay.checkpoints()]
