"""Monitors of NVIDIA's GPUs, unmodified, show the virtual devices of the person who runs them, and nothing of others.

This process has a device; monitors are asked in it, and run as programs beside it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pynvml
import pytest
import torch
from forebay import _C, monitors
from forebay.monitors import nvidia_smi
from forebay.toolkit import run
from torch.utils import collect_env

PYTHON = sys.executable
"""As a monitor is started: without anything of ours."""
BIN = Path(PYTHON).parent
MIB = 1 << 20
PROCESS_BYTES, STARTED_BYTES = slice(8, 16), slice(16, 24)
"""Of a page (csrc/monitoring/page.h)."""


@pytest.fixture
def held() -> Iterator[torch.Tensor]:
    """3 MiB of the device."""
    yield torch.ones(3 * MIB, dtype=torch.uint8, device="cuda")


@pytest.fixture
def handle(held: torch.Tensor) -> Iterator[object]:
    held.sum().item()
    pynvml.nvmlInit()
    yield pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlShutdown()


def shown(*command: str, **environment: str) -> str:
    """What a program beside this one prints."""
    own = {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200", "LINES": "60", "TERM": "xterm"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **own, **environment}).stdout


QUERY = """
import json, pynvml
pynvml.nvmlInit()
device = pynvml.nvmlDeviceGetHandleByIndex(0)
try:
    memory = pynvml.nvmlDeviceGetMemoryInfo(device)
    sizes = [memory.total, memory.used, memory.free]
except pynvml.NVMLError_NotSupported:
    sizes = None
processes = [[found.pid, found.usedGpuMemory] for found in pynvml.nvmlDeviceGetComputeRunningProcesses(device)]
print(json.dumps([pynvml.nvmlDeviceGetName(device), sizes, processes]))
"""


def queried(**environment: str) -> tuple[str, list[int] | None, list[list[int]]]:
    name, sizes, processes = json.loads(shown(PYTHON, "-I", "-c", QUERY, **environment))
    return name, sizes, processes


def started_at(process: int) -> int:
    """In ticks since the host started."""
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[19])


def page() -> Path:
    """This process's, and not that of a killed one that had its number before."""
    (found,) = Path("/dev/shm").glob(f"forebay-{os.geteuid()}-*/{os.getpid()}-{started_at(os.getpid())}")
    return found


def page_of(process: int, name: str | None = None) -> Path:
    """This process's page once more, as if another one had published it."""
    started = started_at(process)
    content = bytearray(page().read_bytes())
    content[PROCESS_BYTES], content[STARTED_BYTES] = process.to_bytes(8, "little"), started.to_bytes(8, "little")
    other = page().with_name(name or f"{process}-{started}")
    other.write_bytes(content)
    return other


@pytest.fixture
def neighbour(held: torch.Tensor) -> Iterator[subprocess.Popen[bytes]]:
    held.sum().item()
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_process_sees_its_own_device_as_pytorch_tells_it(handle: object, held: torch.Tensor) -> None:
    properties = torch.cuda.get_device_properties(0)
    assert pynvml.nvmlDeviceGetCount() == torch.cuda.device_count()
    assert pynvml.nvmlDeviceGetName(handle) == properties.name
    assert pynvml.nvmlDeviceGetUUID(handle) == f"GPU-{properties.uuid}"
    assert pynvml.nvmlDeviceGetCudaComputeCapability(handle) == torch.cuda.get_device_capability(0)
    assert pynvml.nvmlDeviceGetPciInfo(handle).bus == properties.pci_bus_id
    for identity, find in (
        (pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetHandleByUUID),
        (pynvml.nvmlDeviceGetPciInfo(handle).busId, pynvml.nvmlDeviceGetHandleByPciBusId),
    ):
        assert pynvml.nvmlDeviceGetIndex(find(identity)) == 0
    assert pynvml.nvmlSystemGetCudaDriverVersion() == 12080
    assert pynvml.nvmlDeviceGetBrand(handle) == pynvml.nvmlDeviceGetComputeMode(handle) == 0


