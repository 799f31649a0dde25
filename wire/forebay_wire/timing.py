"""The commands by which a client has calls timed, and what it is told: ``docs/wire.md``, TIME, TELL_TIMES and TIMES."""

from __future__ import annotations

from forebay_wire import _stream
from forebay_wire._stream import Reader, Writer
from forebay_wire.vocabulary import CallTime, TellTimes, Time, Times


def put_timing_command(out: Writer, command: Time | TellTimes) -> None:
    """Appends the command with its opcode."""
    opcode, number = (23, command.calls) if isinstance(command, Time) else (24, command.request)
    out.u8(opcode)
    out.varint(number)


def get_timing_command(reader: Reader, opcode: int) -> Time | TellTimes:
    """Reads what comes after the opcode. Raises WireError."""
    if opcode == 23:
        return Time(reader.bounded(_stream.TIMES_MAX, "the number of calls to time"))
    return TellTimes(reader.varint())


def put_times(out: Writer, times: Times) -> None:
    """Appends the reply with its opcode."""
    out.u8(76)
    for number in (times.request, times.now_ns, len(times.calls)):
        out.varint(number)
    before = CallTime(0, 0, 0)
    for call in times.calls:
        out.varint(call.sequence - before.sequence)
        out.zigzag(call.start_ns - before.start_ns)
        out.varint(call.took_ns)
        before = call


def get_times(reader: Reader) -> Times:
    """Reads what comes after the opcode. Raises WireError."""
    request, now_ns = reader.varint(), reader.varint()
    calls: list[CallTime] = []
    sequence = start_ns = 0
    for _ in range(reader.count(_stream.TIMES_MAX, "the number of times")):
        sequence += reader.varint()
        start_ns += reader.zigzag()
        calls.append(CallTime(sequence, start_ns, reader.varint()))
    return Times(request, now_ns, tuple(calls))
