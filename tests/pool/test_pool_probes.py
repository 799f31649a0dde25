"""Probes against fakes of the drivers' libraries, which raise and return what their documentation says."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from forebay_pool.hosts.probes import AmdProbe, Drivers, NvidiaProbe, probes_of
from forebay_pool.model.health import Reading
from forebay_pool.model.types import Device

Make = Callable[..., Any]

CUDA = [Device(f"main/cuda:{i}", "main", "cuda", i, "H100", 80 * 2**30) for i in range(2)]
HIP = [Device("main/hip:0", "main", "hip", 0, "MI210", 64 * 2**30)]


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class FakeNvml:
    """NVML of three devices: what each call answers or raises stands in a table."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC, nvmlEventTypeXidCriticalError = 0, 1, 0, 8
    nvmlMemory_v2 = 0x2000028
    NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_TIMEOUT, NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 3, 10, 13, 15

    def __init__(self) -> None:
        self.celsius: dict[int, int | NVMLError] = {0: 40, 1: 41, 2: 42}
        self.errors: dict[int, int | NVMLError] = {0: 0, 1: NVMLError(3), 2: 5}
        self.xids: dict[int, list[int | NVMLError]] = {0: [], 1: [], 2: []}
        self.handles: dict[int, int | NVMLError] = {}
        """Where a device's handle is not its number."""
        self.figures: dict[str, Any] = {}
        """What the calls for figures that are only shown answer; the others are not supported."""

    def nvmlInit(self) -> None:
        return None

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return self._answer(self.handles.get(index, index))

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return {"GPU-two": 2}[uuid]

    def nvmlEventSetCreate(self) -> list[int]:
        return []

    def nvmlDeviceRegisterEvents(self, handle: int, kinds: int, events: list[int]) -> None:
        assert kinds == self.nvmlEventTypeXidCriticalError
        events.append(handle)

    def nvmlEventSetWait_v2(self, events: list[int], timeout_ms: int) -> Any:
        assert timeout_ms == 0
        if not self.xids[events[0]]:
            raise NVMLError(self.NVML_ERROR_TIMEOUT)
        return SimpleNamespace(eventData=self._answer(self.xids[events[0]].pop(0)))

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        return self._answer(self.celsius[handle])

    def nvmlDeviceGetTotalEccErrors(self, handle: int, kind: int, counter: int) -> int:
        assert (kind, counter) == (self.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, self.NVML_VOLATILE_ECC)
        return self._answer(self.errors[handle])

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._figure("rates")

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        return self._figure("memory" if version is None else f"memory {version:#x}")

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:
        return self._figure("milliwatts")

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return self._figure("uuid")

    def _figure(self, name: str) -> Any:
        return self._answer(self.figures.get(name, NVMLError(self.NVML_ERROR_NOT_SUPPORTED)))

    @staticmethod
    def _answer(value: Any) -> Any:
        if isinstance(value, NVMLError):
            raise value
        return value


def test_nvidia_devices_are_read_and_what_one_lacks_is_unknown() -> None:
    assert NvidiaProbe(FakeNvml(), CUDA).read() == [Reading("main/cuda:0", 40, 0), Reading("main/cuda:1", 41, None)]


def test_figures_of_nvidia_devices_are_read_in_base_units() -> None:
    nvml = FakeNvml()
    memory = SimpleNamespace(used=3 * 2**30, free=77 * 2**30)
    nvml.figures = {"rates": SimpleNamespace(gpu=87, memory=40), "memory 0x2000028": memory, "milliwatts": 301_500, "uuid": "GPU-one"}
    nvml.figures["memory"] = SimpleNamespace(used=4 * 2**30, free=76 * 2**30)
    figures = {"utilisation_percent": 87, "memory_used_bytes": 3 * 2**30, "memory_free_bytes": 77 * 2**30}
    assert NvidiaProbe(nvml, CUDA).read()[0] == Reading("main/cuda:0", 40, 0, **figures, power_watts=301.5, uuid="GPU-one")


def test_a_driver_that_cannot_tell_apart_what_it_keeps_for_itself_tells_all_that_is_used() -> None:
    nvml = FakeNvml()
    nvml.figures = {"memory": SimpleNamespace(used=4 * 2**30, free=76 * 2**30)}
    assert NvidiaProbe(nvml, CUDA).read()[0].memory_used_bytes == 4 * 2**30


