"""What the drivers of this host say of its devices: temperature, memory errors, Xids, and whether a device is still there.

The drivers' libraries (``nvidia-ml-py`` for NVIDIA, ``amdsmi`` for AMD) are optional, and are imported only where their driver is
loaded. A device's number in the pool is the one that its workers see, so ``CUDA_VISIBLE_DEVICES``, ``ROCR_VISIBLE_DEVICES`` and
``HIP_VISIBLE_DEVICES`` are kept to; without them numbers are the library's, in the order of the PCI bus, on AMD those of HIP where
the library tells them. Calls may take long: they are made outside the event loop.

On a Ray cluster the nodes read their own: this module, :mod:`forebay_pool.model.health` and :mod:`forebay_pool.errors` are sent to them by
value, so they may import the standard library alone besides each other.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from forebay_pool.errors import one_line
from forebay_pool.model.health import APPLICATION_XIDS, Reading

AMD_NOT_SUPPORTED = (2, 3, 10)
"""AMDSMI_STATUS_NOT_SUPPORTED, AMDSMI_STATUS_NOT_YET_IMPLEMENTED, and AMDSMI_STATUS_NO_PERM, which says nothing of the device."""
AMD_NUMBERS_END = 0xFFFF
"""From here on no number is a power in watts: the library has 0xFFFF or 0xFFFFFFFF where a device does not measure it."""
MIB = 2**20
SILENT_READINGS_MAX = 3
"""An AMD device that fails to answer so often in a row is lost; its library has no error that says so."""

log = logging.getLogger(__name__)


class Probe(Protocol):
    """Reads devices of one host."""

    def read(self) -> list[Reading]:
        """A reading of each device; blocks."""


class Watched(Protocol):
    """What a probe needs to know of a device: its id in the pool, its kind, and its number among those of its kind."""

    @property
    def id(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def index(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Drivers:
    """What is there while a vendor's driver is loaded."""

    nvidia: str = "/dev/nvidiactl"
    amd: str = "/dev/kfd"


DRIVERS = Drivers()


