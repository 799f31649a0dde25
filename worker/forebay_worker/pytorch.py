"""This interpreter's PyTorch: which build it is, which devices it sees, and the executor over its libraries.

``import torch`` takes more than a second; a worker on the host needs the C++ libraries alone, so they are loaded by themselves.
"""

from __future__ import annotations

import ctypes
import importlib.util
import runpy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from forebay_worker.errors import DeviceUnknown, WorkerError

LIBRARIES = ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so", "libtorch.so")
"""In the order they need each other."""


@dataclass(frozen=True)
class Build:
    """What ``torch.version`` says."""

    folder: Path
    version: str
    cuda: str | None
    hip: str | None

    @property
    def accelerator(self) -> str | None:
        """The kind of accelerator this build has kernels for."""
        if self.hip:
            return "hip"
        return "cuda" if self.cuda else None


@dataclass(frozen=True)
class SeenDevice:
    """One device, as ``--describe`` prints it."""

    device: str
    kind: str
    model: str
    memory_bytes: int
    uuid: str = ""
    """The accelerator's unique id, as far as PyTorch knows it."""

    @property
    def index(self) -> int:
        """The device's number among those of its kind."""
        return int(self.device.partition(":")[2])


@cache
def build() -> Build:
    """The installed build, found without importing it. Raises WorkerError where there is none."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise WorkerError("this interpreter has no PyTorch; install torch 2.11 or newer, or set worker_python to one that has it")
    folder = Path(spec.origin).parent
    version = runpy.run_path(str(folder / "version.py"))
    return Build(folder, version["__version__"], version.get("cuda"), version.get("hip"))


def load_executor(kind: str) -> ModuleType:
    """The C++ executor; for an accelerator ``torch`` itself is imported too, since it loads the vendor's libraries."""
    if kind in ("cuda", "hip"):
        importlib.import_module("torch")
    else:
        for library in LIBRARIES:
            ctypes.CDLL(str(build().folder / "lib" / library), ctypes.RTLD_GLOBAL)
    return importlib.import_module("forebay_worker._executor")


def seen_devices() -> list[SeenDevice]:
    """All devices a worker can be started on, the accelerators first."""
    return [*accelerators(), *seen_devices_of_host()]


def accelerators() -> list[SeenDevice]:
    """The accelerators this build sees; none on a host without, or with a build for the host alone."""
    kind = build().accelerator
    if kind is None:
        return []
    cuda = importlib.import_module("torch").cuda
    if not cuda.is_available():
        return []
    properties = [cuda.get_device_properties(index) for index in range(cuda.device_count())]
    return [
        SeenDevice(f"{kind}:{index}", kind, found.name, found.total_memory, str(getattr(found, "uuid", "")))
        for index, found in enumerate(properties)
    ]


def host_memory_bytes() -> int:
    """Physical memory of this host."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise WorkerError("/proc/meminfo does not say how much memory this host has")


def find_device(name: str) -> SeenDevice:
    """The device of that name, as in ``cuda:0``. Raises DeviceUnknown."""
    kind, _, index = name.partition(":")
    if kind in ("cpu", "null") and index == "0":
        return next(device for device in seen_devices_of_host() if device.device == name)
    known = {device.device: device for device in accelerators()} if kind in ("cuda", "hip") else {}
    if name not in known:
        names = ", ".join([*known, "cpu:0", "null:0"])
        raise DeviceUnknown(f"there is no device {name!r} for PyTorch {build().version}; it sees {names}")
    return known[name]


def seen_devices_of_host() -> list[SeenDevice]:
    """The devices that need no accelerator."""
    memory = host_memory_bytes()
    return [SeenDevice("cpu:0", "cpu", "cpu-dev", memory), SeenDevice("null:0", "null", "null", memory)]


def limit_accelerator_memory(device: SeenDevice, limit_bytes: int) -> None:
    """Makes the accelerator's own allocator refuse more than the flavor's share of the device, temporaries included."""
    if device.kind not in ("cuda", "hip"):
        return
    cuda = importlib.import_module("torch").cuda
    fraction = min(1.0, limit_bytes / device.memory_bytes)
    cuda.set_per_process_memory_fraction(fraction, device.index)
