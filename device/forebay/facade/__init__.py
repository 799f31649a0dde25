"""``torch.cuda`` on a build of PyTorch without CUDA.

PyTorch's own Python code in ``torch.cuda`` stays; it is given the functions of ``torch._C`` that a CUDA build has (`driver`),
the base classes of streams and events (`streams`), and memory statistics (`memory`). What cannot have a meaning on a virtual
device is refused by name (`refusals`).
"""

from __future__ import annotations

from forebay.facade import compiling, driver, graphs, legacy_types, memory, profiling, recurrent, refusals, replication, storages, streams
from forebay.virtual_device import VirtualDevices


def install(devices: VirtualDevices) -> None:
    """Fits ``torch.cuda`` to the devices. Queries that follow open no lease."""
    driver.install(devices)
    memory.install(devices)
    streams.install()
    graphs.install()
    storages.install()
    legacy_types.install()
    replication.install()
    profiling.install()
    compiling.install()
    recurrent.install()
    refusals.install()
