"""The functions of ``torch._C`` that PyTorch's Python code calls on a CUDA build, for virtual devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from forebay import _C
from forebay.errors import NotOnVirtualDevice
from forebay.facade.properties import CUDA_VERSION, DeviceProperties
from forebay.virtual_device import VirtualDevices

CUDNN_BENCHMARK_LIMIT = 10
"""PyTorch's default."""
CHECKS_OF_THE_BUILD = ("_check_capability", "_check_cubins")
"""What ``torch.cuda`` asks when it is first used: whether the kernels of this installation run on the device. The worker's do."""


def select(index: int) -> int:
    """Selects a device for this thread. Returns the one selected before; a negative index selects nothing, as in CUDA."""
    if index < 0:
        return -1
    before = _C.current_device()
    _C.set_device(index)
    return before


def exchange_device(index: int) -> int:
    """As :func:`select`; torch.compile wants this one and the next to be two functions."""
    return select(index)


def maybe_exchange_device(index: int) -> int:
    """As :func:`select`."""
    return select(index)


def _set_device(index: int) -> None:
    select(index)


def _set_sync_debug_mode(mode: int) -> None:
    if mode != 0:
        raise NotOnVirtualDevice("torch.cuda.set_sync_debug_mode", "only the mode 'default' exists here.")


def _number(version: str) -> int:
    """As the CUDA runtime writes versions: 12080 for 12.8."""
    major, minor = map(int, version.split("."))
    return 1000 * major + 10 * minor


class _Setting:
    """A setting of CUDA libraries that code sets and reads back. It steers nothing: the worker's device decides."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def get(self) -> Any:
        return self.value

    def set(self, value: Any) -> None:
        self.value = value


def functions(devices: VirtualDevices) -> dict[str, Callable[..., Any]]:
    """Name in ``torch._C`` → function."""
    benchmark_limit, benchmark_empties, caching = _Setting(CUDNN_BENCHMARK_LIMIT), _Setting(False), _Setting(True)
    blas_bytes, blas_lt_bytes = _Setting(0), _Setting(0)
    return {
        "_cuda_init": lambda: None,
        "_cuda_getDeviceCount": _C.device_count,
        "_cuda_getDevice": _C.current_device,
        "_cuda_setDevice": _set_device,
        "_cuda_exchangeDevice": exchange_device,
        "_cuda_maybeExchangeDevice": maybe_exchange_device,
        "_cuda_isInBadFork": lambda: devices.forked,
        "_cuda_hasPrimaryContext": lambda index: index < _C.device_count() and _C.connected(index),
        "_cuda_synchronize": lambda: _C.synchronize(_C.current_device()),
        "_cuda_canDeviceAccessPeer": lambda index, peer: False,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_getArchFlags": lambda: None,
        "_cuda_getCompiledVersion": lambda: _number(CUDA_VERSION),
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_set_sync_debug_mode": _set_sync_debug_mode,
        "_cuda_get_cudnn_benchmark_limit": benchmark_limit.get,
        "_cuda_set_cudnn_benchmark_limit": benchmark_limit.set,
        "_cuda_get_conv_benchmark_empty_cache": benchmark_empties.get,
        "_cudnn_set_conv_benchmark_empty_cache": benchmark_empties.set,
        "_cuda_clearCublasWorkspaces": lambda: None,
        "_cuda_getCublasWorkspaceSize": blas_bytes.get,
        "_cuda_setCublasWorkspaceSize": blas_bytes.set,
        "_cuda_resetCublasWorkspaceSize": lambda: blas_bytes.set(0),
        "_cuda_getCublasLtWorkspaceSize": blas_lt_bytes.get,
        "_cuda_setCublasLtWorkspaceSize": blas_lt_bytes.set,
        "_cuda_resetCublasLtWorkspaceSize": lambda: blas_lt_bytes.set(0),
        "_cuda_cudaCachingAllocator_is_enabled": caching.get,
        "_cuda_cudaCachingAllocator_enable": caching.set,
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_tunableop_tuning_is_enabled": lambda: False,
        "_cuda_record_untuned_is_enabled": lambda: False,
    }


class _RangeMarkers:
    """NVTX without a profiler that listens: ranges nest, and lead nowhere."""

    def __init__(self) -> None:
        self._depth = 0
        self._ids = 0

    def rangePushA(self, message: str) -> int:
        self._depth += 1
        return self._depth - 1

    def rangePop(self) -> int:
        self._depth = max(0, self._depth - 1)
        return self._depth

    def rangeStartA(self, message: str) -> int:
        self._ids += 1
        return self._ids

    def rangeEnd(self, identifier: int) -> None:
        return None

    def markA(self, message: str) -> None:
        return None

    def deviceRangeStart(self, message: str, stream: int) -> int:
        return self.rangeStartA(message)

    def deviceRangeEnd(self, identifier: int, stream: int) -> None:
        return None


def install(devices: VirtualDevices) -> None:
    """Puts the functions in place, also where ``torch.cuda`` captured their absence during its import."""
    for name, function in functions(devices).items():
        setattr(torch._C, name, function)
    properties = [DeviceProperties(devices, index) for index in range(_C.device_count())]
    cuda: Any = torch.cuda
    cuda._exchange_device, cuda._maybe_exchange_device = exchange_device, maybe_exchange_device
    cuda._is_in_bad_fork = torch._C._cuda_isInBadFork  # type: ignore[attr-defined]
    cuda._CudaDeviceProperties = DeviceProperties
    cuda._get_device_properties = properties.__getitem__
    cuda._device_count_nvml = lambda: -1  # a GPU that this host happens to have is not ours
    cuda.default_generators = tuple(_C.default_generator(index) for index in range(_C.device_count()))
    checks = {getattr(cuda, name, None) for name in CHECKS_OF_THE_BUILD}
    cuda._queued_calls = [queued for queued in cuda._queued_calls if queued[0] not in checks]
    cuda.nvtx._nvtx = _RangeMarkers()
    torch._C._has_cuda = True
    torch.version.cuda = torch.version.cuda or CUDA_VERSION
