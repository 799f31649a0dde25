"""The command stream in Python: what ``docs/wire.md`` specifies, over the primitives of ``wire.h``.

The virtual device and the worker speak it from C++; this module is for tests, fuzzing and diagnosis.
A :class:`CommandWriter` and a :class:`CommandReader` remember the templates of their stream, as both ends must.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from forebay_wire import _stream
from forebay_wire._stream import (
    CHUNK_BYTES_MAX,
    FRAME_BYTES_MAX,
    FRAME_HEADER_BYTES,
    MAGIC,
    SETTINGS_MAX,
    SHARED_BYTES_MAX,
    SHARED_HEADER_BYTES,
    VERSION,
    Reader,
    WireError,
    Writer,
)
from forebay_wire.gang_work import Alone, GangWork, LoneWork, Work, get_gang_work, put_gang_work
from forebay_wire.greetings import Fetch, Hello, Resume, Resumed, Welcome, get_greeting, get_welcome, put_greeting, put_welcome
from forebay_wire.images import OPCODES as IMAGE_OPCODES
from forebay_wire.images import (
    ImageBytes,
    ImageCause,
    ImageHead,
    ImageStorage,
    ImageStorages,
    get_image_reply,
    put_image_reply,
)
from forebay_wire.process_groups import OPCODES as GROUP_OPCODES
from forebay_wire.process_groups import get_door, get_group_command, put_door, put_group_command
from forebay_wire.programs import Callback, Compiled, get_callback, get_compiled, put_callback, put_compiled
from forebay_wire.storages import get_storage_command, put_numbers, put_storage_command
from forebay_wire.timing import get_times, get_timing_command, put_times, put_timing_command
from forebay_wire.traces import get_segments, get_trace_command, put_segments, put_trace_command
from forebay_wire.vocabulary import (
    RANDOM,
    Allocate,
    Argument,
    Ask,
    Binding,
    Call,
    CallTime,
    Change,
    Command,
    Copy,
    Cut,
    Data,
    DefineTemplate,
    Done,
    Door,
    Failure,
    FailureCode,
    Follow,
    Forget,
    Free,
    Geometry,
    GroupCommand,
    Heard,
    Leave,
    Limit,
    Mark,
    Operator,
    Output,
    Outputs,
    OutputTag,
    Produced,
    Random,
    Read,
    ReadShared,
    Refused,
    Renumber,
    Reply,
    Resize,
    Segment,
    Segments,
    Settings,
    Share,
    Shared,
    Step,
    Sync,
    Tag,
    TellGang,
    TellSegments,
    TellTimes,
    Template,
    Time,
    Times,
    View,
    Write,
    WriteShared,
    schema_hash,
)

__all__ = [
    "CHUNK_BYTES_MAX",
    "FRAME_BYTES_MAX",
    "MAGIC",
    "RANDOM",
    "SETTINGS_MAX",
    "SHARED_BYTES_MAX",
    "SHARED_HEADER_BYTES",
    "VERSION",
    "Allocate",
    "Alone",
    "Argument",
    "Ask",
    "Binding",
    "Call",
    "CallTime",
    "Change",
    "Command",
    "CommandReader",
    "CommandWriter",
    "Copy",
    "Cut",
    "Data",
    "DefineTemplate",
    "Done",
    "Failure",
    "FailureCode",
    "Fetch",
    "Follow",
    "Forget",
    "Free",
    "GangWork",
    "Geometry",
    "Heard",
    "Hello",
    "ImageBytes",
    "ImageCause",
    "ImageHead",
    "ImageStorage",
    "ImageStorages",
    "Leave",
    "Limit",
    "LoneWork",
    "Mark",
    "Operator",
    "Output",
    "OutputTag",
    "Outputs",
    "Produced",
    "Random",
    "Read",
    "ReadShared",
    "Reader",
    "Refused",
    "Renumber",
    "Reply",
    "Resize",
    "Segment",
    "Segments",
    "Settings",
    "Share",
    "Shared",
    "Step",
    "Sync",
    "Tag",
    "TellGang",
    "TellSegments",
    "TellTimes",
    "Template",
    "Time",
    "Times",
    "View",
    "Welcome",
    "WireError",
    "Work",
    "Write",
    "WriteShared",
    "Writer",
    "decode_reply",
    "encode_reply",
    "frame",
    "read_frame",
    "schema_hash",
]  # fmt: skip


def frame(body: bytes) -> bytes:
    """The body with its header. Raises WireError if it is empty or too long."""
    return _stream.frame_header(len(body)) + body


def read_frame(peer: socket.socket) -> bytes | None:
    """The next frame's body from a blocking socket; None at a clean end. Raises WireError at an end within a frame."""
    header = _read_exactly(peer, FRAME_HEADER_BYTES)
    if not header:
        return None
    if len(header) < FRAME_HEADER_BYTES:
        raise WireError("the stream ends in the middle of a frame header")
    size = _stream.frame_size(header)
    body = _read_exactly(peer, size)
    if len(body) < size:
        raise WireError("the stream ends in the middle of a frame")
    return body


