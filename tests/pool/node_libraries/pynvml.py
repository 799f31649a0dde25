"""Stands for NVIDIA's library on the nodes of a test cluster: its devices' temperatures are the lines of a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

NVML_TEMPERATURE_GPU, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlEventTypeXidCriticalError = 0, 1, 0, 8
nvmlMemory_v2 = 0x2000028
NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_TIMEOUT, NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 3, 10, 13, 15


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


def nvmlInit() -> None: ...


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    return index


def nvmlEventSetCreate() -> NoReturn:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlDeviceGetTemperature(handle: int, sensor: int) -> int:
    lines = Path(os.environ["FOREBAY_TEST_TEMPERATURES"]).read_text().split()
    if handle >= len(lines):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    return int(lines[handle])


def nvmlDeviceGetTotalEccErrors(handle: int, kind: int, counter: int) -> NoReturn:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def _unsupported(handle: int, version: int | None = None) -> NoReturn:
    raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


nvmlDeviceGetUtilizationRates = nvmlDeviceGetMemoryInfo = nvmlDeviceGetPowerUsage = nvmlDeviceGetUUID = _unsupported
