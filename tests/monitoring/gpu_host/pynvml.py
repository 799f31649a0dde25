"""Stands for NVIDIA's library on a host with two devices: the second is far too hot, on the first a program made an error."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

NVML_TEMPERATURE_GPU, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlEventTypeXidCriticalError = 0, 1, 0, 8
nvmlMemory_v2 = 0x2000028
NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_TIMEOUT, NVML_ERROR_GPU_IS_LOST = 3, 10, 15
CELSIUS = (61, 99)
XIDS = {0: [31]}
GIB = 2**30


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


def nvmlInit() -> None: ...


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlEventSetCreate() -> list[int]:
    return []


def nvmlDeviceRegisterEvents(handle: int, kinds: int, events: list[int]) -> None:
    events.append(handle)


def nvmlEventSetWait_v2(events: list[int], timeout_ms: int) -> Any:
    waiting = XIDS.get(events[0], [])
    if not waiting:
        raise NVMLError(NVML_ERROR_TIMEOUT)
    return SimpleNamespace(eventData=waiting.pop())


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    return CELSIUS[handle]


def nvmlDeviceGetTotalEccErrors(handle: int, kind: int, counter: int) -> int:
    return 0


def nvmlDeviceGetUtilizationRates(handle: int) -> Any:
    return SimpleNamespace(gpu=40 + handle, memory=10)


def nvmlDeviceGetMemoryInfo(handle: int, version: int | None = None) -> Any:
    return SimpleNamespace(total=80 * GIB, used=12 * GIB, free=68 * GIB)


def nvmlDeviceGetPowerUsage(handle: int) -> int:
    return 312_000


def nvmlDeviceGetUUID(handle: int) -> str:
    return f"GPU-{handle:08d}-0000-0000-0000-000000000000"
