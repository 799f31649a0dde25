"""``torch.compile``, ``torch.fx``, ``torch.jit``, ``torch.export`` and ``torch.profiler`` over the device give what eager code gives."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay import _C
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.profiler import ProfilerActivity, profile, schedule
from torch.testing import assert_close


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> Iterator[None]:
    torch._dynamo.reset()
    yield


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Linear(16, 3))


def batch(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(8, 6, generator=generator), torch.randint(0, 3, (8,), generator=generator)
    return x.to(device), y.to(device)


def test_attention_with_a_mask_compiles_for_lengths_left_open() -> None:
    def attend(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    compiled = torch.compile(attend, backend="eager", dynamic=True)
    for length in (24, 32):
        x = torch.randn(2, 4, length, 8, device="cuda", requires_grad=True)
        mask = torch.ones(2, 1, length, length, dtype=torch.bool, device="cuda").tril()
        made, expected = compiled(x, mask), attend(x, mask)
        assert_close(made, expected)
        assert_close(torch.autograd.grad(made.sum(), x), torch.autograd.grad(expected.sum(), x))


def train(device: str, wrap: Callable[[nn.Module], Any], dtype: torch.dtype | None = None) -> list[float]:
    model = network().to(device)
    forward, optimizer, losses = wrap(model), torch.optim.AdamW(model.parameters(), lr=1e-2), []
    x, y = batch(device)
    for _ in range(3):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fullgraph": True, "dynamic": True},
        {"mode": "reduce-overhead"},
        {"mode": "max-autotune"},
        {"backend": "cudagraphs"},
        {"backend": "aot_eager"},
        {"backend": "eager"},
    ],
    ids=str,
)
def test_a_compiled_model_learns_as_on_the_cpu(options: dict[str, Any]) -> None:
    assert_close(train("cuda", lambda model: torch.compile(model, **options)), train("cpu", lambda model: model), rtol=1e-3, atol=1e-3)


def test_a_compiled_model_learns_in_mixed_precision() -> None:
    assert_close(train("cuda", torch.compile, torch.bfloat16), train("cpu", lambda model: model), rtol=3e-2, atol=3e-2)


def test_a_whole_step_with_its_optimizer_is_compiled() -> None:
    def steps(device: str, wrap: Callable[[Any], Any]) -> list[float]:
        model, (x, y) = network().to(device), batch(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

        def step() -> torch.Tensor:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        wrapped = wrap(step)
        return [wrapped().item() for _ in range(3)]

    assert_close(steps("cuda", torch.compile), steps("cpu", lambda step: step), rtol=1e-3, atol=1e-3)


Step = Callable[[], torch.Tensor]


def step_of(wrap_model: Callable[[nn.Module], Any] = lambda model: model, wrap_step: Callable[[Step], Step] = lambda step: step) -> Step:
    """A step of training, which gives its loss."""
    model, (x, y) = network().cuda(), batch("cuda")
    forward, optimizer = wrap_model(model), torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return wrap_step(step)


def segments_of(step: Step) -> Counter[tuple[int, int]]:
    """Of one step of several, by identity and calls."""

    def comings() -> Counter[tuple[int, int]]:
        return Counter({(segment["identity"], segment["calls"]): segment["times"] for segment in _C.segments()})

    for _ in range(4):
        step().item()
    before = comings()
    step().item()
    return comings() - before


@pytest.mark.parametrize("options", [{}, {"fullgraph": True}, {"dynamic": True}, {"mode": "reduce-overhead"}], ids=str)
def test_a_step_of_a_compiled_model_is_the_segment_that_it_is_without(options: dict[str, Any]) -> None:
    """So the worker records it as a graph, or compiles it, as it does the other; nothing is compiled here."""
    before = torch._dynamo.utils.counters["inductor"].copy()
    assert segments_of(step_of(lambda model: torch.compile(model, **options))) == segments_of(step_of())
    assert torch._dynamo.utils.counters["inductor"] == before


def test_a_whole_step_that_is_compiled_is_one_segment_that_comes_again() -> None:
    before = torch._dynamo.utils.counters["inductor"].copy()
    found = segments_of(step_of(wrap_step=torch.compile))
    assert list(found.values()) == [1]
    ((_, calls),) = found
    assert calls >= 20, "a library is made of that many calls at least"
    assert torch._dynamo.utils.counters["inductor"] == before


def test_sizes_may_change_from_call_to_call() -> None:
    @torch.compile
    def tail(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).view(-1).cumsum(0)[x.shape[0] - 1 :].sum()

    for rows in (3, 4, 5, 9):
        x = torch.randn(rows, 4)
        assert_close(tail(x.cuda()).cpu(), (x * 2).view(-1).cumsum(0)[rows - 1 :].sum())


def test_a_branch_on_a_value_breaks_the_graph_and_not_the_result() -> None:
    @torch.compile
    def branch(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return (y * 2 if y.sum().item() > 0 else y - 1).cos()

    for sign in (1.0, -1.0):
        assert_close(
            branch(torch.full((4,), sign, device="cuda")).cpu(),
            (torch.full((4,), sign).sin() * 2 if sign > 0 else torch.full((4,), sign).sin() - 1).cos(),
        )


def test_a_graph_may_make_and_move_what_it_computes_with() -> None:
    count = torch.compile(lambda n: torch.arange(n, device="cuda").float().sum(), fullgraph=True)
    assert count(5).item() == 10.0
    there, back = torch.compile(lambda x: x.cuda() * 2), torch.compile(lambda x: (x * 3).cpu() + 1)
    assert there(torch.ones(2)).is_cuda
    assert back(torch.ones(2, device="cuda")).tolist() == [4.0, 4.0]


def test_graphs_of_the_host_are_still_compiled() -> None:
    """By Inductor, whose C++ would take 13 s for anything but products of matrices."""
    x = torch.randn(5, 5)
    before = torch._dynamo.utils.counters["inductor"]["extern_calls"]
    assert_close(torch.compile(lambda v: (v @ v) @ v)(x), (x @ x) @ x)
    assert torch._dynamo.utils.counters["inductor"]["extern_calls"] == before + 2


def test_flexible_attention_is_causal_attention_with_that_mask() -> None:
    q, k, v = torch.randn(3, 1, 2, 16, 8, device="cuda")
    mask = create_block_mask(lambda batch, head, i, j: i >= j, 1, 1, 16, 16, device="cuda")
    expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    for attend in (flex_attention, torch.compile(flex_attention)):
        assert_close(attend(q, k, v, block_mask=mask), expected, rtol=1e-4, atol=1e-4)


def test_a_traced_graph_of_modules_is_the_module() -> None:
    model = network().eval()
    graph = torch.fx.symbolic_trace(copy.deepcopy(model)).to("cuda")
    assert_close(graph(batch("cuda")[0]).cpu(), model(batch("cpu")[0]), rtol=1e-4, atol=1e-5)


def test_a_scripted_module_is_saved_and_loaded_on_either_side(tmp_path: Path) -> None:
    class Counting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.zeros(3, device=x.device)
            for i in range(x.size(0)):
                y = y + x[i] * i
            return y * 2 if bool(y.sum() > 0) else y

    x = torch.randn(4, 3)
    scripted = torch.jit.script(Counting())
    for _ in range(3):  # the third call runs what the profiling executor made of it
        assert_close(scripted(x.cuda()).cpu(), Counting()(x))
    model, inputs = network().eval().cuda(), batch("cuda")[0]
    torch.jit.trace(model, inputs).save(str(tmp_path / "traced.pt"))
    loaded = torch.jit.load(str(tmp_path / "traced.pt"))
    assert next(loaded.parameters()).is_cuda
    assert_close(loaded(inputs), model(inputs))
    host = torch.jit.load(str(tmp_path / "traced.pt"), map_location="cpu")
    assert_close(host(inputs.cpu()), model(inputs).cpu(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fuser", ["fuser0", "fuser1", "fuser2"])
def test_a_scripted_function_runs_as_it_is_whichever_fuser_for_gpus_is_asked_for(fuser: str) -> None:
    """A build with CUDA would compile its pointwise part for a GPU, for which this host has no driver."""

    def gate(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * torch.tanh(y) + x * 2

    x, y = torch.randn(2, 4, 3)
    with torch.jit.fuser(fuser):
        scripted = torch.jit.script(gate)
        for _ in range(3):
            assert_close(scripted(x.cuda(), y.cuda()).cpu(), gate(x, y))
        assert not torch._C._jit_can_fuse_on_gpu()


def test_an_exported_program_is_saved_loaded_and_takes_other_sizes(tmp_path: Path) -> None:
    model, x = network().eval().cuda(), batch("cuda")[0]
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("rows", min=2)},))
    torch.export.save(program, tmp_path / "program.pt2")
    loaded = torch.export.load(tmp_path / "program.pt2").module()
    assert_close(loaded(x[:3]), model(x[:3]))


def test_a_profile_that_asks_for_cuda_shows_the_operators(tmp_path: Path) -> None:
    model, x = network().cuda(), batch("cuda")[0]
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        schedule=schedule(wait=1, warmup=1, active=2),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as profiled:
        for _ in range(4):
            model(x).sum().backward()
            profiled.step()
    averages = profiled.key_averages()
    assert {"aten::addmm", "aten::native_batch_norm"} <= {event.key for event in averages}
    assert "addmm" in averages.table(sort_by="cuda_time_total")
    profiled.export_chrome_trace(str(tmp_path / "trace.json"))
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
