"""Functions that peers run: on the virtual device and natively alike. Each gets the name of PyTorch's device first.

``HELD`` keeps tensors from one call to the next, as a notebook's variables do between cells.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

MIB = 1 << 20
PIECE_BYTES = 256 * MIB
WAITS_BLOCK = 100

HELD: dict[str, torch.Tensor] = {}


def synchronize(device: str) -> None:
    """Returns when all work is done."""
    if device != "cpu":
        torch.cuda.synchronize()


# The session of a client


def connect(device: str, address: str, ticket: str) -> None:
    """Goes to a worker; with the same tensors, if there was one before."""
    from forebay import _C

    _C.connect(address, bytes.fromhex(ticket))


def lease(device: str, epoch: int, limit_bytes: int) -> None:
    """A lease is open."""
    from forebay import _C

    _C.lease_opened(epoch, limit_bytes)


def mark(device: str) -> None:
    """The cell ends, and the lease with its work."""
    from forebay import _C

    _C.mark()


def leave(device: str) -> None:
    """The stream ends at its worker."""
    from forebay import _C

    _C.leave()


# What is there


def seen(device: str) -> dict[str, Any]:
    """Which devices this process sees: ``gpus`` are real ones."""
    from forebay import process, pytorch_build

    return {
        "available": torch.cuda.is_available(),
        "virtual": process.active,
        "gpus": pytorch_build.gpus_seen(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
    }


def product(device: str, rows: int) -> float:
    """The sum over a matrix product, in float64."""
    left = torch.arange(rows * rows, dtype=torch.float64).reshape(rows, rows).to(device) / rows
    return float((left @ left.t()).sum().item())


def free_bytes(device: str, of: str | None = None) -> int:
    """Of the device's memory, or of another one's, as its driver says to a native process."""
    return int(torch.cuda.mem_get_info(of or device)[0])


def count(device: str) -> int:
    """Devices that a native process sees."""
    return max(1, torch.cuda.device_count())


# Memory


def fill(device: str, count_bytes: int, name: str = "filled", seed: int = 0) -> int:
    """Holds tensors of chance, in pieces. Returns how many."""
    torch.manual_seed(seed)
    starts = range(0, count_bytes, PIECE_BYTES)
    for at, start in enumerate(starts):
        words = min(PIECE_BYTES, count_bytes - start) // 4
        HELD[f"{name}-{at}"] = torch.randint(-(2**31), 2**31 - 1, (words,), dtype=torch.int32, device=device)
    synchronize(device)
    return len(starts)


def digest(device: str, name: str = "filled") -> list[int]:
    """Two sums of each piece, of all numbers and of every seventh: a piece that is lost, torn or in another's place changes them."""
    sums = []
    for held, tensor in sorted(HELD.items()):
        if held.startswith(f"{name}-"):
            sums += [int(tensor.sum(dtype=torch.int64).item()), int(tensor[::7].sum(dtype=torch.int64).item())]
    return sums


def forget(device: str) -> None:
    """Frees all that is held."""
    HELD.clear()
    synchronize(device)
    if device != "cpu":
        torch.cuda.empty_cache()


def limit(device: str, share: float) -> None:
    """Natively: this process may have so much of the device's memory."""
    if device != "cpu":
        torch.cuda.set_per_process_memory_fraction(share)


def take_all(device: str, piece_bytes: int, most_bytes: int) -> dict[str, Any]:
    """Allocates pieces until the memory is out, or ``most_bytes`` are held. Returns what was served, and the refusal."""
    refusal = ""
    try:
        while len(HELD) * piece_bytes < most_bytes:
            HELD[f"piece-{len(HELD)}"] = torch.zeros(piece_bytes, dtype=torch.uint8, device=device)
            synchronize(device)
    except torch.OutOfMemoryError as error:
        refusal = str(error).splitlines()[0]
    return {"served": len(HELD) * piece_bytes, "refusal": refusal}


