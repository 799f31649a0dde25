"""What workers' devices draw: the drivers' counters against fakes and files as their documentation has them, and a real worker's lease."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from forebay_wire import messages
from forebay_worker.energy import Counter, EnergyMeter, ProcessorCounter, counters_of
from forebay_worker.pytorch import SeenDevice
from link_to_pool import Pool

SECOND = 10**9
TICKS = 100
WAIT_SECONDS_MAX = 20.0


def seen(kind: str, index: int = 0, uuid: str = "") -> SeenDevice:
    return SeenDevice(f"{kind}:{index}", kind, "a model", 1 << 30, uuid)


class FakeNvml:
    """Two GPUs, which NVML numbers in another order than PyTorch; one of them is older than Volta."""

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return {"GPU-new": "new", "GPU-old": "old"}[uuid]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        if handle == "old":
            raise RuntimeError("Not Supported")
        return 123_456


class FakeAmdSmi:
    def __init__(self, key: str) -> None:
        self.key = key

    def amdsmi_init(self) -> None: ...

    def amdsmi_get_processor_handles(self) -> list[str]:
        return ["first", "second"]

    def amdsmi_get_energy_count(self, handle: str) -> dict[str, float]:
        return {self.key: 2_000_000 if handle == "second" else 0, "counter_resolution": 15.3, "timestamp": 1}


def test_nvidia_s_counter_is_found_by_the_device_s_id_and_told_in_millijoules() -> None:
    (counter,) = counters_of([seen("cuda", uuid="new")], False, lambda name: {"pynvml": FakeNvml()}[name])
    assert counter() == 123_456


@pytest.mark.parametrize("key", ["energy_accumulator", "power"])
def test_amd_s_counter_is_ticks_of_so_many_microjoules(key: str) -> None:
    (counter,) = counters_of([seen("hip", index=1)], False, lambda name: {"amdsmi": FakeAmdSmi(key)}[name])
    assert counter() == pytest.approx(2_000_000 * 15.3 / 1_000)


@pytest.mark.parametrize(
    ("devices", "elsewhere"), [([seen("standin")], False), ([seen("cpu"), seen("cpu", 1)], False), ([seen("cuda", uuid="new")], True)]
)
def test_what_has_no_counter_of_its_own_is_not_guessed(devices: Sequence[SeenDevice], elsewhere: bool) -> None:
    with pytest.raises(LookupError):
        counters_of(devices, elsewhere, lambda name: FakeNvml())


class Packages:
    """Two processor packages as Linux's powercap shows them, the first with a part that is no package, and ``/proc/stat``."""

    def __init__(self, folder: Path, range_uj: int = 1_000_000) -> None:
        self.folder, self.times = folder, folder / "stat"
        for name, of in (("intel-rapl:0", "package-0"), ("intel-rapl:0:0", "core"), ("intel-rapl:1", "package-1")):
            (folder / name).mkdir(parents=True)
            (folder / name / "name").write_text(f"{of}\n")
            (folder / name / "max_energy_range_uj").write_text(f"{range_uj}\n")
            self.draw(name, 0)
        self.spend(0)

    def draw(self, name: str, energy_uj: int) -> None:
        """Sets the package's counter at once: a worker that reads it meanwhile never sees an empty file."""
        written = self.folder / name / "written"
        written.write_text(f"{energy_uj}\n")
        written.replace(self.folder / name / "energy_uj")

    def spend(self, ticks: int) -> None:
        """By all processes; idle time and waiting for disks are none of it."""
        self.times.write_text(f"cpu  {ticks} 0 0 777 888 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")


def test_a_process_draws_the_part_of_its_processors_that_it_has_of_their_time(tmp_path: Path) -> None:
    packages, own = Packages(tmp_path / "powercap"), [0]
    counter = ProcessorCounter(packages.folder, packages.times, lambda: own[0], TICKS)
    assert counter.read_mj() == 0
    packages.draw("intel-rapl:0", 600_000)
    packages.draw("intel-rapl:0:0", 500_000)
    packages.draw("intel-rapl:1", 200_000)
    packages.spend(4 * TICKS)
    own[0] = SECOND
    assert counter.read_mj() == pytest.approx(800 / 4)  # of 0.8 J, for one of four seconds
    packages.draw("intel-rapl:0", 100_000)  # it began again at a joule
    packages.spend(5 * TICKS)
    own[0] += SECOND
    assert counter.read_mj() == pytest.approx(200 + 500)
    assert counter.read_mj() == pytest.approx(700)  # nobody computed since


