"""What ``torch.cuda`` asks of NVIDIA's management library: how much of the time a device was held, and what this process has on it."""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from forebay import _C

PERIOD_NS = 100_000_000
"""Of which a share is told, at least."""


class Share:
    """How much of the time since it was asked before a device's lease was open, in percent."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._asked_ns: int | None = None
        self._held_ns = 0
        self._percent = 0

    def now(self) -> int:
        """The first time: whether a lease is open."""
        asked_ns, held_ns = time.monotonic_ns(), _C.held_ns(self._index)
        if self._asked_ns is None:
            self._percent = 100 if _C.lease_is_open(self._index) else 0
        elif asked_ns - self._asked_ns < PERIOD_NS:
            return self._percent
        else:
            period = asked_ns - self._asked_ns
            self._percent = round(100 * min(max(held_ns - self._held_ns, 0), period) / period)
        self._asked_ns, self._held_ns = asked_ns, held_ns
        return self._percent


def install() -> None:
    """Puts the functions in place."""
    shares = [Share(index) for index in range(_C.device_count())]
    cuda: Any = torch.cuda

    def utilization(device: Any = None) -> int:
        """Percent of the time since the last call for which a lease of the device was open: at least what it computed."""
        index: int = cuda._utils._get_device_index(device, optional=True)
        return shares[index].now()

    def list_gpu_processes(device: Any = None) -> str:
        """This process, if it has memory of the device: others have devices of their own."""
        index = cuda._utils._get_device_index(device, optional=True)
        allocated = _C.memory(index)["allocated"]
        line = f"process {os.getpid():>10d} uses {allocated / 2**20:>12.3f} MB GPU memory" if allocated else "no processes are running"
        return f"GPU:{index}\n{line}"

    cuda.utilization = cuda.memory_usage = utilization
    cuda.list_gpu_processes = cuda.memory.list_gpu_processes = list_gpu_processes
