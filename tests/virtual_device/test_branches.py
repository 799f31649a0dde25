"""Branches: what this process holds goes into several forked processes, and each goes on as if nobody else were there."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import forebay
import pytest
import torch
from forebay.errors import BranchFailed
from torch import nn


def bits(*tensors: torch.Tensor) -> list[bytes]:
    return [bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()) for tensor in tensors]


def test_each_learning_rate_gives_what_it_gives_alone() -> None:
    net = nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.3), nn.Linear(64, 4)).to("cuda:0")
    state, generator = {name: value.clone() for name, value in net.state_dict().items()}, torch.cuda.get_rng_state()

    def trained(rate: float) -> tuple[float, dict[str, torch.Tensor], torch.Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9)
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.randn(16, 32, device="cuda:0")).square().mean().backward()
            optimizer.step()
        return rate, net.state_dict(), torch.rand(5, device="cuda:0")

    rates = [0.5, 0.0, 1e-3]
    branched = forebay.branches(rates, trained)
    assert bits(*net.state_dict().values()) == bits(*state.values()), "nothing has changed here"
    assert torch.cuda.get_rng_state().equal(generator)
    for rate, (of, weights, drawn) in zip(rates, branched, strict=True):
        net.load_state_dict(state)
        torch.cuda.set_rng_state(generator)
        _, alone, after = trained(rate)
        assert of == rate and not drawn.is_cuda
        assert bits(*weights.values(), drawn) == bits(*alone.values(), after)


def test_results_come_in_the_order_of_what_was_given_and_hold_anything() -> None:
    x = torch.arange(4.0, device="cuda:0")

    def told(i: int) -> Any:
        time.sleep(0.2 * (2 - i))
        return {"number": i, "x": x + i, "none": None, "text": str(x.device)}

    results = forebay.branches(3, told)
    assert [result["number"] for result in results] == [0, 1, 2]
    assert [result["x"].tolist() for result in results] == [[i, i + 1.0, i + 2.0, i + 3.0] for i in range(3)]
    assert results[1]["none"] is None and results[1]["text"] == "cuda:0"
    assert forebay.branches(0, told) == [] == forebay.branches([], told)


def test_what_a_branch_raises_is_told_once_the_others_have_ended() -> None:
    x = torch.ones(3, device="cuda:0")

    def some(i: int) -> float:
        if i == 1:
            raise LookupError("no such layer")
        if i == 2:
            os._exit(7)
        return float(x.sum().item()) + i

    with pytest.raises(BranchFailed, match=r"Branch 1 failed\. So did 1 more\.\n(?s:.*)LookupError: no such layer") as raised:
        forebay.branches(4, some)
    assert raised.value.results == {0: 3.0, 3: 6.0}
    with pytest.raises(BranchFailed, match=r"Branch 0 failed\.\nIts process ended with exit status 7\."):
        forebay.branches([2], some)
    assert x.sum().item() == 3.0


def test_so_many_branches_are_refused() -> None:
    with pytest.raises(ValueError, match="257 branches are too many"):
        forebay.branches(257, print)


def test_an_interrupt_ends_all_branches() -> None:
    x = torch.ones(3, device="cuda:0")
    x.sum().item()
    children: list[int] = []

    def forever(_: int) -> None:
        time.sleep(600)

    def interrupt() -> None:
        deadline = time.monotonic() + 20
        own = f"/proc/{os.getpid()}/task/{os.getpid()}/children"
        while len(children) < 2 and time.monotonic() < deadline:
            with open(own) as file:
                children[:] = [int(pid) for pid in file.read().split() if _is_branch(int(pid))]
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with pytest.raises(KeyboardInterrupt):
        forebay.branches(2, forever)
    assert len(children) == 2
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]
    assert x.sum().item() == 3.0


def _is_branch(pid: int) -> bool:
    """Whether the child runs this very program."""
    with open(f"/proc/{pid}/cmdline", "rb") as theirs, open("/proc/self/cmdline", "rb") as ours:
        return theirs.read() == ours.read()
