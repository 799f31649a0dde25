"""What an embedded pool finds on its host, as the worker's Python describes it."""

from __future__ import annotations

import asyncio
import json
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forebay_pool import embedded
from forebay_pool.hosts import discovery
from forebay_pool.hosts.discovery import PresentDevice, present, unseen
from forebay_pool.hosts.probes import Drivers
from forebay_pool.model.types import Kind
from forebay_pool.service import Service
from forebay_pool.settings import Settings
from forebay_wire.messages import DeviceModel
from forebay_wire.texts import name_of

GIB = 2**30
MI210 = {"kind": "hip", "index": 0, "model": "AMD Instinct MI210", "memory_bytes": 64 * GIB, "uuid": "", "driver": None}
A30 = {"kind": "cuda", "index": 0, "model": "NVIDIA A30", "memory_bytes": 24 * GIB, "uuid": "GPU-one", "driver": {"name": "NVIDIA A30"}}
CPU = {"kind": "cpu", "index": 0, "model": "cpu-dev", "memory_bytes": 8 * GIB, "uuid": "", "driver": None}
Prepare = Callable[..., Service]


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Makes the service of a host with a driver, whose worker's Python runs the script instead."""
    monkeypatch.setattr(discovery, "WINDOWS_DRIVER", "/dev/null")

    def make(script: str, **others: str) -> Service:
        pythons = {name: interpreter(tmp_path / f"python-{name}", text) for name, text in {"own": script, **others}.items()}
        values = {"port": 0, "state_dir": tmp_path, "worker_python": pythons.pop("own"), "worker_pythons": pythons}
        settings = Settings.load(None, {}, values, managed=False)
        return asyncio.run(embedded.prepare(settings, "a-token", os.environ))

    return make


def interpreter(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return path


def says(*devices: dict[str, Any]) -> str:
    return f"echo '{json.dumps({'torch': '2.13.0', 'accelerator': 'cuda', 'devices': devices})}'"


def found_by(service: Service) -> list[tuple[str, str, int]]:
    return [(device.id, device.model, device.memory_bytes) for device in service.settings.all_devices()]


def test_accelerators_of_both_vendors_are_lent_beside_the_development_device(prepare: Prepare) -> None:
    service = prepare(says(A30, MI210, CPU))
    memory_bytes = embedded.cpu_memory_bytes()
    assert found_by(service) == [
        ("main/cpu:0", "cpu-dev", memory_bytes),
        ("main/cuda:0", "NVIDIA A30", 24 * GIB),
        ("main/hip:0", "MI210", 64 * GIB),
    ], "a model that flavors name is called as they do, another one as its driver does"
    models = {flavor.name: [equivalent.model for equivalent in flavor.equivalents] for flavor in service._extra_flavors}
    found = {name: [model for model in names if model in ("NVIDIA A30", "MI210")] for name, names in models.items()}
    assert found["dev.1gb"] == ["MI210", "NVIDIA A30"]
    assert found["small.64gb"] == ["MI210"], "a flavor that does not fit is not served"


@pytest.mark.parametrize("name", ["NVIDIA \0 A30\n", "N" * 200, ""])
def test_whatever_a_driver_calls_a_device_it_is_lent_under_a_name_that_bills_take(prepare: Prepare, name: str) -> None:
    (_, (_, model, _)) = found_by(prepare(says({**A30, "model": name}).replace("echo", "printf %s")))
    assert model == name_of(name)
    assert DeviceModel(kind="cuda", model=name).model == model, "its worker calls it the same"


@pytest.mark.parametrize("script", ["echo nonsense", "echo '{}'", "exit 3", says({**A30, "memory_bytes": "much"})])
def test_a_worker_python_that_cannot_describe_its_devices_leaves_the_development_device(
    prepare: Prepare, caplog: pytest.LogCaptureFixture, script: str
) -> None:
    assert [name for name, _, _ in found_by(prepare(script))] == ["main/cpu:0"]
    assert "cannot say which accelerators it sees" in caplog.text


def test_where_no_driver_is_loaded_nobody_is_asked(prepare: Prepare, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "WINDOWS_DRIVER", "/dev/none")
    assert [name for name, _, _ in found_by(prepare(says(A30)))] == ["main/cpu:0"]


def test_each_kind_of_device_has_the_interpreter_that_is_named_for_it(prepare: Prepare) -> None:
    service = prepare(says(A30, CPU), hip=says(MI210, {**A30, "model": "NVIDIA A40"}, CPU))
    assert [name for name, _, _ in found_by(service)] == ["main/cpu:0", "main/cuda:0", "main/hip:0"]
    models = [model for _, model, _ in found_by(service)]
    assert models == ["cpu-dev", "NVIDIA A30", "MI210"], "what the other build sees of another kind is not lent"
    command = service._worker_command(None)
    pythons = {device.kind: command.of("w-1", [device])[0] for device in service.settings.all_devices()}
    assert {kind: Path(python).name for kind, python in pythons.items()} == {"cpu": "python-own", "cuda": "python-own", "hip": "python-hip"}


def test_an_interpreter_that_is_not_there_keeps_no_other_from_being_asked(prepare: Prepare, caplog: pytest.LogCaptureFixture) -> None:
    settings = prepare(says(A30)).settings.model_copy(update={"worker_pythons": {"hip": Path("/nowhere/python")}})
    assert [group.model for group in asyncio.run(embedded.found_devices(settings, os.environ))] == ["NVIDIA A30"]
    assert "/nowhere/python cannot say which accelerators it sees" in caplog.text


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__({4: "Insufficient Permissions", 15: "GPU is lost", 999: "Unknown Error"}.get(value, f"error {value}"))
        self.value = value


class HostWithFiveGpus:
    """NVML as a host with five devices answered: whole, in MIG mode with two instances, without MIG (a T4), lost, and forbidden."""

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NO_PERMISSION, NVML_ERROR_NOT_FOUND = 3, 4, 6
    NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 13, 15
    NAMES = ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", b"Tesla T4")

    def __init__(self) -> None:
        self.open = 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return 5

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if index == 3:
            raise NVMLError(self.NVML_ERROR_GPU_IS_LOST)
        return index

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        if handle == 4:
            raise NVMLError(self.NVML_ERROR_NO_PERMISSION)
        return self.NAMES[handle]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        if handle == 2:
            raise NVMLError(self.NVML_ERROR_NOT_SUPPORTED)
        return [int(handle == 1), 0]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: int, index: int) -> int:
        if index not in (0, 4):
            raise NVMLError(self.NVML_ERROR_NOT_FOUND)
        return 100 + index