def test_a_figure_that_cannot_be_read_hides_no_other_and_one_that_shows_a_loss_is_told() -> None:
    nvml = FakeNvml()
    nvml.figures = {"milliwatts": NVMLError(999), "uuid": "GPU-one"}
    assert NvidiaProbe(nvml, CUDA).read()[0] == Reading("main/cuda:0", 40, 0, uuid="GPU-one")
    nvml.figures = {"milliwatts": NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)}
    assert NvidiaProbe(nvml, CUDA).read()[0].lost == "NVML error 15"


def test_a_lost_nvidia_device_is_said_to_be_lost_and_the_others_are_read() -> None:
    nvml = FakeNvml()
    nvml.celsius[0] = NVMLError(15)
    first, second = NvidiaProbe(nvml, CUDA).read()
    assert (first.lost, second.temperature_celsius) == ("NVML error 15", 41)


def test_a_device_that_is_lost_or_missing_from_the_beginning_keeps_no_other_from_being_read() -> None:
    nvml = FakeNvml()
    nvml.handles[0] = NVMLError(15)
    assert NvidiaProbe(nvml, CUDA).read() == [Reading("main/cuda:1", 41, None), Reading("main/cuda:0", lost="NVML error 15")]
    nvml.handles[0] = NVMLError(6)
    assert NvidiaProbe(nvml, CUDA).read() == [Reading("main/cuda:1", 41, None)]


def test_a_driver_without_the_older_call_tells_the_temperature_by_the_newer_one() -> None:
    class NewerNvml(FakeNvml):
        def nvmlDeviceGetTemperatureV(self, handle: int, sensor: int) -> int:
            return 96

    nvml = NewerNvml()
    nvml.celsius[0] = NVMLError(13)
    assert [reading.temperature_celsius for reading in NvidiaProbe(nvml, CUDA).read()] == [96, 41]


def test_xids_that_cannot_be_asked_for_hide_no_temperature() -> None:
    nvml = FakeNvml()
    nvml.celsius[1] = 99
    nvml.xids[1] = [79, NVMLError(999)]
    assert NvidiaProbe(nvml, CUDA).read()[1] == Reading("main/cuda:1", 99, None, xid=79)
    nvml.xids[1] = [NVMLError(15)]
    assert NvidiaProbe(nvml, CUDA).read()[1].lost == "NVML error 15"


def test_an_error_that_says_nothing_of_the_device_leaves_it_unknown() -> None:
    nvml = FakeNvml()
    nvml.celsius[0] = NVMLError(999)
    assert NvidiaProbe(nvml, CUDA).read()[0] == Reading("main/cuda:0")


@pytest.mark.parametrize(("xids", "seen"), [([], None), ([31], 31), ([79, 31], 79), ([31, 79, 43], 79)])
def test_each_xid_is_told_once_and_the_devices_own_first(xids: list[int], seen: int | None) -> None:
    nvml = FakeNvml()
    probe = NvidiaProbe(nvml, CUDA)
    nvml.xids[1] = list(xids)
    assert [reading.xid for reading in probe.read()] == [None, seen]
    assert [reading.xid for reading in probe.read()] == [None, None]


def test_devices_are_numbered_as_workers_see_them() -> None:
    probe = NvidiaProbe(FakeNvml(), CUDA, visible="GPU-two, 0")
    assert [reading.temperature_celsius for reading in probe.read()] == [42, 40]
    assert [reading.device for reading in NvidiaProbe(FakeNvml(), CUDA, visible="1").read()] == ["main/cuda:0"]


class AmdSmiLibraryException(Exception):
    """As the library's own: a text of two lines, and the words of the error apart."""

    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = err_code

    def get_error_info(self) -> str:
        return "AMDSMI_STATUS_NOT_FOUND - Device Not found"

    def __str__(self) -> str:
        return f"Error code:\n\t{self.err_code} | {self.get_error_info()}"


class FakeAmdSmi:
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot", EDGE="edge")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, celsius: dict[str, int | AmdSmiLibraryException], errors: int | AmdSmiLibraryException) -> None:
        self.celsius, self.errors = celsius, errors
        self.figures: dict[str, Any] = {}
        """What the calls for figures that are only shown answer."""

    def amdsmi_init(self) -> None:
        return None

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["card"]

    def amdsmi_get_temp_metric(self, handle: str, sensor: str, metric: str) -> int:
        found = self.celsius[sensor]
        if isinstance(found, AmdSmiLibraryException):
            raise found
        return found

    def amdsmi_get_gpu_total_ecc_count(self, handle: str) -> dict[str, int]:
        if isinstance(self.errors, AmdSmiLibraryException):
            raise self.errors
        return {"correctable_count": 9, "uncorrectable_count": self.errors, "deferred_count": 0}

    def amdsmi_get_gpu_activity(self, handle: str) -> dict[str, Any]:
        return self._figure("activity")

    def amdsmi_get_gpu_vram_usage(self, handle: str) -> dict[str, Any]:
        return self._figure("memory")

    def amdsmi_get_power_info(self, handle: str) -> dict[str, Any]:
        return self._figure("power")

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return self._figure("uuid")

    def _figure(self, name: str) -> Any:
        if name not in self.figures:
            raise AmdSmiLibraryException(2)
        return self.figures[name]


