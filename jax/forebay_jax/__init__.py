"""JAX on the virtual devices: ``jax.devices()`` are those of the same session that PyTorch uses.

Where a flavor is served by several devices, PyTorch has them together as one ``cuda:0``, and JAX has each: ``cuda:0``, ``cuda:1`` …

JAX finds this package by the entry point group ``jax_plugins`` and calls :func:`initialize`. The plug-in is a library in C++ behind the
PJRT C API. What it does on a device it has from ``forebay._C``, so both frameworks of a process share one session and one lease.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

PLATFORM = "cuda"
LIBRARY = Path(__file__).with_name("plugin.so")
TABLE = b"forebay.device_table"
INSTEAD = "Set JAX_PLATFORMS=cpu to compute on this machine's processor instead."
NOT_SET, OFF = "FOREBAY_URL is not set.", "It is off."


class NoVirtualDevice(RuntimeError):
    """There is no virtual device in this process, and JAX was not told to compute elsewhere."""

    def __init__(self, why: str) -> None:
        super().__init__(f"There is no virtual device for JAX in this process: {why} {INSTEAD}")


def initialize() -> None:
    """Registers the virtual devices as JAX's platform ``cuda``. What is wrong with them is raised where JAX first asks for a device: JAX
    passes over what this function raises, and would compute on the processor without a word."""
    from jax._src import hardware_utils, xla_bridge

    hardware_utils.has_visible_nvidia_gpu = lambda: True  # else JAX does not even ask the platform
    xla_bridge.register_plugin(PLATFORM, library_path=str(LIBRARY), options=options)


def options() -> dict[str, Any]:
    """What the plug-in is made with: where its functions are; and of each session the kind of its devices, and how many they are. Raises
    NoVirtualDevice, ForebayError."""
    table = device_table()
    import torch
    from forebay import _C, process

    from forebay_jax import callbacks, lowering

    lowering.follow_device(PLATFORM, _C.is_processor)
    callbacks.follow_device(PLATFORM)
    _C.answer_callbacks(callbacks.answer)
    told: dict[str, Any] = {"table": table}
    for index in range(torch.cuda.device_count()):
        told[f"kind_{index}"] = torch.cuda.get_device_name(index)
        told[f"places_{index}"] = process.installed.devices_behind(index) if process.installed is not None else 1
    return told


def device_table() -> int:
    """The address of ``forebay._C``'s functions. Raises NoVirtualDevice."""
    import torch  # noqa: F401 activates the virtual device
    from forebay import process

    if process.installed is None:
        raise NoVirtualDevice(process.failure or (OFF if os.environ.get("FOREBAY_URL", "").strip() else NOT_SET))
    from forebay import _C

    process.installed.take_programs()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(pointer(_C.device_table(), TABLE))
