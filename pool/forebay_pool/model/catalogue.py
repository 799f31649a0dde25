"""The accelerators that flavors are made for: one table, of which default flavors, suggestions and the operators' guide are made.

What serves a flavor is a rule, and no entry of its own: see :func:`way_of`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from forebay_pool.model.types import WHOLE_MILLI, Equivalent

MIB = 2**20
SHARES_MILLI = (125, 250, 500, WHOLE_MILLI)
"""Parts of one device that are lent, the smallest first."""
NEAR = 0.1
"""A device is of a model if its memory is so near to the data sheet's: PyTorch sees up to 9 % less; parts of a device have half of it."""
OTHER_PRODUCTS = frozenset({"MIG", "D", "TI", "SUPER", "LAPTOP"})
"""Words in a driver's name that make it another device than the one whose name it bears too."""
CARDS_MAX = 8
"""Cards that one server holds: those without a link of their own to others serve nothing larger."""


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A model of accelerators."""

    name: str
    """As equivalents name it."""
    data_sheet_gb: int
    memory_mib: int
    """What the driver says that one has, with error correction where that takes memory."""
    words: frozenset[str]
    """Words, in capitals, by which a driver's name for the accelerator is known."""
    together_max: int | None
    """How many may serve a flavor together; None: any number."""
    source: str
    """Where the vendor says how much memory it has."""


_AMD = "https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html"
_A100 = "https://www.nvidia.com/content/dam/en-zz/Solutions/Data-Center/a100/pdf/nvidia-a100-datasheet-us-nvidia-1758950-r4-web.pdf"
_DATA_CENTER = "https://www.nvidia.com/en-us/data-center/"
_GEFORCE = "https://www.nvidia.com/en-us/geforce/graphics-cards/"
_WORKSTATIONS = "https://www.nvidia.com/en-us/products/workstations/"


def _row(name: str, data_sheet_gb: int, memory_mib: int, words: str, together_max: int | None, source: str) -> Accelerator:
    return Accelerator(name, data_sheet_gb, memory_mib, frozenset(words.split()), together_max, source)


ACCELERATORS = (
    _row("MI250-die", 64, 65_520, "MI250", 1, _AMD),
    _row("MI250", 128, 131_040, "MI250", None, _AMD),
    _row("MI210", 64, 65_520, "MI210", None, _AMD),
    _row("MI300X", 192, 196_592, "MI300X", None, _AMD),
    _row("MI325X", 256, 262_128, "MI325X", None, _AMD),
    _row("B200", 180, 183_359, "B200", None, f"{_DATA_CENTER}dgx-b200/"),
    _row("H200", 141, 143_771, "H200", None, f"{_DATA_CENTER}h200/"),
    _row("H100", 80, 81_559, "H100", None, f"{_DATA_CENTER}h100/"),
    _row("H100-NVL", 94, 95_830, "H100 NVL", CARDS_MAX, f"{_DATA_CENTER}h100/"),
    _row("A100-80GB", 80, 81_920, "A100", None, _A100),
    _row("A100-40GB", 40, 40_960, "A100", None, _A100),
    _row("L40S", 48, 46_068, "L40S", CARDS_MAX, f"{_DATA_CENTER}l40s/"),
    _row("L4", 24, 23_034, "L4", CARDS_MAX, f"{_DATA_CENTER}l4/"),
    _row("A10", 24, 23_028, "A10", CARDS_MAX, f"{_DATA_CENTER}products/a10-gpu/"),
    _row("RTX-PRO-6000", 96, 97_887, "RTX PRO 6000", CARDS_MAX, f"{_WORKSTATIONS}professional-desktop-gpus/rtx-pro-6000/"),
    _row("RTX-6000-Ada", 48, 46_068, "RTX 6000 ADA", CARDS_MAX, f"{_WORKSTATIONS}rtx-6000/"),
    _row("RTX-A6000", 48, 46_068, "RTX A6000", CARDS_MAX, f"{_WORKSTATIONS}rtx-a6000/"),
    _row("RTX-5090", 32, 32_607, "RTX 5090", CARDS_MAX, f"{_GEFORCE}50-series/rtx-5090/"),
    _row("RTX-4090", 24, 24_564, "RTX 4090", CARDS_MAX, f"{_GEFORCE}40-series/rtx-4090/"),
    _row("RTX-3090", 24, 24_576, "RTX 3090", CARDS_MAX, f"{_GEFORCE}30-series/rtx-3090-3090ti/"),
)


def accelerator_of(told: str, memory_bytes: int) -> Accelerator | None:
    """The one that a driver, or an operator, calls so; None where the table has none that does, and that has about so much memory.

    Memory tells an A100 of 40 GB from one of 80, a die from its card, and a part of a device from the whole, whose name it bears.
    """
    words = frozenset(re.findall(r"[A-Z0-9]+", told.upper()))
    if words & OTHER_PRODUCTS:
        return None
    found = [one for one in ACCELERATORS if one.words <= words and abs(memory_bytes / (one.data_sheet_gb * 1024 * MIB) - 1) <= NEAR]
    return max(found, key=lambda one: len(one.words), default=None)


def name_of(told: str, memory_bytes: int) -> str:
    """What equivalents call the device: as the table does, else as its driver does."""
    found = accelerator_of(told, memory_bytes)
    return told if found is None else found.name


def way_of(model: str, device_bytes: int, together_max: int | None, memory_bytes: int) -> Equivalent | None:
    """What of the model serves so much memory: the smallest share of one device that holds it, else the fewest whole ones together.

    None where it takes more than ``together_max``.
    """
    for share_milli in SHARES_MILLI:
        if device_bytes * share_milli >= memory_bytes * WHOLE_MILLI:
            return Equivalent(model, 1, share_milli)
    count = -(-memory_bytes // device_bytes)
    return Equivalent(model, count) if together_max is None or count <= together_max else None


def ways_of(memory_bytes: int) -> tuple[Equivalent, ...]:
    """What of all accelerators serves so much memory."""
    found = (way_of(one.name, one.memory_mib * MIB, one.together_max, memory_bytes) for one in ACCELERATORS)
    return tuple(way for way in found if way is not None)
