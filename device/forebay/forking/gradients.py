"""Lets a forked process compute gradients.

PyTorch refuses that in a child of a process that has computed some on a device, since its threads for devices are gone there. It makes its
engine anew in a child all the same. What keeps it from computing is a flag, for which there is no function, and that threads are started
once. The flag's place is in the symbols of PyTorch's library, unless those were stripped.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from functools import cache
from pathlib import Path

import torch

from forebay import _C

LIBRARY = "libtorch_cpu.so"
FLAGS = tuple(f"\0_ZN5torch8autograd12_GLOBAL__N_1{local}20in_bad_autograd_forkE\0".encode() for local in ("L", ""))
"""Its names, as GCC and as Clang have them, between the ends of strings."""
SYMBOLS = 2
"""The type of the section with all symbols, local ones too (ELF, SHT_SYMTAB)."""
SECTION, SYMBOL_BYTES = struct.Struct("<IIQQQQIIQQ"), 24


@cache
def flag_address() -> int | None:
    """Where the flag is in this process and its children; None where nobody can say."""
    path = Path(torch.__file__).parent / "lib" / LIBRARY
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
            value = _value_in(image)
        base = _base_of(path.resolve())
    except (OSError, ValueError, struct.error):
        return None
    return None if value is None or base is None else base + value


def allow() -> None:
    """In a child."""
    address = flag_address()
    if address is not None:
        flag = ctypes.c_uint8.from_address(address)
        if flag.value == 1:
            flag.value = 0
            _C.restart_backwards()


def _value_in(image: mmap.mmap) -> int | None:
    """The flag's address, from where the library is loaded."""
    if image[:6] != b"\x7fELF\x02\x01":
        return None
    (offset,), (size, count) = struct.unpack_from("<Q", image, 40), struct.unpack_from("<HH", image, 58)
    sections = [SECTION.unpack_from(image, offset + size * place) for place in range(count)]
    for _, kind, _, _, begin, length, link, _, _, _ in sections:
        if kind == SYMBOLS:
            names, names_length = sections[link][4], sections[link][5]
            found = [place for flag in FLAGS if (place := image.find(flag, names, names + names_length)) >= 0]
            return _symbol_of(image, found[0] + 1 - names, begin, begin + length) if found else None
    return None


def _symbol_of(image: mmap.mmap, name: int, begin: int, end: int) -> int | None:
    wanted, place = struct.pack("<I", name), begin - 1
    while (place := image.find(wanted, place + 1, end)) >= 0:
        if (place - begin) % SYMBOL_BYTES == 0:
            return int(struct.unpack_from("<Q", image, place + 8)[0])
    return None


def _base_of(library: Path) -> int | None:
    """Where this process has loaded it."""
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        where, _, offset, _, _, *name = line.split(maxsplit=5)
        if name == [str(library)] and int(offset, 16) == 0:
            return int(where.partition("-")[0], 16)
    return None
