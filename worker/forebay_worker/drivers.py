"""What the vendors' drivers say of the accelerators that PyTorch sees: name, memory, unique id, version, temperature.

Their libraries (``pynvml`` of ``nvidia-ml-py``, ``amdsmi``) are optional: where one is missing, or does not answer, nothing is said.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

Answer = TypeVar("Answer")
MIB = 2**20


@dataclass(frozen=True)
class Driver:
    """A device by its driver, as ``--describe`` prints it. None: the device has no such value."""

    name: str
    uuid: str
    version: str
    memory_bytes: int
    temperature_celsius: int | None


def driver_of(kind: str, index: int, uuid: str, load: Callable[[str], Any] = importlib.import_module) -> Driver | None:
    """The driver's word on a device by PyTorch's number and, on CUDA, unique id, since NVML may number the devices otherwise."""
    try:
        if kind == "cuda" and uuid:
            return _by_nvml(load("pynvml"), uuid)
        return _by_amdsmi(load("amdsmi"), index) if kind == "hip" else None
    except Exception:  # a driver's library may raise anything, and the device computes without it
        return None


def _by_nvml(nvml: Any, uuid: str) -> Driver:
    nvml.nvmlInit()
    try:
        handle = nvidia_handle(nvml, uuid)
        return Driver(
            name=_text(nvml.nvmlDeviceGetName(handle)),
            uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
            version=_text(nvml.nvmlSystemGetDriverVersion()),
            memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
            temperature_celsius=_or_none(
                lambda: int(nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)), nvml.NVMLError
            ),
        )
    finally:
        nvml.nvmlShutdown()


def nvidia_handle(nvml: Any, uuid: str) -> Any:
    """NVML's own name of a device, by the unique id that PyTorch tells, which leaves out what kind of a device it is."""
    return nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")


def _by_amdsmi(smi: Any, index: int) -> Driver:
    smi.amdsmi_init()
    try:
        handle = smi.amdsmi_get_processor_handles()[index]
        sensor, now = smi.AmdSmiTemperatureType.HOTSPOT, smi.AmdSmiTemperatureMetric.CURRENT
        return Driver(
            name=str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"]),
            uuid=str(smi.amdsmi_get_gpu_device_uuid(handle)),
            version=str(smi.amdsmi_get_gpu_driver_info(handle)["driver_version"]),
            memory_bytes=int(smi.amdsmi_get_gpu_vram_info(handle)["vram_size"]) * MIB,
            temperature_celsius=_or_none(lambda: int(smi.amdsmi_get_temp_metric(handle, sensor, now)), smi.AmdSmiLibraryException),
        )
    finally:
        smi.amdsmi_shut_down()


def _or_none(ask: Callable[[], Answer], error: type[Exception]) -> Answer | None:
    try:
        return ask()
    except error:
        return None


def _text(value: str | bytes) -> str:
    """Older versions of NVIDIA's library answer in bytes."""
    return value.decode() if isinstance(value, bytes) else value
