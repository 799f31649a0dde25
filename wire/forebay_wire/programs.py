"""Programs that are compiled and carried out as a whole: ``docs/wire.md``, Whole programs."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_wire import _stream
from forebay_wire._stream import Reader, WireError, Writer

OPCODES = (45, 46, 47, 48)
ITEM_BYTES = {
    **dict.fromkeys((1, 2, 6, 16, 17, 18, 19, 20, 26, 27, 28), 1),
    **dict.fromkeys((3, 7, 10, 13), 2),
    **dict.fromkeys((4, 8, 11), 4),
    **dict.fromkeys((5, 9, 12, 14), 8),
    15: 16,
}
"""Bytes of an element, by its type: the numbers of ``PJRT_Buffer_Type``, of the PJRT C API."""


@dataclass(frozen=True)
class Placement:
    """The devices of a session that a program runs on, and how XLA divides it among them."""

    replicas: int = 1
    partitions: int = 1
    devices: tuple[int, ...] = (0,)
    """Those of a replica's partitions, one replica after the other."""
    by_partitioner: bool = False
    by_shardy: bool = False
    free_inputs: tuple[bool, ...] = (False,)
    """Whether XLA may choose how an array is divided: one for all, or one for each."""
    free_outputs: tuple[bool, ...] = (False,)


@dataclass(frozen=True)
class Program:
    """To be compiled under this number."""

    request: int
    program: int
    module: bytes
    """StableHLO, as a portable artifact or as MLIR bytecode."""
    placement: Placement = Placement()


@dataclass(frozen=True)
class Execute:
    program: int
    inputs: tuple[int, ...]
    """Storages."""
    outputs: tuple[int, ...]
    """New storages."""


@dataclass(frozen=True)
class ExecuteCalling:
    """Of a program that calls back."""

    request: int
    program: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Returned:
    """What a callback has returned."""

    arrays: tuple[bytes, ...] = ()
    failure: str | None = None
    """Why it has returned nothing."""


@dataclass(frozen=True)
class Callback:
    """The program of the request calls back, and waits for RETURNED."""

    request: int
    callback: int
    """As the program numbers it."""
    arrays: tuple[bytes, ...]


@dataclass(frozen=True)
class ProgramArray:
    """Dense, the last dimension fastest."""

    type: int
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Compiled:
    """The answer to a PROGRAM: what it takes and makes."""

    request: int
    name: str
    inputs: tuple[ProgramArray, ...]
    outputs: tuple[ProgramArray, ...]
    donated: tuple[int, ...]
    """Inputs that the program's caller gives up."""
    temporary_bytes: int
    """Of the device's memory, while it runs."""
    calls_back: bool = False
    """Functions of its client."""
    devices: int = 1
    """It takes inputs, and makes outputs, of each."""
    compiled: bytes = b""
    """Of several devices: the module as XLA has divided and compiled it."""


ProgramCommand = Program | Execute | ExecuteCalling | Returned


def put_program_command(out: Writer, command: ProgramCommand) -> None:
    """Appends the command with its opcode."""
    match command:
        case Program():
            out.u8(45)
            for number in (command.request, command.program):
                out.varint(number)
            _put_placement(out, command.placement)
            out.varint(len(command.module))
            out.raw(command.module)
        case Execute():
            out.u8(46)
            _put_execution(out, command)
        case ExecuteCalling():
            out.u8(47)
            out.varint(command.request)
            _put_execution(out, command)
        case Returned():
            out.u8(48)
            out.u8(command.failure is None)
            if command.failure is None:
                _put_bytes(out, command.arrays)
            else:
                out.string(command.failure)


def _put_placement(out: Writer, placement: Placement) -> None:
    for number in (placement.replicas, placement.partitions, *placement.devices):
        out.varint(number)
    out.u8(placement.by_partitioner)
    out.u8(placement.by_shardy)
    for flags in (placement.free_inputs, placement.free_outputs):
        out.varint(len(flags))
        out.raw(bytes(flags))


def _get_placement(reader: Reader) -> Placement:
    replicas = reader.bounded(_stream.PROGRAM_DEVICES_MAX, "the number of a program's replicas")
    partitions = reader.bounded(_stream.PROGRAM_DEVICES_MAX, "the number of a program's partitions")
    count = replicas * partitions
    if not 0 < count <= _stream.PROGRAM_DEVICES_MAX:
        raise WireError(f"a program for {count} devices")
    devices = tuple(reader.bounded(_stream.PROGRAM_DEVICES_MAX - 1, "the number of a program's device") for _ in range(count))
    if len(set(devices)) < count:
        raise WireError("a program has a device twice")
    return Placement(replicas, partitions, devices, bool(reader.u8()), bool(reader.u8()), _flags(reader), _flags(reader))


