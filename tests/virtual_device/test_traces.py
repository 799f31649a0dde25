"""What a program repeats costs next to no bytes, whatever else it does between, and changes no result."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch
from forebay import _C
from torch import nn


def settled() -> _C.Statistics:
    torch.cuda.synchronize()
    return _C.statistics(0)


def used(run: Callable[[], object]) -> tuple[int, int, int]:
    """Bytes sent, calls, and steps that were expected, of a piece of program."""
    before = settled()
    run()
    after = settled()
    return tuple(after[name] - before[name] for name in ("bytes_sent", "commands", "expected"))  # type: ignore[literal-required, return-value]


def used_at_least(run: Callable[[], object]) -> tuple[int, int, int]:
    """Of several runs: what is recorded is sent by the clock too, which cuts a run in two where the processors are busy."""
    return min(used(run) for _ in range(12))


def model(device: str, layers: int = 4) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh()) for _ in range(layers)], nn.Linear(32, 4)).to(
        device
    )
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2)


def train(net: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


def batches(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(16, 32, generator=generator), torch.randint(0, 4, (16,), generator=generator)) for _ in range(count)]


def sizes_of_steps(layers: int) -> tuple[int, int]:
    """Bytes of a model's first step and of the least of some steady ones: in a step that is held up frees are told by themselves."""
    net, optimizer = model("cuda", layers)
    x, y = (tensor.cuda() for tensor in batches(1)[0])
    first = used(lambda: train(net, optimizer, x, y))[0]
    for _ in range(3):
        train(net, optimizer, x, y).item()
    steady, calls, expected = used_at_least(lambda: train(net, optimizer, x, y).item())
    assert expected >= 0.9 * calls
    return first, steady


def test_a_steady_training_step_takes_a_few_bytes_however_many_operators_it_has() -> None:
    sizes = []
    for layers in (4, 12):
        first, steady = sizes_of_steps(layers)
        assert steady <= 0.05 * first
        sizes.append(steady - 2 * (4 * layers + 2))  # AdamW's corrections: two of each parameter, mostly "the one before again"
    assert sizes[1] <= 1.5 * sizes[0] + 100


