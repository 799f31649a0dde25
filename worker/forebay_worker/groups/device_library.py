"""The library by which devices of several workers make collectives among themselves: PyTorch's own back ends for process groups.

The executor calls this (``worker/csrc/collectives/device_library.h``), and uses what is made by PyTorch's C++. NCCL stands for RCCL
too, which has its name in PyTorch's builds for ROCm. Gloo, over the loopback interface, serves tests on devices of the host.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import logging
import os
import socket
import struct
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

from forebay_worker import WorkerError
from forebay_worker.pytorch import SeenDevice, device_module

LOG = logging.getLogger("forebay.worker")

VARIABLE = "FOREBAY_WORKER_COLLECTIVES"
BYTES_VARIABLE = "FOREBAY_WORKER_COLLECTIVES_BYTES"
BYTES_MIN = 32_768
"""Below, waiting for each other and starting a library's kernel takes longer than the way over the hosts."""
LIBRARIES = {"cuda": "nccl", "hip": "nccl", "cpu": "gloo"}
"""By the kind of device."""
TIMEOUT = timedelta(minutes=30)
"""The executor gives up sooner, as its process group says."""
NCCL_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
}
"""PyTorch's threads would end the process where a collective takes too long; the executor gives it up instead."""
INTERFACE_VARIABLE = "NCCL_SOCKET_IFNAME"
SIOCGIFADDR = 0x8915
"""Of ``linux/sockios.h``: an interface's address."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class DeviceLibrary:
    """Back ends of one library for one device, by the names that the executor gives them."""

    def __init__(self, library: str, device: SeenDevice, bytes_min: int) -> None:
        self.bytes_min = bytes_min
        self.offer = f"{library}:{bytes_min}"
        """What all members of a process group must have alike."""
        self.place = "" if library == "gloo" else place_of(device)
        """The device, among those of all hosts; empty where several members may have the same one."""
        self._library = library
        self._device = device
        self._groups: dict[str, Any] = {}
        os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # the virtual device is not for this process
        self._torch: Any = importlib.import_module("torch")
        self._c10d: Any = importlib.import_module("torch._C._distributed_c10d")

    def begin(self, name: str, rank: int, size: int) -> None:
        """A process group without a back end, whose store the executor fills with what the other members write."""
        group = self._c10d.ProcessGroup(self._c10d.HashStore(), rank, size)
        self._groups[name] = group
        self._c10d._register_process_group(name, group)

    def open(self, name: str) -> None:
        """Gives it one. Returns when all members have. Raises RuntimeError."""
        group = self._groups[name]
        types, device = self._c10d.ProcessGroup.BackendType, self._torch.device(self._torch_device)
        if self._library == "gloo":
            group._register_backend(device, types.GLOO, self._gloo(group))
        else:
            group.bound_device_id = device
            group._register_backend(device, types.NCCL, self._nccl(group))
            group._get_backend(device).eager_connect_single_device(device)
        found = {"action": "collectives.open", "library": self._library}
        LOG.info("collectives are made by %s among %d devices", self._library, group.size(), extra=found)

    def end(self, name: str) -> None:
        """Forgets it; its back end was aborted."""
        if self._groups.pop(name, None) is not None:
            self._c10d._unregister_process_group(name)

    def decline(self, why: str) -> None:
        """Says so, once for a process group."""
        found = {"action": "collectives.decline", "library": self._library}
        LOG.warning("devices make no collectives by %s: %s", self._library, why, extra=found)

    @property
    def _torch_device(self) -> str:
        return "cpu" if self._device.kind == "cpu" else f"cuda:{self._device.index}"

    def _gloo(self, group: Any) -> Any:
        options = self._c10d.ProcessGroupGloo._Options()
        options._devices = [self._c10d.ProcessGroupGloo.create_device(interface="lo")]
        options._timeout = TIMEOUT
        return self._c10d.ProcessGroupGloo(group.get_group_store(), group.rank(), group.size(), options)

    def _nccl(self, group: Any) -> Any:
        options = self._c10d.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        return self._c10d.ProcessGroupNCCL(group.get_group_store(), group.rank(), group.size(), options)


def library_of(device: SeenDevice, listen: str | None) -> DeviceLibrary | None:
    """What the operator's settings choose for a device of a worker that listens there; None where collectives go by the hosts.

    Raises WorkerError.
    """
    chosen = os.environ.get(VARIABLE, "auto")
    if chosen not in ("auto", "host", *LIBRARIES.values()):
        raise WorkerError(f"{VARIABLE} is {chosen!r}; it takes auto, host, nccl or gloo")
    try:
        bytes_min = int(os.environ.get(BYTES_VARIABLE, BYTES_MIN))
    except ValueError:
        bytes_min = 0
    if bytes_min < 1:
        raise WorkerError(f"{BYTES_VARIABLE} is {os.environ[BYTES_VARIABLE]!r}; a number of bytes is needed, 1 or more")
    library = LIBRARIES.get(device.kind)
    if chosen == "host" or library is None or (chosen == "auto" and library == "gloo") or device.uuid.startswith("MIG-"):
        return None  # NCCL takes the parts of one GPU for the same device
    if chosen not in ("auto", library):
        raise WorkerError(f"{VARIABLE} is {chosen}, which is not for a device of the kind {device.kind}")
    if library == "nccl":
        if not is_nccl_there():
            found = {"action": "collectives.decline", "library": library}
            LOG.warning("this PyTorch has no NCCL, so collectives go by the hosts", extra=found)
            return None
        set_up_nccl(listen)
    return DeviceLibrary(library, device, bytes_min)


def is_nccl_there() -> bool:
    """Whether PyTorch was built with it, or with RCCL."""
    distributed: Any = importlib.import_module("torch.distributed")
    return bool(distributed.is_available() and distributed.is_nccl_available())


def set_up_nccl(listen: str | None) -> None:
    """Sets what NCCL reads of the environment, where the operator has not.

    It listens where other workers reach this one, and nowhere else.
    """
    for name, value in NCCL_SETTINGS.items():
        os.environ.setdefault(name, value)
    is_tcp = listen is not None and listen.startswith("tcp:")
    interface = interface_of(str(listen).split(":")[1]) if is_tcp else "lo"
    if interface is not None:
        os.environ.setdefault(INTERFACE_VARIABLE, f"={interface}")


def interface_of(host: str) -> str | None:
    """The interface that has the IPv4 address of a name; None where none has, as for an address that stands for all."""
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no such address
                request = struct.pack("256s", name.encode())
                if socket.inet_ntoa(fcntl.ioctl(asked, SIOCGIFADDR, request)[20:24]) == address:
                    return name
    return None


def place_of(device: SeenDevice) -> str:
    """A GPU, whatever its parts and the numbers that processes see it by: the host's boot, and the place on its bus.

    Where PyTorch does not tell the place, it is the GPU's own id.
    """
    found = device_module(device.kind).get_device_properties(device.index)
    bus = [getattr(found, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id")]
    where = device.uuid or uuid.uuid4().hex if None in bus else ":".join(f"{number:x}" for number in bus if number is not None)
    return f"{BOOT_ID.read_text().strip()}/{where}"
