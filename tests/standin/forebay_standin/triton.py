"""Kernels of programs on the stand-in: Triton's intermediate representation, interpreted. As much of it as the tests' kernels need.

A launch is a job of the stream like any other, so it comes later, in its order, and must wait for what it uses. An address outside of the
tensors that the kernel was given costs the device, as on a GPU.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import operator
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_size_t)
NUMBERS = {"i1": "?", "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f16": "e", "f32": "f", "f64": "d"}
DTYPES = {
    "i1": np.bool_,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}
LINE = re.compile(r"(?:(?P<result>%[\w]+) = )?(?P<name>[a-z]+\.[\w.]+|\"tt\.reduce\")\s*(?P<rest>.*)")
VALUE = re.compile(r"%\w+")
COMPARES = {
    "slt": operator.lt,
    "sle": operator.le,
    "sgt": operator.gt,
    "sge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
    "olt": operator.lt,
    "ogt": operator.gt,
}
PLAIN: dict[str, Callable[..., Any]] = {
    "arith.addi": operator.add, "arith.subi": operator.sub, "arith.muli": operator.mul, "arith.andi": operator.and_,
    "arith.addf": operator.add, "arith.subf": operator.sub, "arith.mulf": operator.mul, "arith.divf": operator.truediv,
    "arith.maxnumf": np.maximum, "arith.maximumf": np.maximum, "math.exp": np.exp,
    "arith.select": np.where, "tt.addptr": lambda pointer, offset: pointer.moved(offset),
}  # fmt: skip


class Pointers:
    """Addresses, one or a block of them, and the kind of number that lies there."""

    def __init__(self, addresses: Any, kind: str) -> None:
        self.addresses, self.kind = addresses, kind

    def moved(self, offset: Any) -> Pointers:
        return Pointers(self.addresses + np.asarray(offset, np.int64) * np.dtype(DTYPES[self.kind]).itemsize, self.kind)


def number_of(text: str) -> Any:
    """A constant as it is written: ``1024 : i32``, ``dense<0.0> : tensor<8xf32>``, ``0xFF800000 : f32``."""
    value, _, kind = text.partition(" : ")
    shape: tuple[int, ...] = ()
    if value.startswith("dense<"):
        value = value[len("dense<") : -1]
        *sizes, kind = kind[len("tensor<") : -1].split("x")
        shape = tuple(map(int, sizes))
    if value in ("true", "false"):
        return np.full(shape, value == "true")
    if value.startswith("0x") and kind == "f32":
        return np.full(shape, struct.unpack(">f", bytes.fromhex(value[2:].zfill(8)))[0], np.float32)
    return np.full(shape, float(value) if "f" in kind else int(value), DTYPES[kind])


class Program:
    """One kernel, ready to be interpreted."""

    def __init__(self, text: str, name: str) -> None:
        text = re.sub(r" loc\((?:#\w+|\"[^\"]*\"\(#\w+\)|unknown|[^()]*)\)", "", text)
        head = re.search(rf"tt\.func public @{name}\((.*)\)(?: attributes \{{.*?\}})? \{{\n", text)
        assert head is not None, text
        self.parameters = re.findall(r"(%\w+): (!tt\.ptr<\w+>|\w+)", head[1])
        body = text[head.end() :]
        self.lines = [found for line in body[: body.index("tt.return")].splitlines() if (found := LINE.match(line.strip()))]

    def run(self, program: tuple[int, int, int], parameters: bytes, memory: Memory) -> None:
        values: dict[str, Any] = {}
        place = 0
        for parameter, kind in self.parameters:
            form = "q" if kind.startswith("!tt.ptr") else NUMBERS[kind]
            place = -(-place // struct.calcsize(form)) * struct.calcsize(form)
            (value,) = struct.unpack_from("=" + form, parameters, place)
            place += struct.calcsize(form)
            values[parameter] = (
                Pointers(np.int64(value), kind[len("!tt.ptr<") : -1]) if form == "q" and kind[0] == "!" else DTYPES[kind](value)
            )
        lines = iter(self.lines)
        for line in lines:
            made = self._carry_out(
                line["name"], line["rest"], [values[one] for one in VALUE.findall(line["rest"]) if one in values], program, memory, lines
            )
            if line["result"]:
                values[line["result"]] = made

    def _carry_out(self, name: str, rest: str, given: list[Any], program: tuple[int, int, int], memory: Memory, lines: Any) -> Any:
        if name in PLAIN:
            return PLAIN[name](*given)
        match name:
            case "arith.constant":
                return number_of(rest)
            case "tt.get_program_id":
                return np.int32(program["xyz".index(rest[0])])
            case "tt.make_range":
                end, start = (int(re.search(rf"{key} = (\d+)", rest)[1]) for key in ("end", "start"))  # type: ignore[index]
                return np.arange(start, end, dtype=np.int32)
            case "tt.splat":
                sizes = tuple(map(int, re.search(r"-> tensor<((?:\d+x)+)", rest)[1].rstrip("x").split("x")))  # type: ignore[index]
                (value,) = given
                return Pointers(np.full(sizes, value.addresses), value.kind) if isinstance(value, Pointers) else np.full(sizes, value)
            case "arith.cmpi" | "arith.cmpf":
                return COMPARES[rest.split(",")[0]](*given)
            case "arith.extf" | "arith.truncf" | "arith.extsi" | "arith.sitofp":
                return given[0].astype(DTYPES[re.search(r" to (?:tensor<(?:\d+x)+)?(\w+)", rest)[1]])  # type: ignore[index]
            case "tt.load":
                return memory.load(*given)
            case "tt.store":
                return memory.store(*given)
            case '"tt.reduce"':
                inner = next(lines)["name"]
                assert next(lines)["name"] == "tt.reduce.return"
                return {"arith.addf": np.add, "arith.maxnumf": np.maximum, "arith.maximumf": np.maximum}[inner].reduce(given[0])
        raise NotImplementedError(f"standin: {name} in a kernel")


class Memory:
    """What a kernel may touch: the allocations that it was given addresses of."""

    def __init__(self, library: ctypes.CDLL, addresses: list[int]) -> None:
        self._library = library
        self._ranges = []
        for address in addresses:
            size = ctypes.c_size_t()
            begin = library.standin_allocation(ctypes.c_void_p(address), ctypes.byref(size))
            self._ranges.append((begin or 0, size.value))

    def load(self, pointers: Pointers, mask: Any = True, other: Any = 0) -> Any:
        loaded = np.zeros(np.shape(pointers.addresses), DTYPES[pointers.kind])
        loaded[...] = other
        for place, address in self._places(pointers, mask):
            loaded[place] = struct.unpack("=" + NUMBERS[pointers.kind], self._bytes(address, pointers.kind))[0]
        return loaded

    def store(self, pointers: Pointers, values: Any, mask: Any = True) -> None:
        written = np.broadcast_to(values, np.shape(pointers.addresses))
        for place, address in self._places(pointers, mask):
            self._bytes(address, pointers.kind)[:] = struct.pack("=" + NUMBERS[pointers.kind], written[place].item())

    def _places(self, pointers: Pointers, mask: Any) -> Any:
        masked = np.broadcast_to(mask, np.shape(pointers.addresses))
        return ((place, int(pointers.addresses[place])) for place in np.ndindex(np.shape(pointers.addresses)) if masked[place])

    def _bytes(self, address: int, kind: str) -> Any:
        size = struct.calcsize("=" + NUMBERS[kind])
        if not any(begin <= address and address + size <= begin + length for begin, length in self._ranges):
            raise IndexError("standin: an illegal memory access was encountered")
        return memoryview((ctypes.c_char * size).from_address(self._library.standin_shadow(ctypes.c_void_p(address)))).cast("B")


class Kernels:
    """What a worker asks of an out-of-tree back end: ``forebay_worker.user_code.kernels.KernelDriver``."""

    target = ("cuda", 80, 32)
    form = "ttir"

    def __init__(self, library: ctypes.CDLL, fault: str) -> None:
        self._library = library
        self._fault = fault
        self._jobs: dict[int, Callable[[], None]] = {}
        self._numbers = itertools.count()
        self._call = CALL(self._carry_out)

    def refused(self) -> str:
        return self._fault

    def load(self, kernel: Any) -> Callable[[tuple[int, int, int], bytes], None]:
        program = Program(kernel.binary.decode(), kernel.name)
        return lambda grid, parameters: self._launch(program, grid, parameters)

    def _launch(self, program: Program, grid: tuple[int, int, int], parameters: bytes) -> None:
        addresses, place = [], 0
        for _, kind in program.parameters:
            size = 8 if kind.startswith("!") else struct.calcsize("=" + NUMBERS[kind])
            place = math.ceil(place / size) * size
            if kind.startswith("!"):
                addresses.append(struct.unpack_from("=q", parameters, place)[0])
            place += size
        memory, number = Memory(self._library, addresses), next(self._numbers)

        def run() -> None:
            for x, y, z in itertools.product(*map(range, grid)):
                program.run((x, y, z), parameters, memory)

        self._jobs[number] = run
        given = (ctypes.c_void_p * len(addresses))(*addresses)
        said = self._library.standin_launch(self._call, ctypes.c_size_t(number), given, ctypes.c_size_t(len(addresses)))
        if said is not None:
            raise RuntimeError(ctypes.string_at(said).decode())

    def _carry_out(self, number: int) -> int:
        try:
            self._jobs.pop(number)()
        except IndexError:
            return 1
        return 0
