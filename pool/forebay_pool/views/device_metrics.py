"""What probes read of devices, in the names, units and labels of NVIDIA's DCGM exporter, so that what reads that reads this.

Names and labels: https://docs.nvidia.com/datacenter/dcgm/latest/gpu-telemetry/dcgm-exporter.html. They are DCGM's, not ours: megabytes
of 2^20 bytes, per cent, and one label in camel case. AMD's devices bear the same names. A figure that nothing was read of has no series.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from prometheus_client.core import GaugeMetricFamily, Metric

from forebay_pool.model.health import Reading
from forebay_pool.model.types import Device, Seat

LABELS = ("gpu", "UUID", "device", "modelName", "Hostname")
MIB = 2**20
VENDORS = {"cuda": "nvidia", "hip": "amd"}

TEXTS = {
    "DCGM_FI_DEV_GPU_TEMP": "GPU temperature (in C)",
    "DCGM_FI_DEV_GPU_UTIL": "GPU utilization (in %)",
    "DCGM_FI_DEV_FB_USED": "Framebuffer memory used (in MiB)",
    "DCGM_FI_DEV_FB_FREE": "Framebuffer memory free (in MiB)",
    "DCGM_FI_DEV_POWER_USAGE": "Power draw (in W)",
    "DCGM_FI_DEV_XID_ERRORS": "Number of the last Xid error; no series before the first, nor after an operator opened the device again",
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": "Memory errors that were not corrected since the driver was loaded",
}


class Readings:
    """The last reading of each device, and the last Xid that each had. What a probe no longer tells of is forgotten."""

    def __init__(self) -> None:
        self._of: dict[int, dict[str, Reading]] = {}
        self._xids: dict[str, int] = {}

    def hear(self, probe: object, readings: Sequence[Reading]) -> None:
        """All that the probe reads now."""
        self._xids |= {reading.device: reading.xid for reading in readings if reading.xid is not None}
        self._of[id(probe)] = {reading.device: replace(reading, xid=self._xids.get(reading.device)) for reading in readings}

    def forget_xid(self, device: str) -> None:
        """An operator has seen to it."""
        if self._xids.pop(device, None) is not None:
            for readings in self._of.values():
                if device in readings:
                    readings[device] = replace(readings[device], xid=None)

    def __iter__(self) -> Iterator[Reading]:
        for readings in self._of.values():
            yield from readings.values()


def device_families(readings: Iterable[Reading], seats: Mapping[str, Seat]) -> Iterator[Metric]:
    """The figures of devices that the pool has."""
    families = {name: GaugeMetricFamily(name, text, labels=LABELS) for name, text in TEXTS.items()}
    for reading in readings:
        seat = seats.get(reading.device)
        if seat is None:
            continue
        for name, figure in _figures(reading).items():
            if figure is not None:
                families[name].add_metric(_labels(seat.device, reading.uuid), figure)
    yield from (family for family in families.values() if family.samples)


def _labels(device: Device, uuid: str | None) -> list[str]:
    number = str(device.index)
    return [number, uuid or "", VENDORS.get(device.kind, device.kind) + number, device.model, device.node]


def _figures(reading: Reading) -> dict[str, float | None]:
    used, free = reading.memory_used_bytes, reading.memory_free_bytes
    return {
        "DCGM_FI_DEV_GPU_TEMP": reading.temperature_celsius,
        "DCGM_FI_DEV_GPU_UTIL": reading.utilisation_percent,
        "DCGM_FI_DEV_FB_USED": None if used is None else used // MIB,
        "DCGM_FI_DEV_FB_FREE": None if free is None else free // MIB,
        "DCGM_FI_DEV_POWER_USAGE": reading.power_watts,
        "DCGM_FI_DEV_XID_ERRORS": reading.xid,
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": reading.uncorrectable_errors,
    }
