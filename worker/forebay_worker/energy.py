"""What a worker's devices draw while its leases are open, by the counters of their drivers.

- NVIDIA, Volta or newer: ``nvmlDeviceGetTotalEnergyConsumption``, in millijoules, new every 20 to 100 ms. None for a MIG instance.
- AMD: ``amdsmi_get_energy_count``, ticks of so many microjoules. None in a virtual machine's guest.
- A CPU: the packages' ``energy_uj`` of Linux's powercap (RAPL; only root may read it), of which a process is taken to draw the part that it
  has of the processor time spent on the host, as Kepler's model does. For development devices.

A counter is the device's, so a lease on a share of a device is told all of it; the pool takes the share's part.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from forebay_worker.drivers import nvidia_handle
from forebay_worker.pytorch import SeenDevice

LOG = logging.getLogger("forebay.worker")

PERIOD_SECONDS = 0.1
"""Between two looks at the counters: as often as a GPU's is new."""
POWERCAP = Path("/sys/class/powercap")
PROCESSOR_TIMES = Path("/proc/stat")

Counter: TypeAlias = Callable[[], float]
"""Millijoules since some moment in the past; never less than before."""


class EnergyMeter:
    """Sums up the counters of devices while a lease is open.

    A thread finds and reads them, since a driver may take milliseconds to answer, and no lease waits for that: what was drawn since the
    last look is told with the next message, at the latest a heartbeat later. ``find`` is asked once, in that thread.
    """

    def __init__(self, find: Callable[[], Sequence[Counter]], period_seconds: float = PERIOD_SECONDS) -> None:
        self._find = find
        self._period_seconds = period_seconds
        self._changed = threading.Condition()
        self._open = False
        self._ended = False
        self._drawn_mj: float | None = None
        self._thread = threading.Thread(target=self._run, name="energy", daemon=True)

    def __enter__(self) -> EnergyMeter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Returns when no driver is asked any more."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    def turn(self, opened: bool) -> None:
        """A lease was opened, or is over."""
        with self._changed:
            self._open = opened
            self._changed.notify()

    @property
    def drawn_mj(self) -> int | None:
        """Since the worker started, while leases were open, in millijoules; None where a counter is missing, or failed."""
        with self._changed:
            return None if self._drawn_mj is None else int(self._drawn_mj)

    def _run(self) -> None:
        try:
            counters = self._find()
            _sum(counters)  # raises where one is not told
            self._add(0.0)
            while self._wait_for(True, None):
                self._measure(counters)
        except Exception as error:  # a driver's library may raise anything, and the device computes without it
            LOG.info("no energy is told: %s", error, extra={"action": "energy"})
            with self._changed:
                self._drawn_mj = None

    def _measure(self, counters: Sequence[Counter]) -> None:
        """Until the lease is over."""
        before, goes_on = _sum(counters), True
        while goes_on:
            goes_on = not self._wait_for(False, self._period_seconds)
            now = _sum(counters)
            self._add(max(0.0, now - before))
            before = now

    def _add(self, drawn_mj: float) -> None:
        with self._changed:
            self._drawn_mj = (self._drawn_mj or 0.0) + drawn_mj

    def _wait_for(self, opened: bool, seconds: float | None) -> bool:
        """Whether a lease is open, or none is, within that time; of a meter that was stopped, none is ever."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._open is opened, seconds)
            return (self._open and not self._ended) is opened


def _sum(counters: Sequence[Counter]) -> float:
    return sum(counter() for counter in counters)


def counters_of(devices: Sequence[SeenDevice], elsewhere: bool, load: Callable[[str], Any] = importlib.import_module) -> list[Counter]:
    """The counters of a worker's devices, whose others may be ``elsewhere``, on other hosts. ``load`` imports a driver's library.

    Raises LookupError where one of them has no counter, and whatever a driver's library raises.
    """
    if elsewhere:
        raise LookupError("of devices on other hosts this one knows nothing")
    return [_counter_of(device, len(devices), load) for device in devices]


def _counter_of(device: SeenDevice, count: int, load: Callable[[str], Any]) -> Counter:
    if device.kind == "cuda":
        return nvidia_counter(load("pynvml"), device.uuid)
    if device.kind == "hip":
        return amd_counter(load("amdsmi"), device.index)
    if device.kind != "cpu":
        raise LookupError(f"devices of kind {device.kind} have no counter")
    if count > 1:
        raise LookupError("of several processes on CPUs, each knows its own processor time alone")
    return ProcessorCounter().read_mj


def nvidia_counter(nvml: Any, uuid: str) -> Counter:
    """A GPU's, by its unique id, since NVML may number the devices otherwise than PyTorch."""
    nvml.nvmlInit()
    handle = nvidia_handle(nvml, uuid)
    return lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))


def amd_counter(smi: Any, index: int) -> Counter:
    """A GPU's, by PyTorch's number."""
    smi.amdsmi_init()
    handle = smi.amdsmi_get_processor_handles()[index]

    def read_mj() -> float:
        answer = smi.amdsmi_get_energy_count(handle)
        ticks = answer["energy_accumulator"] if "energy_accumulator" in answer else answer["power"]  # ROCm 6.0 called it so
        return float(ticks * answer["counter_resolution"]) / 1_000

    return read_mj


class ProcessorCounter:
    """This process's part of what the host's processor packages draw."""

    def __init__(
        self,
        powercap: Path = POWERCAP,
        processor_times: Path = PROCESSOR_TIMES,
        own_ns: Callable[[], int] = time.process_time_ns,
        ticks_per_second: int = os.sysconf("SC_CLK_TCK"),
    ) -> None:
        self._packages = [zone for zone in sorted(powercap.glob("intel-rapl:*")) if _text(zone / "name").startswith("package")]
        if not self._packages:
            raise LookupError(f"no processor package tells its energy in {powercap}")
        self._ranges = [int(_text(zone / "max_energy_range_uj")) for zone in self._packages]
        self._processor_times = processor_times
        self._own_ns = own_ns
        self._tick_ns = 10**9 // ticks_per_second
        self._before = self._look()
        self._drawn_mj = 0.0

    def read_mj(self) -> float:
        """In millijoules, from 0 on."""
        now = self._look()
        (energies, busy_ns, own_ns), (were, was_busy_ns, was_own_ns) = now, self._before
        drawn_uj = sum((new - old) % most for new, old, most in zip(energies, were, self._ranges, strict=True))  # a counter starts again
        if busy_ns > was_busy_ns:
            self._drawn_mj += drawn_uj / 1_000 * min(1.0, (own_ns - was_own_ns) / (busy_ns - was_busy_ns))
            self._before = now
        return self._drawn_mj

    def _look(self) -> tuple[list[int], int, int]:
        """The packages' microjoules, and the processor time that all processes and this one spent."""
        energies = [int(_text(zone / "energy_uj")) for zone in self._packages]
        _, user, nice, system, _idle, _iowait, irq, softirq, *_ = _text(self._processor_times).split(maxsplit=8)
        ticks = sum(map(int, (user, nice, system, irq, softirq)))
        return energies, ticks * self._tick_ns, self._own_ns()


def _text(path: Path) -> str:
    return path.read_text().strip()
