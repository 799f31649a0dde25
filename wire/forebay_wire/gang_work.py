"""What a client asks of a session with several devices, and is told: ``docs/wire.md``, TELL_GANG and GANG."""

from __future__ import annotations

from forebay_wire import _stream
from forebay_wire._stream import Reader, WireError, Writer
from forebay_wire.vocabulary import Alone, GangWork, LoneWork, Work


def put_gang_work(out: Writer, reply: GangWork) -> None:
    """Appends the reply with its opcode."""
    out.u8(78)
    out.varint(reply.request)
    out.varint(reply.devices)
    _put(out, reply.divided)
    _put(out, reply.copies)
    out.varint(len(reply.alone))
    for lone in reply.alone:
        out.string(lone.operator)
        out.u8(lone.reason)
        _put(out, lone.work)


def get_gang_work(reader: Reader) -> GangWork:
    """Reads what comes after the opcode. Raises WireError."""
    request, devices = reader.varint(), reader.varint()
    divided, copies = _get(reader), _get(reader)
    number = reader.count(_stream.LONE_WORK_MAX, "the number of operators that ran alone")
    return GangWork(request, devices, divided, copies, tuple(_lone(reader) for _ in range(number)))


def _lone(reader: Reader) -> LoneWork:
    try:
        operator = reader.string().decode()
    except UnicodeDecodeError:
        raise WireError("an operator's name that is not UTF-8") from None
    reason = reader.u8()
    if reason not in set(Alone):
        raise WireError(f"an unknown reason {reason} to run alone")
    return LoneWork(operator, Alone(reason), _get(reader))


def _put(out: Writer, work: Work) -> None:
    out.varint(work.calls)
    out.varint(work.ns)


def _get(reader: Reader) -> Work:
    return Work(reader.varint(), reader.varint())
