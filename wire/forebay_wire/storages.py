"""Commands that make, change, read and free storages, kernels of programs that do so too, and what else is numbers alone.

:mod:`forebay_wire.stream` puts them into frames.
"""

from __future__ import annotations

from forebay_wire import _stream
from forebay_wire._stream import CHUNK_BYTES_MAX, SHARED_BYTES_MAX, Reader, WireError, Writer
from forebay_wire.images import COMMAND_OPCODES as IMAGE_OPCODES
from forebay_wire.images import (
    Checkpoint,
    DropCheckpoint,
    GoBack,
    ImageCommand,
    Keep,
    Restore,
    TellCheckpoints,
    TracesPart,
    get_image_command,
    put_image_command,
)
from forebay_wire.kernels import OPCODES as KERNEL_OPCODES
from forebay_wire.kernels import get_kernel_command, put_kernel_command
from forebay_wire.programs import OPCODES as PROGRAM_OPCODES
from forebay_wire.programs import Execute, ExecuteCalling, Program, ProgramCommand, Returned, get_program_command, put_program_command
from forebay_wire.vocabulary import (
    Allocate,
    Command,
    Copy,
    Free,
    Heard,
    Kernel,
    KernelCommand,
    Launch,
    Leave,
    Limit,
    Mark,
    Read,
    ReadShared,
    Resize,
    Share,
    StorageCommand,
    Sync,
    Write,
    WriteShared,
)


def put_storage_command(out: Writer, command: StorageCommand | KernelCommand | ProgramCommand | ImageCommand) -> None:
    match command:
        case Allocate():
            put_numbers(out, 6, command.storage, command.bytes)
        case Resize():
            put_numbers(out, 7, command.storage, command.bytes)
        case Free():
            put_numbers(out, 8, len(command.storages), *command.storages)
        case Write():
            put_numbers(out, 9, command.storage, command.offset_bytes, len(command.data))
            out.raw(command.data)
        case Read():
            put_numbers(out, 10, command.request, command.storage, command.offset_bytes, command.bytes)
        case Sync():
            put_numbers(out, 11, command.request)
        case Mark():
            put_numbers(out, 12, command.epoch)
        case Share():
            put_numbers(out, 14, command.request, command.bytes)
        case WriteShared():
            put_numbers(out, 15, command.storage, command.offset_bytes, command.bytes, command.area_offset_bytes)
        case ReadShared():
            numbers = (command.request, command.storage, command.offset_bytes, command.bytes, command.area_offset_bytes)
            put_numbers(out, 16, *numbers)
        case Copy():
            put_numbers(out, 17, command.storage, command.offset_bytes, command.source, command.source_offset_bytes, command.bytes)
        case Leave():
            put_numbers(out, 18, command.request, *([command.image, command.base] if command.image else []))
        case Heard():
            put_numbers(out, 25, command.failure)
        case Limit():
            put_numbers(out, 29, command.bytes)
        case Kernel() | Launch():
            put_kernel_command(out, command)
        case Program() | Execute() | ExecuteCalling() | Returned():
            put_program_command(out, command)
        case Keep() | Restore() | TracesPart() | Checkpoint() | TellCheckpoints() | GoBack() | DropCheckpoint():
            put_image_command(out, command)


def put_numbers(out: Writer, opcode: int, *numbers: int) -> None:
    out.u8(opcode)
    for number in numbers:
        out.varint(number)


def get_storage_command(reader: Reader, opcode: int) -> Command:
    match opcode:
        case 6:
            return Allocate(reader.varint(), reader.bounded(_stream.STORAGE_BYTES_MAX, "the size of a storage"))
        case 7:
            return Resize(reader.varint(), reader.bounded(_stream.STORAGE_BYTES_MAX, "the size of a storage"))
        case 8:
            count = reader.count(_stream.STORAGES_MAX, "the number of storages")
            return Free(tuple(reader.varint() for _ in range(count)))
        case 9:
            storage, offset = reader.varint(), reader.varint()
            return Write(storage, offset, reader.raw(reader.bounded(CHUNK_BYTES_MAX, "the size of a chunk")))
        case 10:
            request, storage, offset = reader.varint(), reader.varint(), reader.varint()
            return Read(request, storage, offset, reader.bounded(CHUNK_BYTES_MAX, "the size of a chunk"))
        case 11:
            return Sync(reader.varint())
        case 12:
            return Mark(reader.varint())
        case 14:
            return Share(reader.varint(), reader.bounded(SHARED_BYTES_MAX, "the size of a shared area"))
        case 15:
            storage, offset = reader.varint(), reader.varint()
            return WriteShared(storage, offset, reader.bounded(CHUNK_BYTES_MAX, "the size of a chunk"), reader.varint())
        case 16:
            request, storage, offset = reader.varint(), reader.varint(), reader.varint()
            return ReadShared(request, storage, offset, reader.bounded(CHUNK_BYTES_MAX, "the size of a chunk"), reader.varint())
        case 17:
            numbers = (reader.varint(), reader.varint(), reader.varint(), reader.varint())
            return Copy(*numbers, reader.bounded(_stream.STORAGE_BYTES_MAX, "the size of a storage"))
        case 18:
            return Leave(*(reader.varint() if reader.left() else 0 for _ in range(3)))
        case 25:
            return Heard(reader.varint())
        case 29:
            return Limit(reader.varint())
    if opcode in KERNEL_OPCODES:
        return get_kernel_command(reader, opcode)
    if opcode in PROGRAM_OPCODES:
        return get_program_command(reader, opcode)
    if opcode in IMAGE_OPCODES:
        return get_image_command(reader, opcode)
    raise WireError(f"an unknown command {opcode}")
