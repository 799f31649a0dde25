"""``nvidia-smi`` of an environment with virtual devices: what programs read of it (``-L``, ``--query-gpu``), and a few lines for people.

Without FOREBAY_URL it becomes the command of that name that comes next on PATH, if there is one.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from forebay import monitors
from forebay.service import configured

NO_NUMBER = "[N/A]"
MIB = 1 << 20
NAME_BYTES = 96
OURS, BEGINNING_BYTES = b"forebay.monitors.nvidia_smi", 4096
"""What the scripts begin with that are this command, in whichever environment."""
NO_DEVICES = 6
"""The exit status of the vendor's command where it finds none of those that are asked for."""
UNITS = {"memory.total": "MiB", "memory.used": "MiB", "memory.free": "MiB", "utilization.gpu": "%", "utilization.memory": "%"}
DRIVEN = ("temperature.", "power.", "fan.", "clocks.", "pstate", "ecc.", "pcie.", "persistence_mode", "mig.mode", "serial", "display")
"""How fields begin that a physical device alone has."""


class Library:
    """Our library, wherever it is asked from."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.nvmlInit_v2()

    def count(self) -> int:
        """Of devices."""
        return int(self._numbers("nvmlDeviceGetCount_v2", ctypes.c_uint, 1)[0])

    def driver(self) -> str:
        """A version of NVIDIA's driver that goes with the version of CUDA that PyTorch tells."""
        return self._text("nvmlSystemGetDriverVersion")

    def fields(self, index: int) -> dict[str, str]:
        """What is known of a device, by the names of ``--query-gpu``."""
        device = ctypes.c_void_p()
        self._library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(device))
        name, uuid = self._text("nvmlDeviceGetName", device), self._text("nvmlDeviceGetUUID", device)
        total, free, used = self._numbers("nvmlDeviceGetMemoryInfo", ctypes.c_ulonglong, 3, device) or (None, None, None)
        gpu, memory = self._numbers("nvmlDeviceGetUtilizationRates", ctypes.c_uint, 2, device) or (None, None)
        sizes = {"memory.total": total, "memory.free": free, "memory.used": used}
        known: dict[str, object] = {key: None if value is None else value // MIB for key, value in sizes.items()}
        known |= {"utilization.gpu": gpu, "utilization.memory": memory, "index": index, "count": self.count()}
        known |= {"name": name, "gpu_name": name, "uuid": uuid, "gpu_uuid": uuid, "driver_version": self.driver()}
        known |= {"compute_cap": "8.0", "pci.bus_id": f"00000000:{index:02X}:00.0"}
        return {key: NO_NUMBER if value is None else str(value) for key, value in known.items()}

    def _text(self, function: str, *arguments: object) -> str:
        text = ctypes.create_string_buffer(NAME_BYTES)
        getattr(self._library, function)(*arguments, text, ctypes.c_uint(NAME_BYTES))
        return text.value.decode(errors="replace")

    def _numbers(self, function: str, kind: type[ctypes.c_uint | ctypes.c_ulonglong], count: int, *arguments: object) -> tuple[int, ...]:
        """Nothing where the library has none."""
        numbers = (kind * count)()
        return () if getattr(self._library, function)(*arguments, numbers) != 0 else tuple(int(number) for number in numbers)


def main() -> int:
    """The exit status: 0, or why nothing is shown."""
    if configured() is None:
        _become_the_next(sys.argv[1:])
    return perform(sys.argv[1:])


def perform(arguments: Sequence[str]) -> int:
    """Shows what is asked for."""
    place = monitors.folder()
    if place is None:
        sys.stderr.write("nvidia-smi: this forebay was built without its library for monitors; run `forebay smi`.\n")
        return NO_DEVICES
    library = Library(place / monitors.LIBRARY)
    wanted, rest = _parser().parse_known_args(arguments)
    if rest:
        sys.stderr.write(f"nvidia-smi: {' '.join(rest)} is not known for virtual devices; give -L or --query-gpu, or run `forebay smi`.\n")
        return 1
    indices = [index for index in _indices(wanted.id, library) if index < library.count()]
    if not indices:
        sys.stderr.write(f"nvidia-smi: no device {wanted.id} was found.\n")
        return NO_DEVICES
    sys.stdout.write("\n".join(_lines(library, indices, wanted)) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nvidia-smi", description="Shows the virtual devices of this environment.", allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true", dest="listed", help="one line a device")
    parser.add_argument("--query-gpu", metavar="FIELD,…", help="these fields of each device")
    parser.add_argument("--format", default="csv", metavar="csv[,noheader][,nounits]", help="how --query-gpu shows them")
    parser.add_argument("-i", "--id", metavar="INDEX,…", help="these devices alone, by number or uuid")
    return parser


def _indices(wanted: str | None, library: Library) -> list[int]:
    if wanted is None:
        return list(range(library.count()))
    by_uuid = {library.fields(index)["uuid"]: index for index in range(library.count())}
    ids = wanted.split(",")
    # CUDA_VISIBLE_DEVICES is -1 in a notebook, so that nothing finds a GPU of the host; programs take that for the number of cuda:0.
    return [0 if one == "-1" else by_uuid.get(one, int(one) if one.isdecimal() else library.count()) for one in ids]


def _lines(library: Library, indices: Sequence[int], wanted: argparse.Namespace) -> list[str]:
    devices = [library.fields(index) for index in indices]
    if wanted.listed:
        return [f"GPU {device['index']}: {device['name']} (UUID: {device['uuid']})" for device in devices]
    if wanted.query_gpu:
        return _queried(devices, wanted.query_gpu.split(","), wanted.format.split(","))
    heading = f"Driver Version: {library.driver()} (of the CUDA version that PyTorch is told; the devices are virtual)"
    columns = ["index", "name", "memory.used", "memory.total", "utilization.gpu"]
    return [heading, *_queried(devices, columns, ()), "Run `forebay smi` for sessions and states."]


def _queried(devices: Sequence[dict[str, str]], fields: Sequence[str], form: Sequence[str]) -> list[str]:
    names = [field.strip() for field in fields]
    units = {} if "nounits" in form else UNITS
    heading = ", ".join(f"{name} [{units[name]}]" if name in units else name for name in names)
    lines = [] if "noheader" in form else [heading]
    return lines + [", ".join(_value(device, name, units) for name in names) for device in devices]


def _value(device: dict[str, str], name: str, units: dict[str, str]) -> str:
    if name not in device:
        return NO_NUMBER if name.startswith(DRIVEN) else "[Not Supported]"
    value = device[name]
    return f"{value} {units[name]}" if name in units and value != NO_NUMBER else value


def _become_the_next(arguments: Sequence[str]) -> None:
    """As far as there is one: the vendor's own command, of a host that has GPUs."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which("nvidia-smi", path=folder or os.curdir)
        if found is not None and OURS not in Path(found).read_bytes()[:BEGINNING_BYTES]:
            os.execv(found, [found, *arguments])  # noqa: S606 becoming the command is the purpose


if __name__ == "__main__":
    sys.exit(perform(sys.argv[1:]))