def sum_beyond(device: str, count_bytes: int) -> dict[str, Any]:
    """Sums a tensor in a wider dtype, for which PyTorch makes a copy of twice its size. Returns the error's type and words, and whether
    the session's tensors are whole."""
    tensor = torch.arange(count_bytes // 4, dtype=torch.int32, device=device)
    kind, words = "", ""
    try:
        tensor.sum(dtype=torch.int64).item()
    except Exception as error:  # which one it is, is what is asked
        kind, words = type(error).__name__, str(error).splitlines()[0]
    whole = int(tensor.amax().item()) == len(tensor) - 1 and int(torch.ones(8, device=device).sum().item()) == 8
    return {"kind": kind, "words": words, "whole": whole}


def fragment(device: str, piece_bytes: int, pieces: int, large_bytes: int) -> bool:
    """Whether a large tensor fits once every other of many pieces was freed."""
    held = [torch.zeros(piece_bytes + at * 4096, dtype=torch.uint8, device=device) for at in range(pieces)]
    synchronize(device)
    del held[::2]
    try:
        large = torch.zeros(large_bytes, dtype=torch.uint8, device=device)
        synchronize(device)
    except torch.OutOfMemoryError:
        return False
    return large.numel() == large_bytes


def pattern(device: str, count_bytes: int) -> None:
    """Fills so much memory with a pattern that nobody else writes."""
    HELD["pattern"] = torch.full((count_bytes,), 0xA5, dtype=torch.uint8, device=device)
    synchronize(device)


def traces(device: str, count_bytes: int) -> int:
    """How many bytes of fresh memory are not zero."""
    found, left = 0, count_bytes
    held = []
    while left > 0:
        held.append(torch.empty(min(PIECE_BYTES, left), dtype=torch.uint8, device=device))
        found += int(torch.count_nonzero(held[-1]).item())
        left -= PIECE_BYTES
    return found


# Moving bytes


def plain_copy(device: str, count_bytes: int) -> dict[str, float]:
    """Seconds to move so many bytes between pinned memory and the device, each way, through buffers of a GiB at most."""
    size = min(count_bytes, 1 << 30)
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device != "cpu")
    there = torch.empty(size, dtype=torch.uint8, device=device)

    def move(target: torch.Tensor, source: torch.Tensor) -> float:
        began = time.perf_counter()
        for start in range(0, count_bytes, size):
            count = min(size, count_bytes - start)
            target[:count].copy_(source[:count], non_blocking=True)
        synchronize(device)
        return time.perf_counter() - began

    move(there, host), move(host, there)
    return {"to_device": move(there, host), "to_host": move(host, there)}


def transfer(device: str, count_bytes: int, turns: int) -> dict[str, float]:
    """Median seconds of an upload and a download of new bytes in pageable memory."""
    up, down = [], []
    target = torch.empty(count_bytes // 4, dtype=torch.int32, device=device)
    for turn in range(turns + 1):
        source = torch.arange(turn, turn + count_bytes // 4, dtype=torch.int32)
        began = time.perf_counter()
        target.copy_(source)
        synchronize(device)
        up.append(time.perf_counter() - began)
        target.add_(1)
        synchronize(device)
        began = time.perf_counter()
        source.copy_(target)
        down.append(time.perf_counter() - began)
    return {"up": statistics.median(up[1:]), "down": statistics.median(down[1:])}


# Calls


def _median_us(calls: int, call: Callable[[], object], synchronized: Callable[[], None]) -> float:
    """Median over blocks of calls, of a call's mean; what a block left to do is waited for outside of it."""
    blocks = []
    for _ in range(max(1, calls // WAITS_BLOCK) + 1):
        began = time.perf_counter_ns()
        for _ in range(WAITS_BLOCK):
            call()
        blocks.append((time.perf_counter_ns() - began) / WAITS_BLOCK / 1e3)
        synchronized()
    return statistics.median(blocks[1:])


def add_us(device: str, calls: int) -> float:
    """What a call of an operator takes of the program's thread."""
    one, other = torch.ones(4, 4, device=device), torch.ones(4, 4, device=device)
    return _median_us(calls, lambda: one + other, lambda: synchronize(device))


def item_us(device: str, calls: int) -> float:
    """What a read of a ready number takes."""
    number = torch.ones((), device=device)
    synchronize(device)
    return _median_us(calls, number.item, lambda: None)


def begin_kernel(device: str, rows: int, count: int) -> None:
    """Products of matrices that are begun and not waited for."""
    left = torch.ones(rows, rows, device=device)
    for _ in range(count):
        left = left @ left
    HELD["product"] = left


def violate(device: str) -> str:
    """A class that is none: natively an assertion of a kernel on CUDA, after which the process has no device. Returns what it hears."""
    scores, classes = torch.zeros(4, 3, device=device), torch.full((4,), 77, device=device)
    try:
        torch.nn.functional.cross_entropy(scores, classes)
        torch._assert_async(torch.zeros((), device=device, dtype=torch.bool))
        synchronize(device)
    except Exception as error:  # its words are the result
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def cells_ms(device: str, count: int) -> list[float]:
    """Milliseconds from a cell's first call until it was executed, each in a span and a lease of its own."""
    from forebay import process

    waits = []
    for _ in range(count):
        began = time.perf_counter()
        torch.ones(4, device=device).sum().item()
        waits.append((time.perf_counter() - began) * 1e3)
        if process.installed is not None:
            process.installed.end_span()
        time.sleep(0.05)
    return waits