def test_a_host_without_counters_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="no processor package"):
        ProcessorCounter(tmp_path)


class Driver:
    """A counter that a test moves on."""

    def __init__(self) -> None:
        self.mj, self.lost = 0.0, False
        self.looks, self.looked = 0, threading.Condition()

    def __call__(self) -> float:
        with self.looked:
            self.looks += 1
            self.looked.notify_all()
            if self.lost:
                raise OSError("the GPU has fallen off the bus")
            return self.mj

    def seen_again(self, times: int = 2) -> None:
        """Returns when it was read as often from now on: once may have begun before."""
        with self.looked:
            until = self.looks + times
            assert self.looked.wait_for(lambda: self.looks >= until, WAIT_SECONDS_MAX)


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.stop()


@pytest.fixture
def metered() -> Iterator[tuple[Driver, EnergyMeter]]:
    driver = Driver()
    with EnergyMeter(lambda: [driver], period_seconds=0.001) as meter:
        yield driver, meter


def wait_for(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_only_what_is_drawn_while_a_lease_is_open_counts(metered: tuple[Driver, EnergyMeter]) -> None:
    driver, meter = metered
    wait_for(lambda: meter.drawn_mj == 0)
    driver.mj = 1_000.0
    meter.turn(opened=True)
    driver.seen_again()
    driver.mj = 1_700.0
    wait_for(lambda: meter.drawn_mj == 700)
    meter.turn(opened=False)
    wait_for(lambda: not _reads(driver))
    driver.mj = 9_000.0
    meter.turn(opened=True)
    driver.seen_again()
    driver.mj = 9_001.0
    wait_for(lambda: meter.drawn_mj != 700)
    assert meter.drawn_mj == 701


def _reads(driver: Driver) -> bool:
    before = driver.looks
    time.sleep(0.05)
    return driver.looks > before


def test_a_counter_that_is_missing_makes_it_unknown() -> None:
    def missing() -> Sequence[Counter]:
        raise ImportError("no module named pynvml")

    with EnergyMeter(missing, period_seconds=0.001) as meter:
        meter.turn(opened=True)
        meter.turn(opened=False)
    assert meter.drawn_mj is None


def test_a_counter_that_fails_in_a_lease_makes_it_unknown_from_then_on(metered: tuple[Driver, EnergyMeter]) -> None:
    driver, meter = metered
    meter.turn(opened=True)
    driver.seen_again()
    assert meter.drawn_mj == 0
    driver.lost = True
    wait_for(lambda: meter.drawn_mj is None)


@pytest.mark.parametrize("device", ["cpu:0"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may show a worker other processors")
def test_a_worker_tells_what_its_leases_drew(pool: Pool, socket_folder: Path, device_environment: dict[str, str], tmp_path: Path) -> None:
    """A real worker, in a mount namespace where ``/sys/class`` has two processor packages."""
    packages = Packages(tmp_path / "powercap", range_uj=10**12)
    worker = [sys.executable, "-m", "forebay_worker", "--pool", pool.url, "--worker", "w-1", "--socket-dir", str(socket_folder)]
    command = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /sys/class && exec "$@"', str(tmp_path), *worker]
    process = subprocess.Popen(command, env={**device_environment, "FOREBAY_WORKER_TOKEN": "the-workers-own-token"})
    try:
        pool.expect(messages.Ready)
        limits = {"memory_limit_bytes": 1 << 28, "idle_release_seconds": 600, "heartbeat_seconds": 0.1}
        pool.send(messages.Assign.model_validate({"session": "s-1", "ticket": "0" * 64, **limits}))
        pool.expect(messages.Assigned)
        while pool.expect(messages.Heartbeat).energy_mj is None:
            pass
        packages.draw("intel-rapl:1", 10**11)  # before the lease
        pool.send(messages.Open(epoch=1, memory_limit_bytes=1 << 28))
        while pool.expect(messages.Heartbeat).epoch != 1:
            pass
        told, drawn_mj = 0, 0
        while not told:  # a worker that had none of the processors' time between two readings has no share of what they drew
            drawn_mj += 10**6
            packages.draw("intel-rapl:0", drawn_mj * 1000 % 10**12)
            told = pool.expect(messages.Heartbeat).energy_mj or 0
        assert 0 < told <= drawn_mj
        pool.send(messages.Close(epoch=1))
        closed = pool.expect(messages.Closed)
        assert closed.energy_mj is not None and told <= closed.energy_mj <= drawn_mj
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS_MAX)
