"""Part ``faults``: what the pool's health probe reads of the device, against nvidia-smi; and what keeps a device from being shared."""

from __future__ import annotations

import importlib
import os
import time
from typing import Any

from forebay_pool.hosts.probes import NamedDevice, NvidiaProbe
from forebay_pool.model.health import Reading, judge
from forebay_worker.energy import counters_of
from forebay_worker.pytorch import find_device

from gpu import smi
from gpu.checks import Report
from gpu.figures import FIGURES
from gpu.smi import Word
from gpu.trial import Trial

XID = "Xid that the probe hears after a device-side assert"
XID_SECONDS_MAX = 5.0
ENERGY = "energy by the worker's counter ÷ nvidia-smi's mean power over that time"
ENERGY_SECONDS = 3.0
NAMES = [figure.words for figure in FIGURES.values() if figure.part == "faults"]


def run(trial: Trial, _: float | None) -> None:
    """Takes the part's figures."""
    index = int(trial.device.partition(":")[2])
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        said = smi.understood(smi.asked(index))
    except Exception as error:  # a driver's library may raise anything
        for name in NAMES:
            trial.report.skip(name, f"no NVML or nvidia-smi here ({type(error).__name__}: {error})")
        return
    probe = NvidiaProbe(nvml, [NamedDevice(trial.device, "cuda", index)], os.environ.get("CUDA_VISIBLE_DEVICES"))
    hold(trial.report, probe.read()[0], said, smi.mps_runs())
    with trial.report.figures(ENERGY):
        weigh(trial, index)
    with trial.report.figures(XID):
        hear(trial, probe)


def hold(report: Report, reading: Reading, said: Word, mps: bool) -> None:
    """The probe's reading against nvidia-smi's word, and what follows for lending."""
    apart(report, "temperature by the pool's probe less nvidia-smi's", reading.temperature_celsius, said.celsius)
    used_mib = None if reading.memory_used_bytes is None else reading.memory_used_bytes / 2**20
    apart(report, "memory in use by the pool's probe less nvidia-smi's", used_mib, said.used_mib)
    for name, mine, theirs in (
        ("uncorrectable memory errors as nvidia-smi says", reading.uncorrectable_errors, said.errors),
        ("device's unique id as nvidia-smi says", reading.uuid, said.uuid),
    ):
        report.take(name, mine == theirs, f"{mine}, nvidia-smi {theirs}")
    verdict = judge(reading, 0)
    report.take("the pool would lend the device", verdict.level in ("good", "warning"), verdict.cause or "")
    report.take("throttling reasons, none that harm", not said.harmful, ", ".join(said.harmful) or f"{said.reasons or 0:#x}")
    shared = ("MIG", said.mig, "each instance is a device of its own to PyTorch"), ("MPS", mps, "sessions then share a context")
    for name, on, note in shared:
        report.take(f"{name} is on", int(bool(on)), note if on else "")
    name = "compute mode lets several processes in"
    if said.compute_mode is None:
        report.skip(name, "nvidia-smi does not say")
    else:
        report.take(name, said.compute_mode == "Default", said.compute_mode)


def apart(report: Report, name: str, mine: float | None, theirs: float | None) -> None:
    if mine is None or theirs is None:
        report.skip(name, f"the probe says {mine}, nvidia-smi {theirs}")
    else:
        report.take(name, float(abs(mine - theirs)), f"{mine:g}, nvidia-smi {theirs:g}")


def weigh(trial: Trial, index: int) -> None:
    """The counter that a worker of this device reads, against the power that nvidia-smi tells, while a matrix is multiplied."""
    (counter,) = counters_of([find_device(trial.device)], elsewhere=False)
    with trial.native() as native:
        native.call("programs.begin_kernel", rows=trial.sizes.matrix, count=1)
        native.call("programs.synchronize")
        native.call("programs.begin_kernel", rows=trial.sizes.matrix, count=64)
        before, began, watts = counter(), time.monotonic(), []
        while time.monotonic() - began < ENERGY_SECONDS:
            watts.append(smi.watts(index))
        drawn_j, seconds = (counter() - before) / 1_000, time.monotonic() - began
    mean = sum(watts) / len(watts)
    note = f"{drawn_j:.0f} J in {seconds:.1f} s, nvidia-smi {mean:.0f} W of {len(watts)} looks"
    trial.report.take(ENERGY, drawn_j / (mean * seconds), note)


def hear(trial: Trial, probe: Any) -> None:
    """A native process breaks its context by an assertion in a kernel; the driver may report that as an Xid."""
    with trial.native() as native:
        heard = native.call("programs.violate")
    ends, xid = time.monotonic() + XID_SECONDS_MAX, None
    while xid is None and time.monotonic() < ends:
        xid = probe.read()[0].xid
        time.sleep(0.2)
    trial.report.take(XID, xid or 0, f"the process hears: {heard or 'nothing'}; 0: no Xid came")
