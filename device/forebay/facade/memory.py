"""Memory of a virtual device, as the client asked for it: what the worker counts against the flavor."""

from __future__ import annotations

from typing import Any

import torch

from forebay import _C
from forebay.errors import NotOnVirtualDevice
from forebay.virtual_device import VirtualDevices

Counters = dict[str, int]


def _pools(all_of_it: Counters) -> dict[str, Counters]:
    """PyTorch's shape of a statistic. There is one pool, shown as the large one."""
    nothing = dict.fromkeys(all_of_it, 0)
    return {"all": all_of_it, "small_pool": nothing, "large_pool": dict(all_of_it)}


class Statistics:
    """PyTorch's allocator statistics of one device. Nothing is cached or split here, so reserved is allocated.

    Of bytes only present and peak are kept; their running totals are shown as if they had begun with what is held now.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._allocations_before = 0
        self._frees_before = 0
        self._peak_count = 0

    def nested(self) -> dict[str, Any]:
        """As ``torch.cuda.memory_stats_as_nested_dict()``."""
        use = _C.memory(self._index)
        self._peak_count = max(self._peak_count, use["alive"])
        made, gone = use["allocations"] - self._allocations_before, use["frees"] - self._frees_before
        bytes_now = {"current": use["allocated"], "peak": use["peak"], "allocated": use["allocated"], "freed": 0}
        counts = {"current": use["alive"], "peak": self._peak_count, "allocated": made, "freed": gone}
        none = {"current": 0, "peak": 0, "allocated": 0, "freed": 0}
        nested: dict[str, Any] = {name: _pools(dict(counts)) for name in ("allocation", "segment", "active")}
        nested |= {f"{name}_bytes": _pools(dict(bytes_now)) for name in ("allocated", "reserved", "active", "requested")}
        nested |= {name: _pools(dict(none)) for name in ("inactive_split", "inactive_split_bytes")}
        nested |= {name: dict(none) for name in ("oversize_allocations", "oversize_segments")}
        nested |= dict.fromkeys(("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"), 0)
        nested["max_split_size"] = -1
        return nested

    def reset_peak(self) -> None:
        """Peaks begin again at what is allocated now."""
        _C.reset_peak_memory(self._index)
        self._peak_count = 0

    def reset_accumulated(self) -> None:
        """Counts of allocations and frees begin again at 0."""
        use = _C.memory(self._index)
        self._allocations_before, self._frees_before = use["allocations"], use["frees"]


class CudaStatus(int):
    """A return code of the CUDA runtime."""

    success: CudaStatus


CudaStatus.success = CudaStatus(0)


ALREADY_PINNED, NOT_PINNED = CudaStatus(712), CudaStatus(713)
SENTENCES = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    4: "driver shutting down",
    35: "CUDA driver version is insufficient for CUDA runtime version",
    46: "all CUDA-capable devices are busy or unavailable",
    98: "invalid device function",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    201: "invalid device context",
    209: "no kernel image is available for execution on the device",
    400: "invalid resource handle",
    600: "device not ready",
    700: "an illegal memory access was encountered",
    701: "too many resources requested for launch",
    702: "the launch timed out and was terminated",
    710: "device-side assert triggered",
    712: "part or all of the requested memory range is already mapped",
    713: "pointer does not correspond to a registered memory region",
    719: "unspecified launch failure",
    801: "operation not supported",
    999: "unknown error",
}
"""What the CUDA runtime says of its return codes that programs meet."""


class CudaRuntime:
    """The few functions of ``torch.cuda.cudart()`` that make sense here."""

    cudaError = CudaStatus

    def __init__(self, devices: VirtualDevices) -> None:
        self._devices = devices

    def cudaMemGetInfo(self, index: int) -> tuple[int, int]:
        """Bytes free and in all: those of the flavor."""
        total = self._devices.flavor(index).memory_bytes
        return max(0, total - _C.memory(index)["allocated"]), total

    def cudaGetErrorString(self, status: int) -> str:
        """As the CUDA runtime says it."""
        return SENTENCES.get(int(status), "unrecognized error code")

    def cudaHostRegister(self, address: int, size: int, flags: int) -> CudaStatus:
        """The memory counts as pinned from here on; there is nothing to be done for it."""
        return CudaStatus.success if _C.pin_memory(address, size) else ALREADY_PINNED

    def cudaHostUnregister(self, address: int) -> CudaStatus:
        """The memory is ordinary again."""
        return CudaStatus.success if _C.unpin_memory(address) else NOT_PINNED

    def cudaProfilerStart(self) -> CudaStatus:
        """No profiler of the CUDA runtime listens; torch.profiler sees the host's side."""
        return CudaStatus.success

    def cudaProfilerStop(self) -> CudaStatus:
        """As :meth:`cudaProfilerStart`."""
        return CudaStatus.success

    def __getattr__(self, name: str) -> Any:
        if name.startswith("cuda"):
            raise NotOnVirtualDevice(f"torch.cuda.cudart().{name}", "it acts on a physical GPU of this machine.")
        raise AttributeError(name)


def install(devices: VirtualDevices) -> None:
    """Puts the statistics where ``torch.cuda`` and ``torch.accelerator`` look for them."""
    statistics = [Statistics(index) for index in range(_C.device_count())]
    runtime = CudaRuntime(devices)
    core: Any = torch._C
    core._cuda_memoryStats = core._accelerator_getDeviceStats = lambda index: statistics[index].nested()
    core._cuda_resetPeakMemoryStats = core._accelerator_resetPeakStats = lambda index: statistics[index].reset_peak()
    core._cuda_resetAccumulatedMemoryStats = core._accelerator_resetAccumulatedStats = lambda index: statistics[index].reset_accumulated()
    core._cuda_emptyCache = core._accelerator_emptyCache = core._host_emptyCache = lambda: None
    core._accelerator_isAllocatorInitialized = lambda: True
    core._accelerator_getMemoryInfo = runtime.cudaMemGetInfo
    core._cuda_getAllocatorBackend = lambda: "forebay"
    core._cuda_getMemoryFraction = _C.memory_fraction
    core._cuda_setMemoryFraction = lambda fraction, index: _C.set_memory_fraction(
        fraction, devices.flavor(index).memory_bytes if fraction < 1 else 0, index
    )
    core._cudart = runtime
    cuda: Any = torch.cuda
    cuda._cudart = runtime
    cuda.device_memory_used = lambda device=None: torch.cuda.memory_allocated(device)
