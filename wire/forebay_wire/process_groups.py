"""What a member of a process group tells its worker, and hears: ``docs/wire.md``, Process groups."""

from __future__ import annotations

from forebay_wire import _stream
from forebay_wire._stream import Reader, WireError, Writer
from forebay_wire.vocabulary import (
    Collective,
    Door,
    Exchange,
    GroupCommand,
    InPlace,
    Member,
    OpenDoor,
    Parcel,
    Part,
    Reduce,
    ReduceEach,
    Reduction,
    Span,
)

OPCODES = (*range(30, 35), 39)


def put_group_command(out: Writer, command: GroupCommand) -> None:
    """Appends the command with its opcode."""
    match command:
        case OpenDoor():
            _put(out, 30, command.request, command.group, command.rank, command.size, command.patience_ms)
        case Member():
            _put(out, 31, command.group, command.member)
            out.string(command.address)
            out.raw(command.ticket)
        case Exchange():
            _put(out, 32, command.group)
            out.u8(command.what)
            for parcels in (command.sent, command.received):
                out.varint(len(parcels))
                for parcel in parcels:
                    out.varint(parcel.member)
                    _put_span(out, parcel.span)
        case Reduce():
            _put(out, 33, command.group)
            for number in (command.what, command.dtype, command.reduction):
                out.u8(number)
            _put_span(out, command.input)
            _put_span(out, command.result)
        case ReduceEach():
            _put(out, 39, command.group, len(command.each))
            for one in command.each:
                out.u8(one.dtype)
                out.u8(one.reduction)
                _put_span(out, one.span)
        case Part():
            _put(out, 34, command.group)


def get_group_command(reader: Reader, opcode: int) -> GroupCommand:
    """Reads what comes after the opcode. Raises WireError."""
    match opcode:
        case 30:
            request, group, rank = reader.varint(), reader.varint(), reader.bounded(_stream.MEMBERS_MAX - 1, "a rank")
            size = reader.bounded(_stream.MEMBERS_MAX, "the number of a process group's members")
            return OpenDoor(request, group, rank, size, reader.bounded(_stream.PATIENCE_MS_MAX, "the patience of a process group"))
        case 31:
            group, member = reader.varint(), reader.bounded(_stream.MEMBERS_MAX, "a rank")
            return Member(group, member, _text(reader), reader.raw(_stream.TICKET_BYTES))
        case 32:
            return Exchange(reader.varint(), _collective(reader), _parcels(reader), _parcels(reader))
        case 33:
            group, what, dtype = reader.varint(), _collective(reader), reader.u8()
            return Reduce(group, what, dtype, _reduction(reader), _span(reader), _span(reader))
        case 39:
            group, count = reader.varint(), reader.count(_stream.ITEMS_MAX, "the number of reductions")
            return ReduceEach(group, tuple(InPlace(reader.u8(), _reduction(reader), _span(reader)) for _ in range(count)))
    return Part(reader.varint())


def put_door(out: Writer, reply: Door) -> None:
    """Appends the reply with its opcode."""
    _put(out, 79, reply.request)
    out.string(reply.address)
    out.raw(reply.ticket)


def get_door(reader: Reader) -> Door:
    """Reads what comes after the opcode. Raises WireError."""
    return Door(reader.varint(), _text(reader), reader.raw(_stream.TICKET_BYTES))


def _put(out: Writer, opcode: int, *numbers: int) -> None:
    out.u8(opcode)
    for number in numbers:
        out.varint(number)


def _put_span(out: Writer, span: Span) -> None:
    for number in (span.storage, span.offset_bytes, span.bytes):
        out.varint(number)


def _collective(reader: Reader) -> Collective:
    number = reader.u8()
    if number not in set(Collective):
        raise WireError("an unknown collective")
    return Collective(number)


def _reduction(reader: Reader) -> Reduction:
    number = reader.u8()
    if number not in set(Reduction):
        raise WireError("a reduction of unknown kind")
    return Reduction(number)


def _parcels(reader: Reader) -> tuple[Parcel, ...]:
    count = reader.count(_stream.ITEMS_MAX, "the number of messages")
    return tuple(Parcel(reader.bounded(_stream.MEMBERS_MAX, "a rank"), _span(reader)) for _ in range(count))


def _span(reader: Reader) -> Span:
    storage, offset = reader.varint(), reader.bounded(_stream.STORAGE_BYTES_MAX, "an offset")
    return Span(storage, offset, reader.bounded(_stream.STORAGE_BYTES_MAX, "the size of a message"))


def _text(reader: Reader) -> str:
    try:
        return reader.string().decode()
    except UnicodeDecodeError:
        raise WireError("an address that is not UTF-8") from None
