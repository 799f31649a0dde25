"""Which accelerators this host has: what the PyTorch of the workers' interpreters sees, against what the vendors' drivers say is there.

A host may have devices of several vendors. PyTorch is built for one of them, so each kind of device may have an interpreter of its own.
The drivers' libraries (``nvidia-ml-py``, ``amdsmi``) are optional: where one is missing nothing is said of what PyTorch does not see.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forebay_wire.texts import MendedName
from pydantic import BaseModel, ConfigDict

from forebay_pool.errors import one_line
from forebay_pool.hosts.probes import DRIVERS, Drivers
from forebay_pool.model.types import Kind

DESCRIBE_SECONDS_MAX = 60.0
WINDOWS_DRIVER = "/dev/dxg"
"""NVIDIA's driver under WSL 2, which NVML's device file is missing from."""
VENDORS: dict[Kind, str] = {"cuda": "NVIDIA", "hip": "AMD"}
BUILDS: dict[Kind, str] = {"cuda": "CUDA", "hip": "ROCm"}
VISIBLE: dict[Kind, str] = {"cuda": "CUDA_VISIBLE_DEVICES", "hip": "ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES"}

log = logging.getLogger(__name__)


class SeenDevice(BaseModel):
    """A device in what ``forebay_worker --describe`` prints."""

    model_config = ConfigDict(extra="ignore")

    kind: Kind
    model: MendedName
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class PresentDevice:
    """A device that a driver tells of."""

    kind: Kind
    name: str
    trouble: str = ""
    """Why a program may not find it; empty where nothing is known against it."""


async def accelerators(pythons: Mapping[Kind, Path], environ: Mapping[str, str], drivers: Drivers = DRIVERS) -> list[SeenDevice]:
    """The devices of each kind that its interpreter's PyTorch sees; the log says which the drivers know besides.

    Where no driver is loaded nobody is asked: PyTorch takes seconds to start.
    """
    if not any(os.path.exists(path) for path in (drivers.nvidia, drivers.amd, WINDOWS_DRIVER)):
        return []
    asked = sorted(set(pythons.values()))
    described = dict(zip(asked, await asyncio.gather(*(_described(python, environ) for python in asked)), strict=True))
    seen = [device for kind, python in pythons.items() for device in described[python] if device.kind == kind]
    for sentence in unseen(await asyncio.to_thread(present, drivers), seen, pythons):
        log.warning("%s", sentence, extra={"action": "device_unseen"})
    return seen


async def _described(python: Path, environ: Mapping[str, str]) -> list[SeenDevice]:
    """What the interpreter sees; nothing, and a line in the log, where it cannot say."""
    process = None
    try:
        command = (str(python), "-m", "forebay_worker", "--describe")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, env=dict(environ))
        output, _ = await asyncio.wait_for(process.communicate(), DESCRIBE_SECONDS_MAX)
        return [SeenDevice.model_validate(row) for row in json.loads(output)["devices"]]
    except (OSError, TimeoutError, ValueError, KeyError) as error:
        log.warning("%s cannot say which accelerators it sees: %r", python, error, extra={"action": "probe_failed"})
        return []
    finally:
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()


def unseen(there: Iterable[PresentDevice], seen: Iterable[SeenDevice], pythons: Mapping[Kind, Path]) -> list[str]:
    """A sentence on each device in trouble, and one on each vendor of whose other devices PyTorch sees too few. Pure."""
    there, kinds = list(there), [device.kind for device in seen]
    sentences = [f"{device.name} is there, but {device.trouble}" for device in there if device.trouble]
    for kind, python in pythons.items():
        whole = [device for device in there if device.kind == kind and not device.trouble]
        if kinds.count(kind) < len(whole):
            names = ", ".join(sorted({device.name for device in whole}))
            sentences.append(
                f"{VENDORS[kind]}'s driver has {len(whole)} usable devices ({names}), and the PyTorch of {python} sees"
                f" {kinds.count(kind)}: it must be a build for {BUILDS[kind]} (the setting worker_pythons names one for this kind),"
                f" and {VISIBLE[kind]} must name all"
            )
    return sentences


def present(drivers: Drivers = DRIVERS, load: Callable[[str], Any] = importlib.import_module) -> list[PresentDevice]:
    """The devices that loaded drivers tell of; none of a vendor whose library is missing or does not answer. Blocks."""
    found: list[PresentDevice] = []
    for path, module, ask in ((drivers.nvidia, "pynvml", _by_nvml), (drivers.amd, "amdsmi", _by_amdsmi)):
        if not os.path.exists(path):
            continue
        try:
            found += ask(load(module))
        except Exception as error:  # a driver's library may raise anything, and devices compute without it
            log.warning("%s does not say which devices are there: %s", module, one_line(error), extra={"action": "probe_missing"})
    return found


def _by_nvml(nvml: Any) -> list[PresentDevice]:
    nvml.nvmlInit()
    try:
        return [_nvidia(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()


def _nvidia(nvml: Any, index: int) -> PresentDevice:
    name = f"NVIDIA device {index}"
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        told = nvml.nvmlDeviceGetName(handle)
        name += f" ({told.decode() if isinstance(told, bytes) else told})"
        return PresentDevice("cuda", name, _mig_trouble(nvml, handle))
    except nvml.NVMLError as error:
        reasons = {
            nvml.NVML_ERROR_GPU_IS_LOST: "it has fallen off the bus: the host must be restarted",
            nvml.NVML_ERROR_NO_PERMISSION: "this account may not use it",
        }
        return PresentDevice("cuda", name, reasons.get(error.value, f"its driver says: {one_line(error)}"))


def _mig_trouble(nvml: Any, handle: Any) -> str:
    """CUDA shows a process one MIG instance at most: https://docs.nvidia.com/datacenter/tesla/mig-user-guide/."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return ""
        raise
    if not current:
        return ""
    return f"it is in MIG mode with {_mig_instances(nvml, handle)} instances, of which CUDA shows a process one at most"


def _mig_instances(nvml: Any, handle: Any) -> int:
    instances = 0
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
            instances += 1
        except nvml.NVMLError as error:
            if error.value != nvml.NVML_ERROR_NOT_FOUND:
                raise
    return instances


def _by_amdsmi(smi: Any) -> list[PresentDevice]:
    smi.amdsmi_init()
    try:
        return [_amd(smi, index, handle) for index, handle in enumerate(smi.amdsmi_get_processor_handles())]
    finally:
        smi.amdsmi_shut_down()


def _amd(smi: Any, index: int, handle: Any) -> PresentDevice:
    name = f"AMD device {index}"
    try:
        return PresentDevice("hip", f"{name} ({smi.amdsmi_get_gpu_asic_info(handle)['market_name']})")
    except smi.AmdSmiLibraryException as error:
        return PresentDevice("hip", name, f"its driver says: {one_line(error.get_error_info())}")