class NvidiaProbe:
    """NVIDIA's devices, by NVML. Uncorrectable errors are those since the driver was loaded ("volatile")."""

    def __init__(self, nvml: Any, devices: Iterable[Watched], visible: str | None = None) -> None:
        self._nvml = nvml
        self._handles: dict[str, Any] = {}
        self._events: dict[str, Any] = {}
        self._lost: dict[str, str] = {}
        """Why a device was out of reach from the beginning."""
        nvml.nvmlInit()
        names = None if visible is None else [name.strip() for name in visible.split(",") if name.strip()]
        for device in devices:
            name = str(device.index) if names is None else names[device.index] if device.index < len(names) else None
            if name is not None:
                self._find(device.id, name)

    def _find(self, device: str, name: str) -> None:
        """One that cannot be found keeps no other from being watched."""
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdigit() else nvml.nvmlDeviceGetHandleByUUID(name)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                self._lost[device] = str(error)
            else:
                log.warning("%s is not watched: %s", device, error, extra={"action": "probe_limited", "device": device})
        else:
            self._handles[device] = handle
            self._watch(device, handle)

    def _watch(self, device: str, handle: Any) -> None:
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            log.warning("%s tells no Xids: %s", device, error, extra={"action": "probe_limited", "device": device})
        else:
            self._events[device] = events

    def read(self) -> list[Reading]:
        lost = [Reading(device, lost=why) for device, why in self._lost.items()]
        return [*(self._read(device, handle) for device, handle in self._handles.items()), *lost]

    def _read(self, device: str, handle: Any) -> Reading:
        nvml = self._nvml
        try:
            celsius = self._celsius(handle)
            errors = self._ask(nvml.nvmlDeviceGetTotalEccErrors, handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC)
            return replace(Reading(device, celsius, errors, self._xid(device)), **self._figures(handle))
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                return Reading(device, lost=str(error))
            log.warning("%s cannot be read: %s", device, error, extra={"action": "probe_failed", "device": device})
            return Reading(device)

    def _celsius(self, handle: Any) -> int | None:
        """By the call that drivers have had ever since and lose with CUDA 14, or by the one that takes its place."""
        nvml = self._nvml
        celsius = self._ask(nvml.nvmlDeviceGetTemperature, handle, nvml.NVML_TEMPERATURE_GPU)
        later = getattr(nvml, "nvmlDeviceGetTemperatureV", None)
        return self._ask(later, handle, nvml.NVML_TEMPERATURE_GPU) if celsius is None and later is not None else celsius

    def _figures(self, handle: Any) -> dict[str, Any]:
        """What is only shown; what the driver does not tell of it is left out."""
        nvml = self._nvml
        rates = self._try(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._memory(handle)
        milliwatts = self._try(nvml.nvmlDeviceGetPowerUsage, handle)
        figures = {
            "utilisation_percent": None if rates is None else int(rates.gpu),
            "memory_used_bytes": None if memory is None else int(memory.used),
            "memory_free_bytes": None if memory is None else int(memory.free),
            "power_watts": None if milliwatts is None else milliwatts / 1000,
            "uuid": self._try(nvml.nvmlDeviceGetUUID, handle),
        }
        return {name: figure for name, figure in figures.items() if figure is not None}

    def _memory(self, handle: Any) -> Any:
        """What sessions may use and do: the first version counts what the driver keeps for itself, 600 MiB on an H200, as used."""
        nvml = self._nvml
        return self._try(nvml.nvmlDeviceGetMemoryInfo, handle, nvml.nvmlMemory_v2) or self._try(nvml.nvmlDeviceGetMemoryInfo, handle)

    def _try(self, call: Any, *arguments: Any) -> Any:
        """The answer; None where the device or its driver does not give it. A device that is lost is no such case."""
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if error.value == self._nvml.NVML_ERROR_GPU_IS_LOST:
                raise
            return None

    def _ask(self, call: Any, *arguments: Any) -> int | None:
        """The answer; None where the device has no such value."""
        try:
            return int(call(*arguments))
        except self._nvml.NVMLError as error:
            if error.value in (self._nvml.NVML_ERROR_NOT_SUPPORTED, self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
                return None
            raise

    def _xid(self, device: str) -> int | None:
        """The last error that the driver reported since the reading before; one that is the device's comes before one of a program."""
        nvml, events = self._nvml, self._events.get(device)
        xid: int | None = None
        while events is not None:
            try:
                news = int(nvml.nvmlEventSetWait_v2(events, 0).eventData)
                xid = news if xid is None or news not in APPLICATION_XIDS else xid
            except nvml.NVMLError as error:
                if error.value == nvml.NVML_ERROR_GPU_IS_LOST:
                    raise
                if error.value != nvml.NVML_ERROR_TIMEOUT:
                    log.warning("%s tells no Xids: %s", device, error, extra={"action": "probe_limited", "device": device})
                return xid
        return xid


class AmdProbe:
    """AMD's devices, by AMD SMI. The hottest spot counts; where there is no such sensor, the edge.

    ``rocr`` and ``hip`` are lists of what is visible to AMD's two runtimes, of which HIP numbers what ROCr has left.
    """

    def __init__(self, amdsmi: Any, devices: Iterable[Watched], rocr: str | None = None, hip: str | None = None) -> None:
        self._amdsmi = amdsmi
        self._silent: dict[str, int] = {}
        self._handles: dict[str, Any] = {}
        amdsmi.amdsmi_init()
        visible = _visible(_visible(self._numbered(), rocr), hip)
        for device in devices:
            if device.index < len(visible):
                self._handles[device.id], _ = visible[device.index]
            else:
                why = f"{len(visible)} devices are visible, which are numbered from 0 on"
                log.warning("%s is not watched: %s", device.id, why, extra={"action": "probe_limited", "device": device.id})

    def _numbered(self) -> list[tuple[Any, str]]:
        """Handle and unique id (``GPU-…``) of each device, in HIP's order; in the library's, and nameless, before ROCm 6.4."""
        smi = self._amdsmi
        ask = getattr(smi, "amdsmi_get_gpu_enumeration_info", None)
        devices: list[tuple[int | None, Any, str]] = []
        for handle in smi.amdsmi_get_processor_handles():
            told = (self._try(ask, handle) if ask is not None else None) or {}
            devices.append((_number(told.get("hip_id")), handle, str(told.get("hip_uuid", ""))))
        if all(number is not None for number, _, _ in devices):
            devices.sort(key=lambda device: device[0] or 0)
        return [(handle, uuid) for _, handle, uuid in devices]

    def read(self) -> list[Reading]:
        return [self._read(device, handle) for device, handle in self._handles.items()]

    def _read(self, device: str, handle: Any) -> Reading:
        smi = self._amdsmi
        try:
            now = smi.AmdSmiTemperatureMetric.CURRENT
            celsius = self._ask(smi.amdsmi_get_temp_metric, handle, smi.AmdSmiTemperatureType.HOTSPOT, now)
            if celsius is None:
                celsius = self._ask(smi.amdsmi_get_temp_metric, handle, smi.AmdSmiTemperatureType.EDGE, now)
            counts = self._ask(smi.amdsmi_get_gpu_total_ecc_count, handle)
        except smi.AmdSmiLibraryException as error:
            self._silent[device] = self._silent.get(device, 0) + 1
            return Reading(device, lost=_amd_words(error)) if self._silent[device] >= SILENT_READINGS_MAX else Reading(device)
        self._silent[device] = 0
        reading = Reading(device, celsius, None if counts is None else int(counts["uncorrectable_count"]))
        return replace(reading, **self._figures(handle))

    def _figures(self, handle: Any) -> dict[str, Any]:
        """What is only shown. The library writes "N/A" where a device has no such value, and may leave it out."""
        smi = self._amdsmi
        activity = self._try(smi.amdsmi_get_gpu_activity, handle) or {}
        memory = self._try(smi.amdsmi_get_gpu_vram_usage, handle) or {}
        power = self._try(smi.amdsmi_get_power_info, handle) or {}
        used, total = _number(memory.get("vram_used")), _number(memory.get("vram_total"))
        figures = {
            "utilisation_percent": _number(activity.get("gfx_activity")),
            "memory_used_bytes": None if used is None else used * MIB,
            "memory_free_bytes": None if used is None or total is None else (total - used) * MIB,
            "power_watts": _first(power.get("current_socket_power"), power.get("average_socket_power")),
            "uuid": self._try(smi.amdsmi_get_gpu_device_uuid, handle),
        }
        return {name: figure for name, figure in figures.items() if figure is not None}

    def _try(self, call: Any, handle: Any) -> Any:
        """The answer; None where the device or its driver does not give it."""
        try:
            return call(handle)
        except self._amdsmi.AmdSmiLibraryException:
            return None

    def _ask(self, call: Any, *arguments: Any) -> Any:
        """The answer; None where the device has no such value."""
        try:
            return call(*arguments)
        except self._amdsmi.AmdSmiLibraryException as error:
            if error.err_code in AMD_NOT_SUPPORTED:
                return None
            raise


def _visible(devices: list[tuple[Any, str]], names: str | None) -> list[tuple[Any, str]]:
    """Those that the list names, by numbers or beginnings of unique ids, in its order; as the runtimes do, up to the first name of none."""
    if names is None:
        return devices
    found: list[tuple[Any, str]] = []
    for name in (part.strip().upper() for part in names.split(",")):
        fitting = [devices[int(name)]] if name.isdecimal() and int(name) < len(devices) else []
        if name.startswith("GPU-"):
            fitting = [device for device in devices if device[1].upper().startswith(name)]
        if len(fitting) != 1:
            break
        found += [device for device in fitting if device not in found]
    return found


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _first(*values: object) -> float | None:
    """The first that is a number above zero: what a device does not measure is 0 or no number."""
    return next((float(value) for value in values if isinstance(value, int | float) and 0 < value < AMD_NUMBERS_END), None)


def _amd_words(error: Any) -> str:
    """What AMD SMI's error says; as a text it has several lines."""
    status, _, words = str(error.get_error_info()).partition(" - ")
    return f"{one_line(words)} ({status})"


def probes_of(devices: Iterable[Watched], environ: Mapping[str, str], drivers: Drivers = DRIVERS) -> list[Probe]:
    """The probes for this host's devices; where a library is missing, the log says what to install."""
    found: list[Probe] = []
    known = list(devices)
    cuda, hip = [d for d in known if d.kind == "cuda"], [d for d in known if d.kind == "hip"]
    if cuda and os.path.exists(drivers.nvidia):
        visible = environ.get("CUDA_VISIBLE_DEVICES")
        found += _made("pynvml", "nvidia-ml-py", lambda nvml: NvidiaProbe(nvml, cuda, visible))
    if hip and os.path.exists(drivers.amd):
        rocr, named = environ.get("ROCR_VISIBLE_DEVICES"), environ.get("HIP_VISIBLE_DEVICES") or environ.get("CUDA_VISIBLE_DEVICES") or None
        found += _made("amdsmi", "amdsmi", lambda amdsmi: AmdProbe(amdsmi, hip, rocr, named))
    return found


def _made(module: str, package: str, make: Callable[[Any], Probe]) -> list[Probe]:
    try:
        return [make(importlib.import_module(module))]
    except Exception as error:  # a driver's library may raise anything, and devices compute without it
        why = f"{type(error).__name__}: {one_line(error)}"
        log.warning("the devices' health is not watched (%s); is %s installed?", why, package, extra={"action": "probe_missing"})
        return []


@dataclass(frozen=True, slots=True)
class NamedDevice:
    """What a probe needs to know of a device, in plain values."""

    id: str
    kind: str
    index: int


class HostWatch:
    """All probes of the host that it is made on."""

    def __init__(self, devices: Iterable[NamedDevice], drivers: Drivers) -> None:
        self._probes = probes_of(devices, os.environ, drivers)

    def read(self) -> list[Reading]:
        return [reading for probe in self._probes for reading in probe.read()]
