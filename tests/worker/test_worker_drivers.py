"""What the drivers say of devices, against fakes of their libraries that return and raise what their documentation says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from forebay_worker.drivers import Driver, driver_of

GIB = 2**30


class NVMLError(Exception):
    pass


class FakeNvml:
    """NVML of two devices, which it numbers in another order than PyTorch does."""

    NVMLError = NVMLError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, celsius: int | None = 41, as_bytes: bool = False) -> None:
        self.celsius, self.as_bytes, self.open = celsius, as_bytes, 0

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        if uuid not in ("GPU-one", "GPU-two"):
            raise NVMLError("Not Found")
        return ["GPU-two", "GPU-one"].index(uuid)

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return ["GPU-two", "GPU-one"][handle]

    def nvmlDeviceGetName(self, handle: int) -> str | bytes:
        name = ["NVIDIA A30", "NVIDIA H100"][handle]
        return name.encode() if self.as_bytes else name

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=[24 * GIB, 80 * GIB][handle])

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        if self.celsius is None:
            raise NVMLError("Not Supported")
        return self.celsius + handle


class AmdSmiLibraryException(Exception):
    pass


class FakeAmdSmi:
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def amdsmi_init(self) -> None: ...

    def amdsmi_shut_down(self) -> None: ...

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["card"]

    def amdsmi_get_gpu_asic_info(self, handle: str) -> dict[str, str]:
        return {"market_name": "AMD Instinct MI210"}

    def amdsmi_get_gpu_device_uuid(self, handle: str) -> str:
        return "a0ff-740f"

    def amdsmi_get_gpu_driver_info(self, handle: str) -> dict[str, str]:
        return {"driver_name": "amdgpu", "driver_version": "6.12.12"}

    def amdsmi_get_gpu_vram_info(self, handle: str) -> dict[str, int]:
        return {"vram_size": 65_520}

    def amdsmi_get_temp_metric(self, handle: str, sensor: str, metric: str) -> int:
        raise AmdSmiLibraryException(2)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_an_nvidia_device_is_found_by_its_id_whatever_number_its_driver_gives_it(as_bytes: bool) -> None:
    nvml = FakeNvml(as_bytes=as_bytes)
    found = driver_of("cuda", 0, "one", {"pynvml": nvml}.__getitem__)
    assert found == Driver("NVIDIA H100", "GPU-one", "580.65.06", 80 * GIB, 42)
    assert nvml.open == 0, "the library is let go"


def test_a_device_without_a_sensor_has_no_temperature() -> None:
    found = driver_of("cuda", 1, "GPU-two", {"pynvml": FakeNvml(celsius=None)}.__getitem__)
    assert found == Driver("NVIDIA A30", "GPU-two", "580.65.06", 24 * GIB, None)
    amd = driver_of("hip", 0, "", {"amdsmi": FakeAmdSmi()}.__getitem__)
    assert amd == Driver("AMD Instinct MI210", "a0ff-740f", "6.12.12", 65_520 * 2**20, None)


def test_where_the_library_is_missing_or_does_not_know_the_device_nothing_is_said() -> None:
    nvml = FakeNvml()
    assert driver_of("cuda", 0, "unknown", {"pynvml": nvml}.__getitem__) is None
    assert nvml.open == 0
    assert driver_of("hip", 1, "", {"amdsmi": FakeAmdSmi()}.__getitem__) is None
    nothing: dict[str, Any] = {}
    for kind in ("cuda", "hip", "cpu", "null"):
        assert driver_of(kind, 0, "one", nothing.__getitem__) is None
