"""This interpreter's PyTorch: which build it is, which devices it sees, and the executor over its libraries.

``import torch`` takes more than a second; a worker on the host needs the C++ libraries alone, so they are loaded by themselves.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import runpy
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from forebay_worker import DeviceUnknown, WorkerError

LIBRARIES = ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so", "libtorch.so")
"""In the order they need each other."""

SPINS = "20000"
"""How often a thread of an operator looks whether the others are done before it sleeps (libgomp's ``GOMP_SPINCOUNT``).

libgomp's own 300,000 keep a processor for milliseconds. Where other programs want processors too, the kernel puts two threads of a
worker on one, and each operator then waits that long for a thread which the waiting itself keeps from running.
"""
GROWING_SEGMENTS = "expandable_segments:True"
"""Of CUDA's allocator (``PYTORCH_CUDA_ALLOC_CONF``): with them what is free within a flavor's limit serves a large tensor, however many
small ones lie between. PyTorch leaves them off since not every program may share such memory with others, which no worker does."""
HOST_KINDS = ("cpu", "null")
AUTOLOAD_GROUP = "torch.backends"
"""``import torch`` loads the back ends that are installed under this group of entry points."""
OWN_BACKEND = "forebay"
"""Ours in that group, the virtual device: no device that a worker computes on."""


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


def set_up_libraries(kind: str) -> None:
    """Sets what libraries read of the environment when they are loaded, where the operator has not: to be called before they are."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    if kind == "cuda" and "PYTORCH_ALLOC_CONF" not in os.environ:
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", GROWING_SEGMENTS)


def load_executor(kind: str) -> ModuleType:
    """The C++ executor; for an accelerator ``torch`` itself is imported too, since it loads the vendor's libraries."""
    set_up_libraries(kind)
    if kind not in HOST_KINDS:
        importlib.import_module("torch")
    else:
        for library in LIBRARIES:
            ctypes.CDLL(str(build().folder / "lib" / library), ctypes.RTLD_GLOBAL)
    return importlib.import_module("forebay_worker._executor")


def seen_devices() -> list[SeenDevice]:
    """All devices a worker can be started on, the accelerators first."""
    return [*accelerators(), *seen_devices_of_host()]


def accelerators() -> list[SeenDevice]:
    """The accelerators this build sees, by its own kernels and by out-of-tree back ends; none on a host without either."""
    return [device for kind in (build().accelerator, extension()) if kind is not None for device in _accelerators(kind)]


@cache
def extension() -> str | None:
    """The name under which an installed out-of-tree back end has registered itself; None where none is installed."""
    if all(entry.name == OWN_BACKEND for entry in entry_points(group=AUTOLOAD_GROUP)):
        return None  # known without the second that importing torch takes
    torch: Any = importlib.import_module("torch")
    name = str(torch._C._get_privateuse1_backend_name())
    return name if hasattr(torch, name) else None  # without a back end it is "privateuseone"


def _accelerators(kind: str) -> list[SeenDevice]:
    module = device_module(kind)
    if not module.is_available():
        return []
    properties = [module.get_device_properties(index) for index in range(module.device_count())]
    return [
        SeenDevice(f"{kind}:{index}", kind, found.name, found.total_memory, str(getattr(found, "uuid", "")))
        for index, found in enumerate(properties)
    ]


def device_module(kind: str) -> Any:
    """What PyTorch offers for devices of a kind, as ``torch.cuda``; ROCm's builds use that name too."""
    return importlib.import_module("torch").get_device_module("cuda" if kind == "hip" else kind)


def host_memory_bytes() -> int:
    """Physical memory of this host."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) * 1024
    raise WorkerError("/proc/meminfo does not say how much memory this host has")


def find_device(name: str) -> SeenDevice:
    """The device of that name, as in ``cuda:0``. Raises DeviceUnknown."""
    kind, _, index = name.partition(":")
    set_up_libraries(kind)
    if kind in HOST_KINDS and index == "0":
        return next(device for device in seen_devices_of_host() if device.device == name)
    known = {} if kind in HOST_KINDS else {device.device: device for device in accelerators()}
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
    if device.kind in HOST_KINDS:
        return
    fraction = min(1.0, limit_bytes / device.memory_bytes)
    device_module(device.kind).set_per_process_memory_fraction(fraction, device.index)
