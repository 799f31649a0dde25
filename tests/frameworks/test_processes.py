"""Loaders with workers, child processes of each kind, and threads, beside a live session."""

from __future__ import annotations

import multiprocessing
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fork_server
import pytest
import torch
import torch.multiprocessing
from forebay.errors import NotOnVirtualDevice
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, Dataset, TensorDataset

ANSWER_SECONDS_MAX = 60


class OnDevice(Dataset[torch.Tensor]):
    """Makes its samples on the device, wherever it runs, of what is there."""

    def __init__(self, scale: torch.Tensor) -> None:
        self.scale = scale

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.full((2,), float(index), device="cuda") * self.scale).cpu()


def answer(connection: Connection, kept: torch.Tensor) -> None:
    """Sends what it computed on the device of what was there, a gradient too."""
    kept.requires_grad_()
    (kept * torch.arange(2.0, device="cuda")).sum().backward()
    assert kept.grad is not None
    connection.send((kept.sum().item(), kept.grad.tolist()))


@pytest.mark.parametrize("options", [{}, {"pin_memory": True, "persistent_workers": True, "prefetch_factor": 4}], ids=str)
def test_a_loader_with_workers_feeds_a_live_session(options: dict[str, Any]) -> None:
    kept = torch.ones(2, device="cuda")
    loader = DataLoader(TensorDataset(torch.arange(32.0), torch.arange(32)), batch_size=4, num_workers=2, **options)
    for _ in range(2):
        total = sum((x.to("cuda", non_blocking=True) * y.cuda()).sum().item() for x, y in loader)
        assert total == sum(number * number for number in range(32))
    assert kept.sum().item() == 2.0


def test_a_loader_whose_forked_workers_use_the_device_has_what_is_there() -> None:
    scale = torch.full((1,), 3.0, device="cuda")
    scale.item()
    loader = DataLoader(OnDevice(scale), batch_size=4, num_workers=1, multiprocessing_context="fork")
    assert [batch[:, 1].tolist() for batch in loader] == [[0.0, 3.0, 6.0, 9.0], [12.0, 15.0, 18.0, 21.0]]


def test_a_forked_child_of_a_live_session_has_its_tensors_and_computes_gradients() -> None:
    kept, weight = torch.ones(2, device="cuda"), torch.ones(2, device="cuda", requires_grad=True)
    (weight * kept).sum().backward()  # PyTorch's own children could compute no gradients after that
    mine, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=answer, args=(theirs, kept))
    child.start()
    kept.zero_()
    assert mine.poll(ANSWER_SECONDS_MAX), "the child hangs"
    assert mine.recv() == (2.0, [0.0, 1.0])
    child.join()
    assert (child.exitcode, kept.sum().item()) == (0, 0.0)


def test_a_child_forked_before_any_work_gets_a_session_of_its_own() -> None:
    program = """
import os, torch
assert torch.cuda.is_available() and torch.cuda.get_device_name().startswith("Forebay")
child = os.fork()
print((torch.full((3,), 4.0, device="cuda") * 2).sum().item(), flush=True)
if child:
    assert os.waitpid(child, 0)[1] == 0
"""
    done = subprocess.run([fork_server.programs(), "-c", program], capture_output=True, text=True, timeout=ANSWER_SECONDS_MAX)
    assert (done.returncode, done.stdout) == (0, "24.0\n24.0\n"), done.stderr


STARTING = """
import sys
from concurrent.futures import ProcessPoolExecutor
import torch
import torch.multiprocessing

def doubled(number):
    return (torch.full((3,), number, device="cuda") * 2).cpu()

if __name__ == "__main__":
    kept = torch.ones(2, device="cuda")
    kept.sum().item()
    context = torch.multiprocessing.get_context(sys.argv[1])
    with context.Pool(1) as pool:
        print([tensor.tolist() for tensor in pool.map(doubled, [1.0, 2.0])])
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        print([tensor.tolist() for tensor in executor.map(doubled, [3.0])])
    print(kept.sum().item())
"""


@pytest.mark.parametrize("method", ["spawn", pytest.param("forkserver", marks=pytest.mark.full_sweep)])
def test_started_processes_have_sessions_of_their_own_and_pass_host_tensors_back(method: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(STARTING)
    command = [sys.executable, str(tmp_path / "program.py"), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS_MAX)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[[2.0, 2.0, 2.0], [4.0, 4.0, 4.0]]\n[[6.0, 6.0, 6.0]]\n2.0\n"


SENDING: dict[str, Callable[[torch.Tensor], None]] = {
    "argument": lambda x: torch.multiprocessing.get_context("spawn").Process(target=print, args=(x,)).start(),
    "queue": lambda x: torch.multiprocessing.SimpleQueue().put(x),
    "pipe": lambda x: multiprocessing.Pipe()[0].send(x),
}


@pytest.mark.parametrize("way", SENDING)
def test_sending_a_tensor_of_the_device_to_a_process_is_refused_by_name(way: str) -> None:
    with pytest.raises(NotOnVirtualDevice, match=r"another process.*send tensor\.cpu\(\) instead"):
        SENDING[way](torch.ones(2, device="cuda"))


def test_threads_share_the_session_and_its_tensors() -> None:
    torch.manual_seed(1)
    host = nn.Linear(8, 8)
    model = nn.Linear(8, 8).cuda()
    model.load_state_dict(host.state_dict())
    made: queue.Queue[torch.Tensor] = queue.Queue()

    def produce() -> None:
        for number in range(8):
            made.put(torch.full((2, 8), float(number), device="cuda"))

    def consume(number: int) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.cuda.stream(torch.cuda.Stream()):
            x = made.get(timeout=ANSWER_SECONDS_MAX)
            y = x
            for _ in range(10):
                y = model(y).tanh()
            (gradient,) = torch.autograd.grad(y.sum(), model.weight)
            return x, gradient

    producer = threading.Thread(target=produce)
    producer.start()
    with ThreadPoolExecutor(4) as executor:
        found = list(executor.map(consume, range(8)))
    producer.join()
    assert sorted(x[0, 0].item() for x, _ in found) == [float(number) for number in range(8)]
    for x, gradient in found:
        y = x.cpu()
        for _ in range(10):
            y = host(y).tanh()
        assert_close(gradient.cpu(), torch.autograd.grad(y.sum(), host.weight)[0], rtol=1e-3, atol=1e-5)