def _flags(reader: Reader) -> tuple[bool, ...]:
    return tuple(map(bool, reader.raw(reader.count(_stream.PROGRAM_ARRAYS_MAX, "the number of a program's arrays"))))


def _put_execution(out: Writer, command: Execute | ExecuteCalling) -> None:
    for number in (command.program, len(command.inputs), *command.inputs, len(command.outputs), *command.outputs):
        out.varint(number)


def _put_bytes(out: Writer, arrays: tuple[bytes, ...]) -> None:
    out.varint(len(arrays))
    for array in arrays:
        out.varint(len(array))
        out.raw(array)


def get_program_command(reader: Reader, opcode: int) -> ProgramCommand:
    """Reads what comes after the opcode. Raises WireError."""
    if opcode == 45:
        request, program, placement = reader.varint(), reader.varint(), _get_placement(reader)
        return Program(request, program, reader.raw(reader.count(_stream.PROGRAM_BYTES_MAX, "the size of a program")), placement)
    if opcode == 46:
        return Execute(reader.varint(), _numbers(reader), _numbers(reader))
    if opcode == 47:
        return ExecuteCalling(reader.varint(), reader.varint(), _numbers(reader), _numbers(reader))
    if reader.u8():
        return Returned(_get_bytes(reader))
    return Returned(failure=reader.string(_stream.MESSAGE_BYTES_MAX).decode(errors="replace"))


def put_callback(out: Writer, reply: Callback) -> None:
    """Appends the reply with its opcode."""
    out.u8(89)
    out.varint(reply.request)
    out.varint(reply.callback)
    _put_bytes(out, reply.arrays)


def get_callback(reader: Reader) -> Callback:
    """Reads what comes after the opcode. Raises WireError."""
    return Callback(reader.varint(), reader.varint(), _get_bytes(reader))


def put_compiled(out: Writer, reply: Compiled) -> None:
    """Appends the reply with its opcode."""
    out.u8(88)
    out.varint(reply.request)
    out.string(reply.name)
    out.varint(reply.devices)
    for arrays in (reply.inputs, reply.outputs):
        out.varint(len(arrays))
        for array in arrays:
            out.u8(array.type)
            for number in (len(array.sizes), *array.sizes):
                out.varint(number)
    for number in (len(reply.donated), *reply.donated, reply.temporary_bytes):
        out.varint(number)
    out.u8(reply.calls_back)
    out.varint(len(reply.compiled))
    out.raw(reply.compiled)


def get_compiled(reader: Reader) -> Compiled:
    """Reads what comes after the opcode. Raises WireError."""
    request, name = reader.varint(), reader.string().decode(errors="replace")
    devices = reader.bounded(_stream.PROGRAM_DEVICES_MAX, "the number of a program's devices")
    inputs, outputs, donated = _arrays(reader), _arrays(reader), _numbers(reader)
    if any(number >= len(inputs) for number in donated):
        raise WireError("a program gives up an input that it does not take")
    temporary, calls_back = reader.varint(), bool(reader.u8())
    compiled = reader.raw(reader.count(_stream.PROGRAM_BYTES_MAX, "the size of a compiled program"))
    return Compiled(request, name, inputs, outputs, donated, temporary, calls_back, devices, compiled)


def _get_bytes(reader: Reader) -> tuple[bytes, ...]:
    count = reader.count(_stream.PROGRAM_ARRAYS_MAX, "the number of a callback's arrays")
    return tuple(reader.raw(reader.count(_stream.CALLBACK_BYTES_MAX, "the size of a callback's array")) for _ in range(count))


def _numbers(reader: Reader) -> tuple[int, ...]:
    return tuple(reader.varint() for _ in range(reader.count(_stream.PROGRAM_ARRAYS_MAX, "the number of a program's arrays")))


def _arrays(reader: Reader) -> tuple[ProgramArray, ...]:
    return tuple(_array(reader) for _ in range(reader.count(_stream.PROGRAM_ARRAYS_MAX, "the number of a program's arrays")))


def _array(reader: Reader) -> ProgramArray:
    kind = reader.u8()
    if kind not in ITEM_BYTES:
        raise WireError(f"a program's array of unknown type {kind}")
    dims = reader.count(_stream.DIMS_MAX, "the number of dimensions")
    return ProgramArray(kind, tuple(reader.bounded(_stream.STORAGE_BYTES_MAX, "a size") for _ in range(dims)))
