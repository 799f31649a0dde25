"""What cuts in while the device is used: refused calls, signals, threads, forks, the end of the process."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time

import fork_server
import pytest
import torch
from forebay import _C

BUSY_PRODUCTS = 60


def busy() -> torch.Tensor:
    """Recorded work that takes the worker a while."""
    x = torch.ones(800, 800, device="cuda")
    for _ in range(BUSY_PRODUCTS):
        x = (x @ x).clamp(max=1)
    return x


def test_a_call_with_a_generator_of_the_host_is_refused_and_harms_nothing() -> None:
    kept = torch.ones(3, device="cuda")
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        torch.randn(3, device="cuda", generator=torch.Generator())
    assert kept.tolist() == [1.0, 1.0, 1.0]


def test_a_list_longer_than_a_call_may_have_is_refused_and_harms_nothing() -> None:
    one = torch.zeros(1, device="cuda")
    with pytest.raises(RuntimeError, match="more than 65536 items"):
        torch.cat([one] * 65537)
    with pytest.raises(RuntimeError, match="more than 65536 items"):
        torch._foreach_add([one] * 40000, 1.0)
    assert one.item() == 0.0


def test_an_interrupted_wait_can_be_waited_for_again() -> None:
    busy().sum().item()
    work = busy()
    timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        torch.cuda.synchronize()
    timer.join()
    torch.cuda.synchronize()
    started = time.monotonic()
    assert work[0, 0].item() == 1.0
    assert time.monotonic() - started < 0.1, "the second wait did not wait"


class Slow(torch.autograd.Function):
    """Its gradient takes a while, on the thread that autograd has for the device."""

    seconds = 0.6

    @staticmethod
    def forward(_context: object, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(_context: object, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(Slow.seconds)
        return gradient * 2


def test_the_end_of_a_program_waits_for_autograd_s_threads_within_bounds() -> None:
    """One that lets go of Python objects after Python's end would terminate the process."""
    x = torch.ones(3, device="cuda", requires_grad=True)
    (x * 2).sum().backward()
    assert _C.settle_backwards(10.0), "nothing is under way"
    began = time.monotonic()
    other = threading.Thread(target=Slow.apply(x).sum().backward)
    other.start()
    time.sleep(0.1)
    assert not _C.settle_backwards(0.05)
    assert time.monotonic() - began < Slow.seconds
    assert _C.settle_backwards(10.0)
    assert time.monotonic() - began >= Slow.seconds
    other.join()
    assert x.grad is not None and x.grad.tolist() == [4.0, 4.0, 4.0]


def test_a_signal_handler_that_reads_the_device_is_refused_instead_of_hanging() -> None:
    said: list[str] = []

    def read(*_: object) -> None:
        try:
            torch.ones(1, device="cuda").item()
            said.append("read")
        except RuntimeError as error:
            said.append(str(error))

    busy().sum().item()
    before = signal.signal(signal.SIGALRM, read)
    try:
        work = busy().sum()
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        assert work.item() == 640000.0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(said) == 1 and "a signal handler cannot read" in said[0]


def test_every_thread_that_synchronizes_waits() -> None:
    work = busy()
    threads = [threading.Thread(target=torch.cuda.synchronize) for _ in range(3)]
    for thread in threads:
        thread.start()
    threads[-1].join()
    started = time.monotonic()
    work[0, 0].item()
    assert time.monotonic() - started < 0.1
    for thread in threads:
        thread.join()


def test_a_fork_does_not_wait_for_an_upload() -> None:
    x = torch.randn(1 << 24)
    busy().sum().item()
    work = busy()
    thread = threading.Thread(target=x.cuda)
    thread.start()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    assert time.monotonic() - started < 5
    thread.join()
    assert work[0, 0].item() == 1.0


def test_a_process_ends_in_peace_while_daemon_threads_use_the_device() -> None:
    program = """
import threading, time, torch
def spin():
    while True:
        try:
            torch.ones(4, device="cuda").sum().item()
        except RuntimeError:
            pass
torch.ones(4, device="cuda").sum().item()
for _ in range(3):
    threading.Thread(target=spin, daemon=True).start()
time.sleep(0.2)
"""
    done = subprocess.run([fork_server.programs(), "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