@pytest.mark.parametrize("read_every", [1, 3, 1000])
def test_training_is_bitwise_the_same_whether_calls_are_expected_or_not(read_every: int) -> None:
    runs = []
    for device in ("cpu", "cuda"):
        net, optimizer = model(device)
        losses = []
        for step, (x, y) in enumerate(batches(40)):
            losses.append(train(net, optimizer, x.to(device), y.to(device)))
            if step % read_every == 0:
                losses[-1].item()
            if step % 7 == 3:
                net(x.to(device)).sum().item()  # something else between
        runs.append([loss.item() for loss in losses] + [parameter.detach().cpu() for parameter in net.parameters()])
    for ours, theirs in zip(*runs, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_loop_that_never_reads_is_known_by_its_repetition() -> None:
    net, optimizer = model("cuda")
    x, y = (tensor.cuda() for tensor in batches(1)[0])

    def loop() -> None:
        for _ in range(60):
            train(net, optimizer, x, y)

    loop()
    first = used(loop)  # begins elsewhere in the repetition than the one before, so it is new
    assert first[2] >= 0.3 * first[1]
    sent, calls, expected = used_at_least(loop)
    assert expected >= 0.95 * calls
    assert sent <= 3 * calls


def test_alternating_models_and_batches_of_two_sizes_are_all_known() -> None:
    models = [model("cuda", layers) for layers in (2, 3)]
    sizes = [tuple(tensor[:rows].cuda() for tensor in batches(1)[0]) for rows in (16, 5)]

    def epoch() -> None:
        for net, optimizer in models:
            for x, y in (sizes[0], sizes[0], sizes[1]):
                train(net, optimizer, x, y).item()

    for _ in range(4):
        epoch()
    _, calls, expected = used(epoch)
    assert expected >= 0.8 * calls


def test_frees_at_odd_times_lose_and_keep_nothing() -> None:
    net, _ = model("cuda", 2)
    x = batches(1)[0][0].cuda()
    kept: list[object] = []

    def forward(step: int) -> float:
        hidden = net(x)
        cycle: list[object] = [hidden]
        cycle.append(cycle)
        if step % 3 == 0:
            kept.append(hidden.detach())
        if step % 5 == 0:
            gc.collect()
        if step % 11 == 10:
            kept.clear()
        return hidden.sum().item()

    assert len({forward(step) for step in range(60)}) == 1
    kept.clear()
    gc.collect()
    before = torch.cuda.memory_allocated()
    for step in range(60):
        forward(step)
    kept.clear()
    gc.collect()
    assert torch.cuda.memory_allocated() == before


def test_threads_that_record_at_once_keep_their_results_apart() -> None:
    x = torch.arange(64.0).cuda()
    results: dict[int, list[float]] = {}

    def work(number: int) -> None:
        results[number] = [float(((x * number + step) * 2).sum().item()) for step in range(50)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, got in results.items():
        assert got == [2.0 * (2016 * number + 64 * step) for step in range(50)]
    assert len(results) == 4


def test_a_failure_names_the_line_although_its_calls_were_expected() -> None:
    table = torch.arange(4.0).cuda()

    def look_up(indices: torch.Tensor) -> torch.Tensor:
        scaled = table * 2
        return scaled.index_select(0, indices) + 1

    good, bad = torch.tensor([1, 2]).cuda(), torch.tensor([1, 9]).cuda()
    for _ in range(4):
        assert look_up(good).tolist() == [3.0, 5.0]
    with pytest.raises(Exception, match=r"(?s)index_select.*out of range.*test_traces\.py, line"):
        look_up(bad).tolist()
    assert look_up(good).tolist() == [3.0, 5.0]


def test_operators_that_make_their_result_and_have_it_grow_come_as_expected() -> None:
    x, mask = torch.rand(8, 4, device="cuda") - 0.5, torch.tensor([True, False], device="cuda")

    def step() -> torch.Tensor:
        return x.abs().logsumexp(1).sum() + torch.logical_not(mask).sum() + torch.logical_and(mask, mask).sum() + x.nan_to_num().sum()

    for _ in range(3):
        torch.testing.assert_close(step().item(), step_on_host(x.cpu(), mask.cpu()))
    sent, calls, expected = used_at_least(lambda: step().item())
    assert expected >= calls
    assert sent < 64


def step_on_host(x: torch.Tensor, mask: torch.Tensor) -> float:
    number = x.abs().logsumexp(1).sum() + torch.logical_not(mask).sum() + torch.logical_and(mask, mask).sum() + x.nan_to_num().sum()
    return float(number)


def test_an_out_grows_again_as_it_did_and_only_where_it_may() -> None:
    x = torch.rand(3, 4, device="cuda") - 0.5
    for size in (3, 2, 3, 1):
        out = torch.empty(0, device="cuda")
        torch.abs(x[:size], out=out)
        torch.testing.assert_close(out.cpu(), x[:size].cpu().abs())
    one, two = torch.empty(0, device="cuda"), torch.empty(0, device="cuda")
    torch.add(two, torch.empty(0, device="cuda"), out=one)
    y = torch.rand(4, device="cuda")
    for _ in range(2):
        grown = torch.empty(0, device="cuda")
        assert torch.add(y, 1, out=grown) is grown
        torch.testing.assert_close(grown.cpu(), y.cpu() + 1)
        read = torch.rand(1, device="cuda")
        with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
            torch.add(read, y, out=read)


def test_views_of_an_empty_storage_see_what_it_grows_to() -> None:
    whole = torch.empty(0, device="cuda")
    other = whole.view(0)
    torch.abs(torch.tensor([-1.0, 2.0], device="cuda"), out=whole)
    other.set_(other.untyped_storage(), 0, (2,))
    assert other.cpu().tolist() == [1.0, 2.0]
    whole.add_(1)
    assert other.cpu().tolist() == [2.0, 3.0]