def _read_exactly(peer: socket.socket, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = peer.recv(min(size, 1 << 20))
        if not part:
            break
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _is_float(dtype: int) -> bool:
    return dtype in _FLOATS


_FLOATS = frozenset({5, 6, 7, 15, *range(23, 27), 44, 45})
"""ScalarType numbers whose values travel as f64: half, float, double, bfloat16, the float8 and float4 types."""
_COMPLEX = frozenset({8, 9, 10})


@dataclass
class CommandWriter:
    """Collects commands into the body of a frame."""

    templates: list[Template] = field(default_factory=list)
    _out: Writer = field(default_factory=Writer)

    def take(self) -> bytes:
        """The body so far; the next one begins empty."""
        body = self._out.bytes()
        self._out.clear()
        return body

    def __len__(self) -> int:
        return len(self._out)

    def add(self, command: Command) -> None:
        """Appends a command. Raises WireError for a template that was not defined or bindings that do not fit it."""
        out = self._out
        match command:
            case Hello() | Fetch() | Resume():
                put_greeting(out, command)
            case Operator():
                out.u8(2)
                out.string(command.name)
                out.string(command.overload)
                out.u64(command.schema_hash)
            case DefineTemplate():
                out.u8(3)
                _put_template(out, command.template)
                self.templates.append(command.template)
            case Call():
                out.u8(4)
                self._put_call(command)
            case Ask():
                out.u8(5)
                out.varint(command.request)
                out.varint(command.first_storage)
                self._put_call(command)
            case Forget() | Renumber():
                out.u8(13 if isinstance(command, Forget) else 53)
                self.templates.clear()
            case Follow() | Step() | Cut():
                put_trace_command(out, command)
            case Time() | TellTimes():
                put_timing_command(out, command)
            case TellSegments() | TellGang():
                put_numbers(out, 27 if isinstance(command, TellSegments) else 28, command.request)
            case Settings():
                put_numbers(out, 26, command.bits)
            case _ if isinstance(command, GroupCommand):
                put_group_command(out, command)
            case _:
                put_storage_command(out, command)

    def _put_call(self, command: Call | Ask) -> None:
        if command.template >= len(self.templates):
            raise WireError(f"template {command.template} is not defined")
        template = self.templates[command.template]
        self._out.varint(command.template)
        bindings = iter(command.bindings)
        for argument in template.arguments:
            _put_binding(self._out, argument, bindings)
        for output in template.outputs:
            _put_output_binding(self._out, output, bindings)
        if next(bindings, None) is not None:
            raise WireError("more bindings than the template takes")
        if template.flags & RANDOM:
            if command.random is None:
                raise WireError("a random call carries a seed and a counter")
            self._out.u64(command.random.seed)
            self._out.varint(command.random.counter)


def _put_template(out: Writer, template: Template) -> None:
    out.varint(template.op)
    out.u8(template.flags)
    out.varint(len(template.arguments))
    for argument in template.arguments:
        _put_argument(out, argument)
    out.varint(len(template.outputs))
    for output in template.outputs:
        _put_output(out, output)


def _put_geometry(out: Writer, geometry: Geometry | None) -> None:
    if geometry is None:
        raise WireError("a tensor without a geometry")
    out.geometry(geometry.dtype, geometry.sizes, geometry.strides, geometry.flags)


def _put_argument(out: Writer, argument: Argument) -> None:
    out.u8(argument.tag)
    match argument.tag:
        case Tag.TENSOR:
            _put_geometry(out, argument.geometry)
        case Tag.SCALAR_TENSOR:
            out.u8(argument.dtype)
            out.u8(argument.flag)
        case Tag.TENSOR_LIST | Tag.SCALAR_LIST:
            out.varint(len(argument.items))
            for item in argument.items:
                _put_argument(out, item)
        case Tag.INT:
            out.zigzag(argument.integer)
        case Tag.BOOL | Tag.DEVICE:
            out.u8(argument.flag)
        case Tag.INT_LIST:
            out.varint(len(argument.list))
            for value in argument.list:
                out.zigzag(value)
        case Tag.BOOL_LIST:
            out.varint(len(argument.list))
            for value in argument.list:
                out.u8(value)
        case Tag.DOUBLE_LIST:
            out.varint(argument.count)
        case Tag.STRING:
            out.string(argument.text)
        case Tag.SPARSE:
            out.sparse_head(argument.layout, argument.flag, argument.list)
            for part in argument.items:
                _put_geometry(out, part.geometry)


def _put_output(out: Writer, output: Output) -> None:
    out.u8(output.tag)
    match output.tag:
        case OutputTag.NEW:
            _put_geometry(out, output.geometry)
            out.varint(output.storage_bytes)
        case OutputTag.SAME:
            out.varint(output.same)
        case OutputTag.LIST:
            out.varint(len(output.items))
            for item in output.items:
                _put_output(out, item)


def _next(bindings: Iterator[Binding]) -> Binding:
    try:
        return next(bindings)
    except StopIteration:
        raise WireError("fewer bindings than the template takes") from None


def _put_number(out: Writer, dtype: int, value: Binding) -> None:
    if not isinstance(value, int | float | complex):
        raise WireError("a number is bound to a number")
    if dtype in _COMPLEX:
        value = complex(value)
        out.f64(value.real)
        out.f64(value.imag)
    elif isinstance(value, complex):
        raise WireError("a real number is bound to a complex one")
    elif _is_float(dtype):
        out.f64(value)
    else:
        out.zigzag(int(value))


_SCALAR_DTYPES = {Tag.DOUBLE: 7, Tag.SCALAR_DOUBLE: 7, Tag.SCALAR_INT: 4, Tag.SCALAR_COMPLEX: 10}


def _put_binding(out: Writer, argument: Argument, bindings: Iterator[Binding]) -> None:
    match argument.tag:
        case Tag.TENSOR:
            view = _next(bindings)
            if not isinstance(view, View):
                raise WireError("a tensor is bound to a View")
            out.varint(view.storage)
            out.varint(view.offset)
        case Tag.SCALAR_TENSOR:
            _put_number(out, argument.dtype, _next(bindings))
        case Tag.DOUBLE | Tag.SCALAR_DOUBLE | Tag.SCALAR_INT | Tag.SCALAR_COMPLEX:
            _put_number(out, _SCALAR_DTYPES[argument.tag], _next(bindings))
        case Tag.SCALAR_BOOL:
            out.u8(bool(_next(bindings)))
        case Tag.DOUBLE_LIST:
            values = _next(bindings)
            if not isinstance(values, tuple) or len(values) != argument.count:
                raise WireError(f"a list of {argument.count} doubles is bound to as many")
            for value in values:
                out.f64(value)
        case Tag.TENSOR_LIST | Tag.SCALAR_LIST | Tag.SPARSE:
            for item in argument.items:
                _put_binding(out, item, bindings)


def _put_output_binding(out: Writer, output: Output, bindings: Iterator[Binding]) -> None:
    if output.tag == OutputTag.NEW:
        storage = _next(bindings)
        if not isinstance(storage, int):
            raise WireError("a new tensor is bound to a storage id")
        out.varint(storage)
    for item in output.items:
        _put_output_binding(out, item, bindings)


@dataclass
class CommandReader:
    """Reads the commands in the bodies of frames."""

    templates: list[Template] = field(default_factory=list)

    def read(self, body: bytes) -> list[Command]:
        """All commands of one body. Raises WireError."""
        reader = Reader(body)
        commands: list[Command] = []
        while not reader.done():
            commands.append(self._command(reader))
        return commands

    def _command(self, reader: Reader) -> Command:
        opcode = reader.u8()
        match opcode:
            case 1 | 19 | 38:
                return get_greeting(opcode, reader)
            case 2:
                return Operator(_text(reader), _text(reader), reader.u64())
            case 3:
                self.templates.append(get_template(reader))
                return DefineTemplate(self.templates[-1])
            case 4:
                return Call(*self._bound(reader))
            case 5:
                return Ask(reader.varint(), reader.varint(), *self._bound(reader))
            case 13 | 53:
                self.templates.clear()
                return Forget() if opcode == 13 else Renumber()
            case 20 | 21 | 22:
                return get_trace_command(reader, opcode)
            case 23 | 24:
                return get_timing_command(reader, opcode)
            case 26:
                return Settings(reader.bounded(SETTINGS_MAX, "the settings"))
            case 27 | 28:
                return (TellSegments if opcode == 27 else TellGang)(reader.varint())
        return get_group_command(reader, opcode) if opcode in GROUP_OPCODES else get_storage_command(reader, opcode)

    def _bound(self, reader: Reader) -> tuple[int, tuple[Binding, ...], Random | None]:
        number = reader.varint()
        if number >= len(self.templates):
            raise WireError(f"template {number} is not defined")
        template = self.templates[number]
        bindings: list[Binding] = []
        for argument in template.arguments:
            _get_binding(reader, argument, bindings)
        for output in template.outputs:
            _get_output_binding(reader, output, bindings)
        random = Random(reader.u64(), reader.varint()) if template.flags & RANDOM else None
        return number, tuple(bindings), random


def _text(reader: Reader, most: int = _stream.STRING_BYTES_MAX) -> str:
    return _decoded(reader.string(most))


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise WireError("a string that is not UTF-8") from None


def _geometry(raw: _stream.RawGeometry | None) -> Geometry | None:
    return None if raw is None else Geometry(*raw)


def _argument(raw: _stream.RawArgument) -> Argument:
    tag, geometry, dtype, flag, integer, count, values, text, items, layout = raw
    nested = tuple(_argument(item) for item in items)
    return Argument(Tag(tag), _geometry(geometry), dtype, flag, integer, count, values, _decoded(text), nested, layout)


def _output(raw: _stream.RawOutput) -> Output:
    tag, geometry, storage_bytes, same, items = raw
    return Output(OutputTag(tag), _geometry(geometry), storage_bytes, same, tuple(_output(item) for item in items))


def get_template(reader: Reader) -> Template:
    """Reads what comes after the opcode of a TEMPLATE. Raises WireError."""
    op, flags, arguments, outputs = reader.template()
    return Template(op, tuple(_argument(raw) for raw in arguments), tuple(_output(raw) for raw in outputs), flags)


def _get_number(reader: Reader, dtype: int) -> int | float | complex:
    if dtype in _COMPLEX:
        return complex(reader.f64(), reader.f64())
    return reader.f64() if _is_float(dtype) else reader.zigzag()


def _get_binding(reader: Reader, argument: Argument, bindings: list[Binding]) -> None:
    match argument.tag:
        case Tag.TENSOR:
            bindings.append(View(reader.varint(), reader.varint()))
        case Tag.SCALAR_TENSOR:
            bindings.append(_get_number(reader, argument.dtype))
        case Tag.DOUBLE | Tag.SCALAR_DOUBLE | Tag.SCALAR_INT | Tag.SCALAR_COMPLEX:
            bindings.append(_get_number(reader, _SCALAR_DTYPES[argument.tag]))
        case Tag.SCALAR_BOOL:
            bindings.append(bool(reader.u8()))
        case Tag.DOUBLE_LIST:
            if argument.count * 8 > reader.left():
                raise WireError("a frame ends in the middle of a command")
            bindings.append(tuple(reader.f64() for _ in range(argument.count)))
        case Tag.TENSOR_LIST | Tag.SCALAR_LIST | Tag.SPARSE:
            for item in argument.items:
                _get_binding(reader, item, bindings)


def _get_output_binding(reader: Reader, output: Output, bindings: list[Binding]) -> None:
    if output.tag == OutputTag.NEW:
        bindings.append(reader.varint())
    for item in output.items:
        _get_output_binding(reader, item, bindings)


def encode_reply(reply: Reply) -> bytes:
    """The body of a frame that holds the reply."""
    out = Writer()
    match reply:
        case Welcome():
            out.u8(65)
            put_welcome(out, reply)
        case Resumed():
            put_numbers(out, 83, reply.received)
        case Refused():
            out.u8(66)
            out.string(reply.message)
            out.raw(b"\x01" * reply.goes_on)
        case Data():
            put_numbers(out, 67, reply.request, reply.busy_ns, len(reply.data))
            out.raw(reply.data)
        case Done():
            put_numbers(out, 68, reply.request, reply.busy_ns)
        case Outputs():
            put_numbers(out, 69, reply.request, len(reply.outputs))
            for output in reply.outputs:
                _put_produced(out, output)
        case Failure():
            put_numbers(out, 70, reply.request, reply.number)
            out.u8(reply.code)
            out.u64(reply.sequence)
            for text in (reply.operator, reply.message, reply.inputs):
                out.string(text)
        case Shared():
            put_numbers(out, 71, reply.request, reply.bytes)
        case Times():
            put_times(out, reply)
        case Segments():
            put_segments(out, reply)
        case GangWork():
            put_gang_work(out, reply)
        case Door():
            put_door(out, reply)
        case Compiled():
            put_compiled(out, reply)
        case Callback():
            put_callback(out, reply)
        case _:
            put_image_reply(out, reply)
    return out.bytes()


def _put_produced(out: Writer, output: Produced) -> None:
    out.u8(output.tag)
    match output.tag:
        case OutputTag.NEW:
            out.varint(output.storage)
            _put_geometry(out, output.geometry)
            out.varint(output.storage_bytes)
        case OutputTag.SAME:
            out.varint(output.same)
        case OutputTag.LIST:
            out.varint(len(output.items))
            for item in output.items:
                _put_produced(out, item)
        case OutputTag.SPARSE:
            out.sparse_head(output.layout, output.coalesced, output.sizes)
            for item in output.items:
                _put_produced(out, item)
        case OutputTag.BOOL:
            out.u8(bool(output.value))
        case OutputTag.INT | OutputTag.DOUBLE | OutputTag.COMPLEX:
            _put_number(out, {OutputTag.INT: 4, OutputTag.DOUBLE: 7, OutputTag.COMPLEX: 10}[output.tag], output.value)


def decode_reply(body: bytes) -> Reply:
    """The reply that a frame's body holds. Raises WireError."""
    reader = Reader(body)
    reply = _reply(reader)
    if not reader.done():
        raise WireError(f"{reader.left()} bytes after a reply")
    return reply


def _reply(reader: Reader) -> Reply:
    opcode = reader.u8()
    match opcode:
        case 65:
            return get_welcome(reader)
        case 83:
            return Resumed(reader.varint())
        case 66:
            return Refused(_text(reader, _stream.MESSAGE_BYTES_MAX), not reader.done() and reader.u8() != 0)
        case 67:
            request, busy_ns = reader.varint(), reader.varint()
            return Data(request, busy_ns, reader.raw(reader.bounded(CHUNK_BYTES_MAX, "the size of a chunk")))
        case 68:
            return Done(reader.varint(), reader.varint())
        case 69:
            request = reader.varint()
            count = reader.count(_stream.ARGUMENTS_MAX, "the number of outputs")
            return Outputs(request, tuple(_produced(reader, nested=False) for _ in range(count)))
        case 70:
            request, number, code, sequence = reader.varint(), reader.varint(), reader.u8(), reader.u64()
            if code not in set(FailureCode):
                raise WireError(f"a failure of unknown code {code}")
            texts = _text(reader), _text(reader, _stream.MESSAGE_BYTES_MAX), _text(reader, _stream.MESSAGE_BYTES_MAX)
            return Failure(request, number, FailureCode(code), sequence, *texts)
        case 71:
            return Shared(reader.varint(), reader.bounded(SHARED_BYTES_MAX, "the size of a shared area"))
    told: dict[int, Callable[[Reader], Reply]] = {76: get_times, 77: get_segments, 78: get_gang_work, 79: get_door}
    told |= {88: get_compiled, 89: get_callback}
    if opcode in told:
        return told[opcode](reader)
    if opcode in IMAGE_OPCODES:
        return get_image_reply(reader, opcode)
    raise WireError(f"an unknown reply {opcode}")


def _part(reader: Reader) -> Produced:
    if reader.u8() != OutputTag.NEW:
        raise WireError("a part of a sparse tensor that is no tensor")
    return Produced(OutputTag.NEW, reader.varint(), Geometry(*reader.geometry()), reader.varint())


def _produced(reader: Reader, nested: bool) -> Produced:
    code = reader.u8()
    if code not in set(OutputTag):
        raise WireError(f"an output of unknown kind {code}")
    tag = OutputTag(code)
    match tag:
        case OutputTag.NONE:
            return Produced(tag)
        case OutputTag.NEW:
            return Produced(tag, reader.varint(), Geometry(*reader.geometry()), reader.varint())
        case OutputTag.SAME:
            return Produced(tag, same=reader.bounded(_stream.ITEMS_MAX, "the index of a tensor argument"))
        case OutputTag.LIST if not nested:
            count = reader.count(_stream.ITEMS_MAX, "the length of a list")
            return Produced(tag, items=tuple(_produced(reader, nested=True) for _ in range(count)))
        case OutputTag.SPARSE:
            layout, coalesced, sizes, parts = reader.sparse_head()
            items = tuple(_part(reader) for _ in range(parts))
            return Produced(tag, items=items, layout=layout, coalesced=coalesced, sizes=sizes)
        case OutputTag.BOOL:
            return Produced(tag, value=bool(reader.u8()))
        case OutputTag.INT | OutputTag.DOUBLE | OutputTag.COMPLEX:
            return Produced(tag, value=_get_number(reader, {OutputTag.INT: 4, OutputTag.DOUBLE: 7, OutputTag.COMPLEX: 10}[tag]))
    raise WireError(f"an output of kind {tag.name.lower()} where the worker must tell what it is")