def test_figures_of_amd_devices_are_read_and_what_is_no_number_is_left_out() -> None:
    smi = FakeAmdSmi({"hotspot": 50, "edge": 40}, 0)
    smi.figures = {
        "activity": {"gfx_activity": 12, "umc_activity": 1, "mm_activity": "N/A"},
        "memory": {"vram_total": 65_536, "vram_used": 1024},
        "power": {"current_socket_power": "N/A", "average_socket_power": 95},
        "uuid": "40ff-1002",
    }
    figures = {"utilisation_percent": 12, "memory_used_bytes": 2**30, "memory_free_bytes": 63 * 2**30}
    assert AmdProbe(smi, HIP).read() == [Reading("main/hip:0", 50, 0, **figures, power_watts=95.0, uuid="40ff-1002")]
    smi.figures = {"activity": {"gfx_activity": "N/A"}, "power": {"current_socket_power": 0xFFFFFFFF, "average_socket_power": 0xFFFF}}
    assert AmdProbe(smi, HIP).read() == [Reading("main/hip:0", 50, 0)]


def test_amd_devices_are_read_at_their_hottest_spot_or_else_the_edge() -> None:
    assert AmdProbe(FakeAmdSmi({"hotspot": 88, "edge": 60}, 2), HIP).read() == [Reading("main/hip:0", 88, 2)]
    lacking = FakeAmdSmi({"hotspot": AmdSmiLibraryException(2), "edge": 60}, AmdSmiLibraryException(2))
    assert AmdProbe(lacking, HIP).read() == [Reading("main/hip:0", 60, None)]


def test_an_amd_device_whose_errors_the_pool_may_not_read_is_not_lost() -> None:
    probe = AmdProbe(FakeAmdSmi({"hotspot": 60}, AmdSmiLibraryException(10)), HIP)
    assert [probe.read() for _ in range(4)] == [[Reading("main/hip:0", 60, None)]] * 4


def test_an_amd_device_that_fails_to_answer_three_times_in_a_row_is_lost() -> None:
    smi = FakeAmdSmi({"hotspot": AmdSmiLibraryException(31), "edge": 60}, 0)
    probe = AmdProbe(smi, HIP)
    assert [probe.read()[0].lost is None for _ in range(2)] == [True, True]
    assert probe.read()[0].lost == "Device Not found (AMDSMI_STATUS_NOT_FOUND)"
    smi.celsius["hotspot"] = 70
    assert probe.read() == [Reading("main/hip:0", 70, 0)]