class HostWithTwoInstincts:
    """AMD SMI as a host with two devices answered, one of which no longer does."""

    class AmdSmiLibraryException(Exception):
        def get_error_info(self) -> str:
            return "AMDSMI_STATUS_BUSY - Device\nbusy"

    def amdsmi_init(self) -> None:
        return None

    def amdsmi_shut_down(self) -> None:
        return None

    def amdsmi_get_processor_handles(self) -> list[int]:
        return [0, 1]

    def amdsmi_get_gpu_asic_info(self, handle: int) -> dict[str, Any]:
        if handle == 1:
            raise self.AmdSmiLibraryException
        return {"market_name": "AMD Instinct MI300X", "vendor_id": 0x1002}


def library_of(nvml: Any, amdsmi: Any) -> Callable[[str], Any]:
    def load(name: str) -> Any:
        found = {"pynvml": nvml, "amdsmi": amdsmi}[name]
        if found is None:
            raise ModuleNotFoundError(f"No module named '{name}'")
        return found

    return load


def test_the_drivers_of_both_vendors_say_what_is_there_and_what_keeps_a_program_from_it() -> None:
    nvml = HostWithFiveGpus()
    found = present(Drivers("/dev/null", "/dev/null"), library_of(nvml, HostWithTwoInstincts()))
    assert found == [
        PresentDevice("cuda", "NVIDIA device 0 (NVIDIA H100 80GB HBM3)"),
        PresentDevice(
            "cuda",
            "NVIDIA device 1 (NVIDIA H100 80GB HBM3)",
            "it is in MIG mode with 2 instances, of which CUDA shows a process one at most",
        ),
        PresentDevice("cuda", "NVIDIA device 2 (Tesla T4)"),
        PresentDevice("cuda", "NVIDIA device 3", "it has fallen off the bus: the host must be restarted"),
        PresentDevice("cuda", "NVIDIA device 4", "this account may not use it"),
        PresentDevice("hip", "AMD device 0 (AMD Instinct MI300X)"),
        PresentDevice("hip", "AMD device 1", "its driver says: AMDSMI_STATUS_BUSY - Device busy"),
    ]
    assert nvml.open == 0


def test_a_library_that_is_missing_says_nothing_and_keeps_no_other_from_being_asked(caplog: pytest.LogCaptureFixture) -> None:
    drivers = Drivers("/dev/null", "/dev/null")
    assert [device.kind for device in present(drivers, library_of(None, HostWithTwoInstincts()))] == ["hip", "hip"]
    assert "pynvml does not say which devices are there: No module named 'pynvml'" in caplog.text
    assert present(Drivers("/dev/none", "/dev/none"), library_of(HostWithFiveGpus(), HostWithTwoInstincts())) == []


def test_what_pytorch_does_not_see_is_said_with_what_to_do() -> None:
    there = [PresentDevice("cuda", "NVIDIA device 0"), PresentDevice("hip", "AMD device 0 (MI300X)"), PresentDevice("hip", "AMD device 1")]
    pythons: dict[Kind, Path] = {"cuda": Path("/opt/cuda/python"), "hip": Path("/opt/cuda/python")}
    seen = discovery.SeenDevice(kind="cuda", model="H100", memory_bytes=80 * GIB)
    (sentence,) = unseen(there, [seen], pythons)
    assert sentence == (
        "AMD's driver has 2 usable devices (AMD device 0 (MI300X), AMD device 1), and the PyTorch of /opt/cuda/python sees 0: it must be"
        " a build for ROCm (the setting worker_pythons names one for this kind), and ROCR_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES"
        " must name all"
    )
    assert unseen(there[:1], [seen], pythons) == []
    assert unseen([PresentDevice("cuda", "NVIDIA device 3", "it is lost")], [], pythons) == ["NVIDIA device 3 is there, but it is lost"]


def test_what_is_found_is_printed_as_the_tables_that_the_settings_take(prepare: Prepare) -> None:
    groups = asyncio.run(embedded.found_devices(prepare(says(A30, {**A30, "index": 1}, MI210)).settings, os.environ))
    printed = embedded.as_toml(groups)
    assert printed.count("[[devices]]") == 2 and "count = 2" in printed
    again = Settings.load(None, {}, tomllib.loads(printed), managed=False)
    assert [(device.id, device.model) for device in again.all_devices()] == [
        ("main/cuda:0", "NVIDIA A30"),
        ("main/cuda:1", "NVIDIA A30"),
        ("main/hip:0", "MI210"),
    ]
