"""``torch.cuda`` for a virtual device, on a build of PyTorch with or without CUDA.

PyTorch's own Python code in ``torch.cuda`` stays; it is given the functions of ``torch._C`` that a CUDA build has (`driver`),
the base classes of streams and events (`streams`), and memory statistics (`memory`). What cannot have a meaning on a virtual
device is refused by name (`refusals`).
"""

from __future__ import annotations

from typing import Any

import torch

from forebay import _C
from forebay.facade import (
    compiling,
    driver,
    foreign_kernels,
    graphs,
    legacy_types,
    libraries,
    memory,
    process_groups,
    profiling,
    refusals,
    replication,
    sensors,
    storages,
    streams,
)
from forebay.virtual_device import VirtualDevices


def install(devices: VirtualDevices) -> None:
    """Fits ``torch.cuda`` to the devices. Queries that follow open no lease."""
    of_this_build = dict(vars(torch._C))
    driver.install(devices)
    memory.install(devices)
    sensors.install()
    streams.install()
    graphs.install()
    storages.install()
    legacy_types.install()
    replication.install()
    process_groups.install()
    profiling.install()
    compiling.install()
    libraries.install()
    foreign_kernels.install()
    refusals.install(of_this_build)


def withdraw() -> None:
    """Leaves a process whose ``torch.cuda`` could not be fitted without any device: programs then use the CPU, as on a host without one."""
    core: Any = torch._C
    cuda: Any = torch.cuda
    _C.withdraw()
    if hasattr(core, "_cuda_getDeviceCount"):
        core._cuda_getDeviceCount = _C.device_count
    cuda._device_count_nvml = cuda._device_count_amdsmi = lambda: -1  # a GPU of this host would meet our kernels
