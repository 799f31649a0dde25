"""Monitors such as nvitop and wandb see the virtual devices: they find a library of ours where they look for NVIDIA's.

``csrc/monitoring`` is the library. It shows what the person's processes on this host publish of their devices, and nothing else.
Where the host has NVIDIA's own, that one stays.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SEARCH_VARIABLE = "LD_LIBRARY_PATH"
OWN_SYMBOL = "forebay_monitoring"
"""What our library has and NVIDIA's has not."""
_kept: list[Any] = []
"""What the library calls, for as long as this process runs."""


def folder() -> Path | None:
    """Where our library is; None where this package was built without one."""
    places = sorted(Path(__file__).parents[1].glob(f"torch_*/monitoring/{LIBRARY}"))
    return places[0].parent if places else None


def found() -> ctypes.CDLL | None:
    """The library that monitors find without us."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError:
        return None


def is_shadowed() -> bool:
    """Whether programs that look for NVIDIA's GPUs are shown virtual devices."""
    library = found()
    return library is not None and hasattr(library, OWN_SYMBOL)


def offer(environment: MutableMapping[str, str]) -> None:
    """Has programs with this environment find our library, where they would find none."""
    place = folder()
    if place is None or found() is not None:
        return
    environment[SEARCH_VARIABLE] = os.pathsep.join(filter(None, [environment.get(SEARCH_VARIABLE), str(place)]))


def withhold(environment: MutableMapping[str, str]) -> None:
    """Takes our library away from programs that look for GPUs of this host."""
    kept = [path for path in environment.get(SEARCH_VARIABLE, "").split(os.pathsep) if path and Path(path) != folder()]
    if SEARCH_VARIABLE in environment:
        environment[SEARCH_VARIABLE] = os.pathsep.join(kept)


def show(learn: Callable[[int], object]) -> None:
    """Has this process and its children find our library, where they would find none.

    ``learn`` asks for the flavor of a device of this process, which the library wants when somebody asks it first.
    """
    offer(os.environ)
    place = folder()
    library = found() or (ctypes.CDLL(str(place / LIBRARY)) if place is not None else None)  # which is then found by its name
    if library is None or not hasattr(library, OWN_SYMBOL):
        return

    def quietly(device: int) -> None:
        try:
            learn(device)
        except Exception:  # noqa: S110 a monitor is told that there is no number
            pass

    function = ctypes.CFUNCTYPE(None, ctypes.c_int)(quietly)
    _kept.append(function)
    getattr(library, OWN_SYMBOL)(function)


def leave() -> None:
    """The interpreter ends: the library calls it no longer."""
    library = found() if _kept else None
    if library is not None:
        getattr(library, OWN_SYMBOL)(None)
