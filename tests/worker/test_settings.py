"""What SETTINGS does to the PyTorch of the process that hears it, in processes of their own: it is the whole process's."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from forebay_wire import stream

REPORT = """
import ctypes, os, sys
import torch
from forebay_worker import _executor

def environment(name):
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return (getenv(name) or b"unset").decode()

def report(bits):
    _executor.apply_settings(bits)
    cuda, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    print(
        cuda.fp32_precision, cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision,
        cuda.allow_fp16_reduced_precision_reduction, cuda.allow_bf16_reduced_precision_reduction, cuda.allow_fp16_accumulation,
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic,
        torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        cuda.allow_fp16_reduced_precision_reduction_split_k, cuda.allow_bf16_reduced_precision_reduction_split_k,
        environment(b"CUBLAS_WORKSPACE_CONFIG"), flush=True,
    )

for bits in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        report(int(bits))
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit(f"the process for {bits} failed")
"""
NAMES = ("ieee", "tf32")
CASES = (0, *(1 << place for place in range(10)), 0b11000000000, *(1 << place for place in (12, 13)), 0b1000000001000, stream.SETTINGS_MAX)


@pytest.fixture(scope="module")
def reported() -> dict[int, list[str]]:
    """What each case sets, in a fork of one process that has imported PyTorch."""
    done = subprocess.run([sys.executable, "-c", REPORT, *map(str, CASES)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {bits: line.split() for bits, line in zip(CASES, done.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize("bits", CASES)
def test_each_bit_sets_what_it_stands_for_and_nothing_else(bits: int, reported: dict[int, list[str]]) -> None:
    flags = [str(bool(bits >> place & 1)) for place in range(3, 11)]
    precisions = [NAMES[bits >> place & 1] for place in range(3)]
    splits = [str(bool(bits >> reduced & 1 or not bits >> whole & 1)) for reduced, whole in ((3, 12), (4, 13))]
    workspace = ":4096:8" if bits & 512 else "unset"  # without it PyTorch refuses products by cuBLAS
    expected = [*precisions, *flags, str(bool(bits & 1)), *splits, workspace]
    assert reported[bits] == expected, "and kernels that ask by PyTorch's older names are answered"


def test_more_settings_than_there_are_end_the_session(client: Any) -> None:
    client.send(stream.Settings(stream.SETTINGS_MAX), stream.Sync(1))
    assert isinstance(client.reply(), stream.Done)
    client.send_raw(bytes([26, 0x80, 0x80, 2]))
    refused = client.reply()
    assert isinstance(refused, stream.Refused) and "the settings is 32768" in refused.message
