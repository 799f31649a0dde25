"""Kernels that a program brings of its own, and their launches: ``docs/wire.md``, Kernels of programs."""

from __future__ import annotations

from forebay_wire import _stream
from forebay_wire._stream import Reader, WireError, Writer
from forebay_wire.vocabulary import Kernel, KernelCommand, KernelSource, Launch, Pointer

OPCODES = (36, 37)
GRID_MAX = 2**31 - 1
"""Of each of a grid's sizes."""
WARPS_MAX, STAGES_MAX, BLOCKS_MAX, REGISTERS_MAX = 64, 64, 16, 255


def put_kernel_command(out: Writer, command: KernelCommand) -> None:
    """Appends the command with its opcode."""
    match command:
        case Kernel():
            out.u8(36)
            out.varint(command.request)
            out.varint(command.kernel)
            put_source(out, command.source)
        case Launch():
            out.u8(37)
            for number in (command.kernel, *command.grid, len(command.arguments)):
                out.varint(number)
            for argument in command.arguments:
                _put_argument(out, argument)


def put_source(out: Writer, source: KernelSource) -> None:
    """Appends what is the same wherever the kernel goes."""
    out.string(source.compiler)
    for number in (source.warps, source.stages, source.blocks, source.registers_max):
        out.varint(number)
    out.u8(source.fuses)
    out.varint(len(source.representation))
    out.raw(source.representation)


def get_kernel_command(reader: Reader, opcode: int) -> KernelCommand:
    """Reads what comes after the opcode. Raises WireError."""
    if opcode == 36:
        return Kernel(reader.varint(), reader.varint(), get_source(reader))
    kernel = reader.varint()
    x, y, z = (reader.bounded(GRID_MAX, "the size of a grid") for _ in range(3))
    count = reader.count(_stream.ARGUMENTS_MAX, "the number of a kernel's arguments")
    return Launch(kernel, (x, y, z), tuple(_argument(reader) for _ in range(count)))


def get_source(reader: Reader) -> KernelSource:
    """What :func:`put_source` appended. Raises WireError."""
    compiler = reader.string().decode("ascii", "replace")
    warps, stages = reader.bounded(WARPS_MAX, "the number of warps"), reader.bounded(STAGES_MAX, "the number of stages")
    blocks, registers = reader.bounded(BLOCKS_MAX, "the blocks of a cluster"), reader.bounded(REGISTERS_MAX, "the registers of a thread")
    fuses = bool(reader.u8())
    size = reader.count(_stream.KERNEL_BYTES_MAX, "the size of a kernel")
    return KernelSource(compiler, warps, stages, blocks, registers, fuses, reader.raw(size))


def _put_argument(out: Writer, argument: Pointer | int) -> None:
    out.u8(isinstance(argument, Pointer))
    if isinstance(argument, Pointer):
        out.varint(argument.storage)
        out.varint(argument.offset_bytes)
    else:
        out.u64(argument)


def _argument(reader: Reader) -> Pointer | int:
    match reader.u8():
        case 0:
            return reader.u64()
        case 1:
            return Pointer(reader.varint(), reader.bounded(_stream.STORAGE_BYTES_MAX, "an offset"))
    raise WireError("an argument of a kernel of unknown kind")
