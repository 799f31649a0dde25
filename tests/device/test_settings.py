"""How a program has set PyTorch goes to the worker before what it is set for. A null device stands for a GPU: it says nothing of values."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import fork_server
import pytest
from forebay_wire import _stream, stream
from standalone import standalone_worker

DEFAULT, TF32_PRODUCTS, TF32_CONVOLUTIONS, TF32_RECURRENT, FP16_REDUCTION, BF16_REDUCTION = 0b1011110, 1, 2, 4, 8, 16
BENCHMARK, DETERMINISTIC, COMPILED, FP16_WHOLE, BF16_WHOLE = 128, 512, 2048, 4096, 8192
PROGRAM = """
import sys
from operator_sweep import attach
attach(sys.argv[1], sys.argv[2])
import torch
x = torch.ones(4, 4, device="cuda")
for change in sys.argv[3:]:
    exec(change)
    for _ in range(3):
        (x @ x).relu()
torch.cuda.synchronize()
"""


class Tap:
    """Hands what a client says on to a worker, and keeps it."""

    def __init__(self, own: Path, worker: str) -> None:
        self.said = b""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(own))
        self._listener.listen(1)
        self._worker = socket.socket(socket.AF_UNIX)
        self._worker.connect(worker)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        back = threading.Thread(target=self._answer, args=(client,))
        back.start()
        while said := client.recv(1 << 16):
            self.said += said
            self._worker.sendall(said)
        self._worker.shutdown(socket.SHUT_WR)
        back.join()
        client.close()

    def _answer(self, client: socket.socket) -> None:
        while answer := self._worker.recv(1 << 16):
            client.sendall(answer)

    def commands(self) -> list[stream.Command]:
        self._thread.join(60)
        self._listener.close()
        self._worker.close()
        reader, commands, at = stream.CommandReader(), list[stream.Command](), 0
        while at < len(self.said):
            size = _stream.frame_size(self.said[at : at + stream.FRAME_HEADER_BYTES])
            at += stream.FRAME_HEADER_BYTES
            commands += reader.read(self.said[at : at + size])
            at += size
        return commands


def settings_of(folder: Path, device: str, *changes: str) -> list[int]:
    """Those that a worker on the device was told by a program that makes these changes, one after the other, and computes under each."""
    own = folder / "tap.sock"
    with standalone_worker(folder, "--device", device) as (address, ticket):
        tap = Tap(own, address.removeprefix("unix:"))
        program = [fork_server.programs(), "-c", PROGRAM, f"unix:{own}", ticket, *changes]
        done = subprocess.run(program, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parent)
        assert done.returncode == 0, done.stderr
    return [one.bits for one in tap.commands() if isinstance(one, stream.Settings)]


def test_a_program_that_sets_nothing_says_nothing(tmp_path: Path) -> None:
    assert settings_of(tmp_path, "null:0", "pass") == []


def test_each_change_is_told_once_before_what_is_computed_under_it(tmp_path: Path) -> None:
    told = settings_of(
        tmp_path,
        "null:0",
        "torch.backends.cuda.matmul.allow_tf32 = True",
        "torch.backends.cudnn.benchmark = True",
        "torch.set_float32_matmul_precision('highest')",
        "torch.backends.cudnn.allow_tf32 = False; torch.use_deterministic_algorithms(True)",
    )
    without = DEFAULT & ~TF32_CONVOLUTIONS & ~TF32_RECURRENT
    assert told == [
        DEFAULT | TF32_PRODUCTS,
        DEFAULT | TF32_PRODUCTS | BENCHMARK,
        DEFAULT | BENCHMARK,
        without | BENCHMARK | DETERMINISTIC,
    ]


def test_products_without_split_k_are_told_apart_from_products_without_reduced_sums(tmp_path: Path) -> None:
    told = settings_of(
        tmp_path,
        "null:0",
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False",
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = (False, False)",
        "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = (False, False)",
        "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True",
    )
    halves = DEFAULT & ~FP16_REDUCTION
    assert told == [halves, halves | FP16_WHOLE, halves & ~BF16_REDUCTION | FP16_WHOLE | BF16_WHOLE, DEFAULT & ~BF16_REDUCTION | BF16_WHOLE]


def test_a_default_dtype_is_no_setting_and_comes_with_its_calls(tmp_path: Path) -> None:
    assert settings_of(tmp_path, "null:0", "torch.set_default_dtype(torch.float64)") == []


@pytest.mark.parametrize(
    ("compiles", "told"),
    [
        (None, [DEFAULT | DETERMINISTIC, DEFAULT]),
        ("0", [DEFAULT | DETERMINISTIC]),
        ("1", [DEFAULT | COMPILED, DEFAULT | DETERMINISTIC, DEFAULT | COMPILED]),
    ],
)
def test_a_worker_on_the_hosts_processor_is_told_which_libraries_the_program_wants_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiles: str | None, told: list[int]
) -> None:
    monkeypatch.delenv("FOREBAY_COMPILE", raising=False) if compiles is None else monkeypatch.setenv("FOREBAY_COMPILE", compiles)
    deterministic = [f"torch.use_deterministic_algorithms({on})" for on in (True, False)]
    assert settings_of(tmp_path, "cpu:0", "torch.backends.cuda.matmul.allow_tf32 = True", *deterministic) == told


def test_an_accelerator_is_told_that_it_may_record_graphs_while_the_program_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_COMPILE", "1")
    changes = ("torch.backends.cuda.matmul.allow_tf32 = True", "torch.use_deterministic_algorithms(True)")
    told = DEFAULT | TF32_PRODUCTS
    assert settings_of(tmp_path, "null:0", *changes) == [DEFAULT | COMPILED, told | COMPILED, told | DETERMINISTIC]