class FourCards(FakeAmdSmi):
    """Four devices, at as many degrees as their HIP numbers; of the third the library tells no unique id."""

    CARDS: ClassVar[dict[str, tuple[int, str]]] = {
        "c": (2, "N/A"), "a": (0, "GPU-00aa000000000001"), "d": (3, "GPU-00dd000000000004"), "b": (1, "GPU-00ab000000000002"),
    }  # fmt: skip

    def __init__(self) -> None:
        super().__init__({}, 0)

    def amdsmi_get_processor_handles(self) -> list[str]:
        return list(self.CARDS)

    def amdsmi_get_temp_metric(self, handle: str, sensor: str, metric: str) -> int:
        return self.CARDS[handle][0]

    def amdsmi_get_gpu_enumeration_info(self, handle: str) -> dict[str, Any]:
        number, uuid = self.CARDS[handle]
        return {"drm_render": 128, "drm_card": 0, "hsa_id": number + 1, "hip_id": number, "hip_uuid": uuid}


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, [0, 1, 2, 3]),
        ({"ROCR_VISIBLE_DEVICES": "2, 0"}, [2, 0]),
        ({"ROCR_VISIBLE_DEVICES": "gpu-00DD000000000004,1"}, [3, 1]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00dd"}, [3]),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00a"}, []),  # it fits two
        ({"ROCR_VISIBLE_DEVICES": "1,9,2"}, [1]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
        ({"HIP_VISIBLE_DEVICES": "3,1"}, [3, 1]),
        ({"HIP_VISIBLE_DEVICES": "-1"}, []),
        ({"HIP_VISIBLE_DEVICES": ""}, [0, 1, 2, 3]),
        ({"HIP_VISIBLE_DEVICES": "GPU-00aa000000000001"}, [0]),
        ({"ROCR_VISIBLE_DEVICES": "3,1,0", "HIP_VISIBLE_DEVICES": "2,0"}, [0, 3]),
        ({"ROCR_VISIBLE_DEVICES": "3,1", "HIP_VISIBLE_DEVICES": "1,1,2"}, [1]),
        ({"CUDA_VISIBLE_DEVICES": "2"}, [2]),
        ({"CUDA_VISIBLE_DEVICES": "2", "HIP_VISIBLE_DEVICES": "1"}, [1]),
    ],
)
def test_amd_devices_are_numbered_as_workers_see_them(
    environ: dict[str, str], seen: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", FourCards())
    known = [Device(f"main/hip:{i}", "main", "hip", i, "MI210", 64 * 2**30) for i in range(4)]
    (probe,) = probes_of(known, environ, Drivers(str(tmp_path / "missing"), str(tmp_path)))
    assert [(reading.device, reading.temperature_celsius) for reading in probe.read()] == [
        (f"main/hip:{number}", celsius) for number, celsius in enumerate(seen)
    ]
    assert len(caplog.messages) == 4 - len(seen)


def test_amd_devices_whose_numbers_a_library_does_not_tell_are_in_its_order() -> None:
    class OlderCards(FourCards):
        def amdsmi_get_gpu_enumeration_info(self, handle: str) -> dict[str, Any]:
            if handle == "d":
                raise AmdSmiLibraryException(2)
            return super().amdsmi_get_gpu_enumeration_info(handle)

    known = [Device(f"main/hip:{i}", "main", "hip", i, "MI210", 64 * 2**30) for i in range(4)]
    assert [reading.temperature_celsius for reading in AmdProbe(OlderCards(), known, rocr="1,2").read()] == [0, 3]


def test_a_librarys_word_is_asked_for_only_where_its_driver_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cpu = Device("main/cpu:0", "main", "cpu", 0, "cpu-dev", 2**30)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    monkeypatch.setitem(sys.modules, "amdsmi", FakeAmdSmi({"hotspot": 70}, 0))
    loaded, missing = tmp_path / "loaded", str(tmp_path / "missing")
    loaded.touch()

    def read(nvidia: str, amd: str) -> list[Reading]:
        found = probes_of([cpu, *CUDA, *HIP], {"CUDA_VISIBLE_DEVICES": "GPU-two", "HIP_VISIBLE_DEVICES": "0"}, Drivers(nvidia, amd))
        return [reading for probe in found for reading in probe.read()]

    assert read(missing, missing) == []
    assert read(str(loaded), missing) == [Reading("main/cuda:0", 42, 5)]
    assert read(missing, str(loaded)) == [Reading("main/hip:0", 70, 0)]
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    assert read(str(loaded), str(loaded)) == [Reading("main/hip:0", 70, 0)]
    assert "is nvidia-ml-py installed?" in caplog.text

    def cannot_begin() -> None:
        raise AmdSmiLibraryException(31)

    monkeypatch.setattr(sys.modules["amdsmi"], "amdsmi_init", cannot_begin)
    assert read(missing, str(loaded)) == []
    assert caplog.messages[-1] == (
        "the devices' health is not watched (AmdSmiLibraryException: Error code: 31 | AMDSMI_STATUS_NOT_FOUND - Device Not found);"
        " is amdsmi installed?"
    )


def test_what_a_probe_reads_closes_the_device_of_a_running_pool(pool: Make) -> None:
    class HotProbe:
        def read(self) -> list[Reading]:
            return [Reading("main/cpu:0", 95)]

    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            watch = asyncio.create_task(running.service.shell.watch_health(HotProbe(), 0.05))
            await running.until(lambda: not running.machine.fleet.seats["main/cpu:0"].is_open)
            watch.cancel()
            (row,) = await running.get("api/devices")
            assert (row["state"], row["cause"], row["temperature_celsius"]) == ("cordoned", "it is at 95 °C", 95)
            metrics = (await running.call("GET", "metrics")).body.decode()
            assert 'forebay_pool_device_alerts_total{model="cpu-dev"} 1.0' in metrics

    asyncio.run(scenario())
