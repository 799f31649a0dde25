"""CUDA graphs: a replay calls what was captured again, with what the static inputs hold by then."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One step of training."""
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss


def trainable() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A small model with an optimizer that keeps state."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def test_a_captured_step_of_training_trains_as_the_step_itself() -> None:
    model, optimizer = trainable()
    plain = copy.deepcopy(model)
    plain_optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    data = [(torch.randn(5, 4, device="cuda"), torch.randn(5, 1, device="cuda")) for _ in range(5)]
    x, y = data[0][0].clone(), data[0][1].clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step(model, optimizer, x, y)
    torch.cuda.current_stream().wait_stream(side)
    step(plain, plain_optimizer, *data[0])
    graph = torch.cuda.CUDAGraph()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.cuda.graph(graph):
        assert torch.cuda.is_current_stream_capturing()
        loss = step(model, optimizer, x, y)
    assert not torch.cuda.is_current_stream_capturing()
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True)), "the capture trained"
    for one, other in data[1:]:
        x.copy_(one)
        y.copy_(other)
        graph.replay()
        assert torch.equal(loss, step(plain, plain_optimizer, one, other))
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), plain.parameters(), strict=True))


def test_each_replay_draws_anew_and_results_stay_where_they_were() -> None:
    ones = torch.ones(100, device="cuda")
    state = torch.cuda.get_rng_state()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        dropped = torch.nn.functional.dropout(ones)
        first_row = dropped.view(10, 10)[0]
    assert torch.equal(state, torch.cuda.get_rng_state()), "the capture drew"
    graph.replay()
    once = dropped.clone()
    graph.replay()
    assert not torch.equal(once, dropped) and torch.equal(first_row, dropped[:10])
    torch.cuda.set_rng_state(state)
    graph.replay()
    assert torch.equal(once, dropped)


def test_graphed_callables_have_the_derivatives_of_the_module() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh()).cuda()
    plain = copy.deepcopy(module)
    graphed = torch.cuda.make_graphed_callables(module, (torch.randn(3, 4, device="cuda", requires_grad=True),))
    for _ in range(3):
        x = torch.randn(3, 4, device="cuda", requires_grad=True)
        same = x.detach().clone().requires_grad_()
        module.zero_grad()
        plain.zero_grad()
        graphed(x).square().sum().backward()
        plain(same).square().sum().backward()
        assert x.grad is not None and same.grad is not None and torch.equal(x.grad, same.grad)
        for one, other in zip(module.parameters(), plain.parameters(), strict=True):
            assert one.grad is not None and other.grad is not None and torch.equal(one.grad, other.grad)


def test_reading_in_a_capture_is_refused_and_a_graph_without_a_capture_cannot_be_replayed() -> None:
    x = torch.ones(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"), torch.cuda.graph(graph):
        (x + 1).sum().item()
    assert not torch.cuda.is_current_stream_capturing()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        torch.cuda.CUDAGraph().replay()
    graph.reset()
    assert x.sum().item() == 3


def test_a_graph_writes_what_it_captured_and_one_that_is_captured_again_calls_that(tmp_path: Path) -> None:
    x, file = torch.ones(3, device="cuda"), tmp_path / "graph"
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    if hasattr(graph, "register_capture_end_hook"):  # from PyTorch 2.15 on
        graph.register_capture_end_hook(torch.cuda.export_dot(str(tmp_path / "hook")))
    with torch.cuda.graph(graph):
        y = x.add(1)
    graph.debug_dump(str(file))
    assert "aten.add" in file.read_text()
    assert all(written.read_text() == file.read_text() for written in tmp_path.iterdir())
    graph.instantiate()
    graph.reset()
    with torch.cuda.graph(graph):
        y = x.mul(5)
    graph.replay()
    assert y.tolist() == [5.0] * 3
