"""What has waited for the device need not wait again; what has not, must."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch
from forebay import _C


def waits(step: Callable[[], object]) -> int:
    """How often a step waited for the worker."""
    before = _C.statistics()["syncs"]
    step()
    return _C.statistics()["syncs"] - before


def fail() -> None:
    torch.index_select(torch.zeros(4, device="cuda"), 0, torch.tensor([9], device="cuda"))


@pytest.mark.parametrize("count", [1, 16 << 10, 1 << 20], ids=["an item", "by the socket", "by shared memory"])
def test_a_synchronisation_after_a_read_costs_nothing(count: int) -> None:
    x = torch.rand(count, device="cuda")

    def step() -> None:
        x.add_(1).cpu()
        torch.cuda.synchronize()

    assert waits(step) == 1
    assert waits(torch.cuda.synchronize) == 0


def test_what_is_recorded_after_a_read_is_waited_for() -> None:
    x = torch.rand(4, device="cuda")
    x.sum().item()
    x.add_(1)
    assert waits(torch.cuda.synchronize) == 1
    assert waits(torch.cuda.synchronize) == 0


def test_a_failure_after_a_read_is_told_by_the_synchronisation() -> None:
    torch.ones(1, device="cuda").item()
    fail()
    with pytest.raises(RuntimeError, match="index"):
        torch.cuda.synchronize()


def test_a_failure_that_a_read_tells_is_told_once_and_the_rest_is_waited_for() -> None:
    fail()
    with pytest.raises(RuntimeError, match="index"):
        torch.ones(1, device="cuda").item()
    assert waits(torch.cuda.synchronize) == 1


def test_a_failed_download_is_told_although_a_read_came_between() -> None:
    rows = torch.index_select(torch.zeros(4, 1 << 20, device="cuda"), 0, torch.tensor([9], device="cuda"))
    torch.zeros(1, 1 << 20).pin_memory().copy_(rows, non_blocking=True)
    assert torch.ones(1, device="cuda").item() == 1
    with pytest.raises(RuntimeError, match="index"):
        torch.cuda.synchronize()
    torch.cuda.synchronize()


def test_a_thread_waits_for_what_another_one_is_waiting_for() -> None:
    matrix = torch.rand(700, 700, device="cuda")
    torch.cuda.synchronize()
    for _ in range(60):
        matrix = (matrix @ matrix).clamp(0, 1)
    read_at: list[float] = []

    def read() -> None:
        matrix.sum().item()
        read_at.append(time.perf_counter())

    reader = threading.Thread(target=read)
    start = time.perf_counter()
    reader.start()
    time.sleep(0.02)  # its question is on its way
    torch.cuda.synchronize()
    synchronised = time.perf_counter()
    reader.join()
    assert synchronised - start > (read_at[0] - start) / 2, "the synchronisation came back while the device worked"


def test_a_read_tells_how_long_the_worker_worked() -> None:
    x = torch.rand(500, 500, device="cuda")
    torch.cuda.synchronize()
    before = _C.statistics()["busy_ns"]
    for _ in range(20):
        x = (x @ x).clamp(0, 1)
    start = time.perf_counter_ns()
    x.sum().item()
    waited = time.perf_counter_ns() - start
    assert _C.statistics()["busy_ns"] - before > waited / 2


def test_indexing_with_whole_numbers_asks_nobody_and_a_mask_asks_once() -> None:
    x = torch.arange(12.0, device="cuda").view(4, 3)
    rows, mask = torch.tensor([2, 0], device="cuda"), torch.tensor([True, False, True, True], device="cuda")
    assert waits(lambda: (x[rows], x[rows, 1:], x[:, rows.view(2, 1)])) == 0
    assert waits(lambda: x[mask]) == 1
    assert x[rows, 1:].cpu().tolist() == [[7.0, 8.0], [1.0, 2.0]]
    assert x[:, rows.view(2, 1)].shape == (4, 2, 1)
