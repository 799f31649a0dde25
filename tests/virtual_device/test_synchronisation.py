"""What has waited for the device need not wait again; what has not, must."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from forebay import _C


def waits(step: Callable[[], object]) -> int:
    """How often a step waited for the worker."""
    before = _C.statistics()["syncs"]
    step()
    return _C.statistics()["syncs"] - before


def fail(columns: int = 1) -> torch.Tensor:
    """Rows that are never made. The first call of its kind goes well, so that nobody waits for this one."""
    table = torch.zeros(4, columns, device="cuda")
    torch.index_select(table, 0, torch.tensor([3], device="cuda"))
    return torch.index_select(table, 0, torch.tensor([9], device="cuda"))


@pytest.mark.parametrize("count", [1, 16 << 10, 1 << 20], ids=["an item", "by the socket", "by shared memory"])
def test_a_synchronisation_after_a_read_costs_nothing(count: int) -> None:
    x = torch.rand(count, device="cuda")

    def step() -> None:
        x.add_(1).cpu()
        torch.cuda.synchronize()

    step()
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


def test_a_failure_that_keeps_a_download_from_coming_is_told_once_by_what_comes_first() -> None:
    rows = fail(columns=1 << 20)
    torch.zeros(1, 1 << 20).pin_memory().copy_(rows, non_blocking=True)
    with pytest.raises(RuntimeError, match="index"):
        torch.ones(1, device="cuda").item()
    torch.cuda.synchronize()
    assert torch.ones(1, device="cuda").item() == 1


def test_a_download_of_what_was_never_made_is_told_although_a_read_came_between() -> None:
    rows = fail(columns=1 << 20)
    with pytest.raises(RuntimeError, match="index"):
        torch.cuda.synchronize()
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
    index = lambda: (x[rows], x[rows, 1:], x[:, rows.view(2, 1)])  # noqa: E731
    index()
    assert waits(index) == 0
    assert waits(lambda: x[mask]) == 1
    assert x[rows, 1:].cpu().tolist() == [[7.0, 8.0], [1.0, 2.0]]
    assert x[:, rows.view(2, 1)].shape == (4, 2, 1)


def sender() -> Path:
    """What the system tells of the thread that sends in the background."""
    tasks = Path("/proc/self/task")
    return next(task for task in tasks.iterdir() if (task / "comm").read_text() == "forebay-send\n")


def wakes_of_the_sender(step: Callable[[], object]) -> int:
    """How often the thread that sends in the background went to sleep while a step ran."""

    def sleeps() -> int:
        lines = (sender() / "status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("voluntary_ctxt_switches")).split()[1])

    before = sleeps()
    step()
    return sleeps() - before


def test_nobody_wakes_up_to_send_while_the_program_waits_for_a_number() -> None:
    """While it records, slowed down, the sender may go to sleep after each command: there are few of them, and the wait is long."""
    matrix, steps = torch.rand(1000, 1000, device="cuda"), 6
    matrix.sum().item()

    def long_wait() -> None:
        result = matrix
        for _ in range(steps):
            result = (result @ matrix).clamp(0, 1)
        result.sum().item()

    long_wait()
    start = time.perf_counter()
    wakes = wakes_of_the_sender(long_wait)
    assert wakes < (time.perf_counter() - start) * 50 + 2 * 2 * steps + 20


def test_nobody_wakes_up_to_send_in_a_loop_that_reads() -> None:
    numbers = torch.rand(100, device="cuda")

    def loop() -> None:
        for index in range(3000):
            numbers[index % 100].item()

    loop()
    start = time.perf_counter()
    wakes = wakes_of_the_sender(loop)
    assert wakes < (time.perf_counter() - start) * 2000 + 10, "it wakes up every millisecond at most"


def test_what_a_loop_records_between_two_reads_is_sent_before_the_second() -> None:
    """As far as the worker keeps up, which it cannot where both are on one processor: so this thread goes from one to the other."""
    x, sent, processors = torch.zeros((), device="cuda"), [], os.sched_getaffinity(0)
    try:
        for _, processor in zip(range(20), itertools.cycle(processors), strict=False):
            os.sched_setaffinity(0, {processor})
            for _ in range(3):
                x.add_(1).item()
            before = _C.statistics()["frames_sent"]
            for _ in range(100):
                x.add_(1)
            sent.append(_C.statistics()["frames_sent"] - before)
    finally:
        os.sched_setaffinity(0, processors)
    assert max(sent) >= 5
    assert x.item() == 20 * 103


def test_a_loop_that_reads_is_told_of_what_another_thread_records() -> None:
    x, y = torch.zeros((), device="cuda"), torch.zeros((), device="cuda")
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            x.item()

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(200):
        y.add_(1)
    stop.set()
    reader.join()
    assert y.item() == 200


def test_a_worker_that_has_answered_keeps_its_processor_for_a_moment_only() -> None:
    numbers = torch.rand(100, device="cuda")
    for index in range(1000):
        numbers[index % 100].item()
    workers = [child for child in psutil.Process().children(recursive=True) if "forebay_worker" in child.cmdline()]
    assert workers

    def spent() -> float:
        return sum(sum(worker.cpu_times()[:2]) for worker in workers)

    before = spent()
    time.sleep(1)
    assert spent() - before < 0.1