def test_memory_follows_each_allocation_and_each_free(handle: object) -> None:
    for bytes_more in (1, 511, 7 * MIB, 0):
        more = torch.empty(bytes_more, dtype=torch.uint8, device="cuda")
        found = pynvml.nvmlDeviceGetMemoryInfo(handle)
        assert found.used == torch.cuda.memory_allocated() and found.used + found.free == found.total == torch.cuda.mem_get_info()[1]
        assert pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used == found.used
        assert [(process.pid, process.usedGpuMemory) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [
            (os.getpid(), found.used)
        ]
        del more
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == torch.cuda.memory_allocated()
    assert pynvml.nvmlDeviceGetGraphicsRunningProcesses(handle) == pynvml.nvmlDeviceGetMPSComputeRunningProcesses(handle) == []


def test_what_only_a_physical_device_has_is_not_supported(handle: object) -> None:
    for ask in (
        pynvml.nvmlDeviceGetPowerUsage,
        pynvml.nvmlDeviceGetFanSpeed,
        pynvml.nvmlDeviceGetMigMode,
        lambda one: pynvml.nvmlDeviceGetTemperature(one, pynvml.NVML_TEMPERATURE_GPU),
        lambda one: pynvml.nvmlDeviceGetClockInfo(one, pynvml.NVML_CLOCK_SM),
        lambda one: pynvml.nvmlDeviceSetPowerManagementLimit(one, 1),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            ask(handle)


def test_the_library_has_each_function_that_nvidias_python_package_calls() -> None:
    library = monitors.found()
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(nvml\w+)"\)', Path(pynvml.__file__).read_text()))
    assert len(called) > 300
    assert sorted(name for name in called if not hasattr(library, name)) == []


def test_wrong_calls_are_told_so(handle: object) -> None:
    for wrong in (1, 15, 16, 2**32 - 1):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetHandleByIndex(wrong)
    for find in (pynvml.nvmlDeviceGetHandleByUUID, pynvml.nvmlDeviceGetHandleByPciBusId):
        with pytest.raises(pynvml.NVMLError_NotFound):
            find("GPU-none")
    library = monitors.found()
    assert library is not None
    for stranger in (None, ctypes.c_void_p(0x1000)):
        assert library.nvmlDeviceGetIndex(stranger, ctypes.byref(ctypes.c_uint())) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert library.nvmlDeviceGetName(handle, ctypes.create_string_buffer(4), 4) == pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert library.nvmlDeviceGetMemoryInfo(handle, None) == pynvml.NVML_ERROR_INVALID_ARGUMENT
    with pytest.raises(pynvml.NVMLError, match="version"):
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=1)
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()


def test_monitors_in_other_processes_show_name_memory_and_process(handle: object) -> None:
    used, total = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[1]
    assert queried() == (torch.cuda.get_device_name(), [total, used, total - used], [[os.getpid(), used]])
    (gpu,) = json.loads(shown("gpustat", "--json"))["gpus"]
    assert gpu["name"] == torch.cuda.get_device_name() and gpu["memory.used"] == used // MIB and gpu["temperature.gpu"] is None
    assert [process["pid"] for process in gpu["processes"]] == [os.getpid()]
    table = shown("nvitop", "-1", "--ascii")
    assert f"{os.getpid()} C" in table and f"/ {total // MIB}MiB" in table.replace("1024MiB", f"{total // MIB}MiB")


def test_pytorchs_report_of_the_environment_names_the_device(handle: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    name = f"GPU 0: {torch.cuda.get_device_name()}"
    assert collect_env.get_gpu_info(collect_env.run) == name
    assert collect_env.get_nvidia_driver_version(collect_env.run) == "570.0"


def test_the_vendors_command_answers_what_programs_ask_of_it(handle: object, capsys: pytest.CaptureFixture[str]) -> None:
    name, used, total = torch.cuda.get_device_name(), torch.cuda.memory_allocated() // MIB, torch.cuda.mem_get_info()[1] // MIB
    asked = "--query-gpu=name,memory.used,memory.total,temperature.gpu,nonsense"
    for arguments, expected in (
        (["-L"], f"GPU 0: {name} (UUID: GPU-{torch.cuda.get_device_properties(0).uuid})\n"),
        ([asked, "--format=csv,noheader,nounits", "--id=0"], f"{name}, {used}, {total}, [N/A], [Not Supported]\n"),
        (["--query-gpu=memory.used", "--format=csv"], f"memory.used [MiB]\n{used} MiB\n"),
    ):
        assert nvidia_smi.perform(arguments) == 0
        assert capsys.readouterr().out == expected
    assert nvidia_smi.perform(["-i", "3", "-L"]) == 6 and "no device 3" in capsys.readouterr().err
    assert nvidia_smi.perform(["--gpu-reset"]) == 1 and "not known" in capsys.readouterr().err
    assert f"0, {name}, {used} MiB, {total} MiB" in shown("nvidia-smi")


def test_lightning_reads_its_statistics(handle: object, monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning.pytorch.accelerators.cuda import CUDAAccelerator, get_nvidia_gpu_stats

    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    stats = CUDAAccelerator().get_device_stats(torch.device("cuda", 0))
    assert stats["allocated_bytes.all.current"] == torch.cuda.memory_allocated()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # as in a notebook
    stats = get_nvidia_gpu_stats(torch.device("cuda", 0))
    assert stats["memory.used (MB)"] == torch.cuda.memory_allocated() // MIB and stats["temperature.gpu (°C)"] == 0.0


def test_devices_of_several_processes_are_shown_as_one_that_holds_all(neighbour: subprocess.Popen[bytes], held: torch.Tensor) -> None:
    other = page_of(neighbour.pid)
    used, total = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[1]
    try:
        _, sizes, processes = queried()
        assert sizes == [2 * total, 2 * used, 2 * (total - used)]
        assert processes == sorted([[os.getpid(), used], [neighbour.pid, used]])
        pynvml.nvmlInit()
        assert pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used == used, "a program sees its own device"
        pynvml.nvmlShutdown()
        neighbour.kill()
        neighbour.wait()
        assert queried()[2] == [[os.getpid(), used]], "a process that has ended is shown no longer"
    finally:
        other.unlink()


def test_pages_that_are_no_pages_of_this_person_are_left_alone(neighbour: subprocess.Popen[bytes]) -> None:
    whole = page_of(neighbour.pid)
    content = whole.read_bytes()
    expected = [[os.getpid(), torch.cuda.memory_allocated()]]
    broken = {"empty": b"", "cut short": content[:-1], "without its mark": b"\0" * 8 + content[8:]}
    broken["of too many devices"] = content[:24] + b"\xff" * 8 + content[32:]
    try:
        for what, bytes_of_it in broken.items():
            whole.write_bytes(bytes_of_it)
            assert queried()[2] == expected, what
        whole.unlink()
        whole.symlink_to(page())
        assert queried()[2] == expected, "a link"
        if os.geteuid() == 0:
            whole.unlink()
            whole.write_bytes(content)
            os.chown(whole, 65534, 65534)
            assert queried()[2] == expected, "of another account"
    finally:
        whole.unlink()


def test_another_person_of_the_same_account_is_shown_nothing_of_this_one(handle: object, tmp_path: Path) -> None:
    assert queried(HOME=str(tmp_path)) == ("Forebay (virtual)", None, [])
    folder = page().parent
    assert folder.stat().st_mode & 0o777 == 0o700 and page().stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_write_to_is_not_read(handle: object) -> None:
    page().parent.chmod(0o770)
    try:
        assert queried()[1:] == (None, [])
    finally:
        page().parent.chmod(0o700)


@pytest.mark.parametrize(("settings", "count"), [({"FOREBAY_DEVICES": "3"}, 3), ({"FOREBAY_DEVICES": "small,large"}, 2), ({}, 2)], ids=str)
def test_without_a_program_there_are_as_many_devices_as_one_would_have(settings: dict[str, str], count: int, tmp_path: Path) -> None:
    (tmp_path / ".config" / "forebay").mkdir(parents=True)
    (tmp_path / ".config" / "forebay" / "devices.json").write_text('{"devices": [null, "small"]}\n')
    environment = {"FOREBAY_DEVICES": "", "XDG_CONFIG_HOME": "", "HOME": str(tmp_path), **settings}
    counted = shown(PYTHON, "-I", "-c", "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount())", **environment)
    assert int(counted) == count


def test_a_forked_child_changes_nothing_of_what_its_parent_shows(handle: object) -> None:
    before = pynvml.nvmlDeviceGetMemoryInfo(handle).used
    child = os.fork()
    if child == 0:
        _C.tell_flavor("of the child", 1)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert pynvml.nvmlDeviceGetMemoryInfo(handle).used == before
    assert pynvml.nvmlDeviceGetName(handle) == torch.cuda.get_device_name()


def test_utilisation_is_the_share_of_time_for_which_a_lease_is_open(handle: object) -> None:
    torch.cuda.synchronize()
    assert _C.lease_is_open(0)
    before = _C.held_ns(0)
    torch.ones(4, device="cuda").sum().item()
    assert _C.held_ns(0) > before
    assert 0 <= pynvml.nvmlDeviceGetUtilizationRates(handle).gpu <= 100
    assert 0 <= torch.cuda.utilization() <= 100 and torch.cuda.memory_usage() == torch.cuda.utilization()
    assert torch.cuda.list_gpu_processes() == (
        f"GPU:0\nprocess {os.getpid():>10d} uses {torch.cuda.memory_allocated() / MIB:>12.3f} MB GPU memory"
    )


def test_programs_that_forebay_runs_and_notebook_servers_find_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(monitors.folder())
    asked = "from forebay import monitors; import os; monitors.offer(os.environ); print(os.environ['LD_LIBRARY_PATH'])"
    assert shown(PYTHON, "-I", "-c", asked, LD_LIBRARY_PATH="/somewhere").strip() == f"/somewhere{os.pathsep}{folder}"
    server = [PYTHON, "-I", "-m", "forebay.toolkit.environments", "sh", "-c", "echo $LD_LIBRARY_PATH"]
    assert shown(*server, HOME=os.environ["HOME"], LD_LIBRARY_PATH="").strip() == folder
    monkeypatch.setattr(monitors, "found", lambda: None)
    found = run.environment(argparse.Namespace(module=True, program="this", flavor=None))
    assert folder in found["LD_LIBRARY_PATH"].split(os.pathsep)
    monitors.withhold(found)
    assert folder not in found["LD_LIBRARY_PATH"].split(os.pathsep), "a pool's workers look for GPUs of the host"


def test_a_drivers_own_library_is_not_shadowed(tmp_path: Path) -> None:
    (of_the_host,) = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith("libm.so.6")}
    shutil.copy(of_the_host, tmp_path / monitors.LIBRARY)
    asked = "from forebay import monitors; found = {}; monitors.offer(found); print(found, monitors.is_shadowed())"
    assert shown(PYTHON, "-I", "-c", asked, LD_LIBRARY_PATH=str(tmp_path)) == "{} False\n"
