"""The command stream in Python: what goes in comes out, and hostile bytes give one clear error."""

from __future__ import annotations

import dataclasses
import socket
import struct
import tracemalloc

import pytest
from forebay_wire import gang_work, images, programs, steps, stream, vocabulary
from forebay_wire.greetings import Resume, Resumed
from forebay_wire.stream import Argument, Geometry, Output, OutputTag, Tag, Template
from hypothesis import given, settings
from hypothesis import strategies as st

EXAMPLES = 10 * settings.get_profile("costly").max_examples
"""Of what takes a hundredth of a second; more with --full-sweep."""
INTEGERS = st.integers(-(2**63), 2**63 - 1)
UNSIGNED = st.integers(0, 2**64 - 1)
FLOATS = st.floats(allow_nan=False)
COMPLEX = st.complex_numbers(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=40)


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    sizes = draw(st.lists(st.integers(0, 2**40), max_size=5))
    strides = [draw(st.integers(0, 2**40)) for _ in sizes]
    return Geometry(draw(st.integers(0, 255)), tuple(sizes), tuple(strides), draw(st.integers(0, 255)))


TENSORS = st.builds(lambda geometry: Argument(Tag.TENSOR, geometry=geometry), geometries())
SCALAR_TENSORS = st.builds(
    lambda dtype, flag: Argument(Tag.SCALAR_TENSOR, dtype=dtype, flag=flag), st.sampled_from([4, 7, 9, 11]), st.booleans()
)


@st.composite
def sparse_arguments(draw: st.DrawFn) -> Argument:
    layout = draw(st.sampled_from([1, 2, 4, 5, 6]))
    sizes = tuple(draw(st.lists(st.integers(0, 2**20), max_size=3)))
    parts = tuple(draw(TENSORS) for _ in range(2 if layout == 1 else 3))
    return Argument(Tag.SPARSE, flag=draw(st.booleans()), list=sizes, items=parts, layout=layout)


NONE = st.just(Argument(Tag.NONE))
SCALARS = st.sampled_from([Tag.SCALAR_DOUBLE, Tag.SCALAR_INT, Tag.SCALAR_BOOL, Tag.SCALAR_COMPLEX]).map(Argument)
ARGUMENTS = st.one_of(
    NONE,
    TENSORS,
    SCALAR_TENSORS,
    SCALARS,
    st.sampled_from([Argument(Tag.DOUBLE), Argument(Tag.GENERATOR)]),
    st.lists(TENSORS | SCALAR_TENSORS | NONE, max_size=4).map(lambda items: Argument(Tag.TENSOR_LIST, items=tuple(items))),
    st.lists(SCALARS, max_size=4).map(lambda items: Argument(Tag.SCALAR_LIST, items=tuple(items))),
    INTEGERS.map(lambda value: Argument(Tag.INT, integer=value)),
    st.builds(lambda tag, flag: Argument(tag, flag=flag), st.sampled_from([Tag.BOOL, Tag.DEVICE]), st.booleans()),
    st.lists(INTEGERS, max_size=4).map(lambda values: Argument(Tag.INT_LIST, list=tuple(values))),
    st.lists(st.integers(0, 1), max_size=4).map(lambda values: Argument(Tag.BOOL_LIST, list=tuple(values))),
    st.integers(0, 4).map(lambda count: Argument(Tag.DOUBLE_LIST, count=count)),
    TEXT.map(lambda text: Argument(Tag.STRING, text=text)),
    sparse_arguments(),
)
FLAT_OUTPUTS = st.one_of(
    st.builds(lambda geometry, size: Output(OutputTag.NEW, geometry=geometry, storage_bytes=size), geometries(), st.integers(0, 2**46)),
    st.integers(0, 65536).map(lambda index: Output(OutputTag.SAME, same=index)),
    st.sampled_from([OutputTag.NONE, OutputTag.UNKNOWN, OutputTag.INT, OutputTag.DOUBLE, OutputTag.BOOL, OutputTag.COMPLEX]).map(Output),
)
OUTPUTS = FLAT_OUTPUTS | st.lists(FLAT_OUTPUTS, max_size=4).map(lambda items: Output(OutputTag.LIST, items=tuple(items)))
TEMPLATES = st.builds(
    Template, st.integers(0, 8192), st.lists(ARGUMENTS, max_size=5).map(tuple), st.lists(OUTPUTS, max_size=3).map(tuple), st.integers(0, 1)
)


def bindings_of(argument: Argument) -> list[st.SearchStrategy[stream.Binding]]:
    """What a call binds to an argument."""
    match argument.tag:
        case Tag.TENSOR:
            return [st.builds(stream.View, UNSIGNED, UNSIGNED)]
        case Tag.SCALAR_TENSOR:
            return [{7: FLOATS, 9: COMPLEX}.get(argument.dtype, INTEGERS)]
        case Tag.DOUBLE | Tag.SCALAR_DOUBLE:
            return [FLOATS]
        case Tag.SCALAR_INT:
            return [INTEGERS]
        case Tag.SCALAR_BOOL:
            return [st.booleans()]
        case Tag.SCALAR_COMPLEX:
            return [COMPLEX]
        case Tag.DOUBLE_LIST:
            return [st.tuples(*[FLOATS] * argument.count)]
    return [binding for item in argument.items for binding in bindings_of(item)]


def bindings_of_output(output: Output) -> list[st.SearchStrategy[stream.Binding]]:
    if output.tag == OutputTag.NEW:
        return [UNSIGNED]
    return [binding for item in output.items for binding in bindings_of_output(item)]


@st.composite
def conversations(draw: st.DrawFn) -> list[stream.Command]:
    """Commands in an order that both ends understand: templates come before their calls."""
    templates = draw(st.lists(TEMPLATES, min_size=1, max_size=3))
    commands: list[stream.Command] = [stream.DefineTemplate(template) for template in templates]
    for _ in range(draw(st.integers(0, 6))):
        commands.append(draw(plain_commands()))
        number = draw(st.integers(0, len(templates) - 1))
        strategies = [s for argument in templates[number].arguments for s in bindings_of(argument)]
        strategies += [s for output in templates[number].outputs for s in bindings_of_output(output)]
        bindings = tuple(draw(strategy) for strategy in strategies)
        random = stream.Random(draw(UNSIGNED), draw(UNSIGNED)) if templates[number].flags & stream.RANDOM else None
        if draw(st.booleans()):
            commands.append(stream.Call(number, bindings, random))
        else:
            commands.append(stream.Ask(draw(UNSIGNED), draw(UNSIGNED), number, bindings, random))
    commands.append(draw(st.sampled_from([stream.Forget(), stream.Renumber()])))
    return commands


TICKETS = st.binary(min_size=32, max_size=32)
RANKS = st.integers(0, 1024)
SPANS = st.builds(vocabulary.Span, UNSIGNED, st.integers(0, 2**46), st.integers(0, 2**46))
REDUCTIONS = st.builds(vocabulary.InPlace, st.integers(0, 255), st.sampled_from(vocabulary.Reduction), SPANS)
POINTERS = st.builds(vocabulary.Pointer, UNSIGNED, st.integers(0, 2**46))
SOURCES = st.builds(
    vocabulary.KernelSource,
    st.from_regex(r"[0-9]\.[0-9]{1,2}\.[0-9]", fullmatch=True),
    st.integers(0, 64),
    st.integers(0, 64),
    st.integers(0, 16),
    st.integers(0, 255),
    st.booleans(),
    st.binary(max_size=50),
)
IDS = st.lists(UNSIGNED, max_size=4).map(tuple)
SIZES = st.lists(st.integers(0, 2**46), max_size=4).map(tuple)
ARRAYS = st.builds(programs.ProgramArray, st.sampled_from(list(programs.ITEM_BYTES)), SIZES)
ELEMENTS = st.lists(st.binary(max_size=20), max_size=3).map(tuple)
DONATED = st.lists(st.integers(0, 1), max_size=2).map(tuple)
PARCELS = st.lists(st.builds(vocabulary.Parcel, RANKS, SPANS), max_size=4).map(tuple)


def plain_commands() -> st.SearchStrategy[stream.Command]:
    sizes = st.integers(0, 2**46)
    return st.one_of(
        st.builds(stream.Hello, st.binary(min_size=32, max_size=32), TEXT, st.integers(0, 65535)),
        st.builds(Resume, st.binary(min_size=32, max_size=32), TEXT, st.integers(0, 2**63), st.integers(0, 65535)),
        st.builds(stream.Operator, TEXT, TEXT, UNSIGNED),
        st.builds(stream.Allocate, UNSIGNED, sizes),
        st.builds(stream.Resize, UNSIGNED, sizes),
        st.lists(UNSIGNED, max_size=5).map(lambda ids: stream.Free(tuple(ids))),
        st.builds(stream.Write, UNSIGNED, UNSIGNED, st.binary(max_size=50)),
        st.builds(stream.Read, UNSIGNED, UNSIGNED, UNSIGNED, st.integers(0, stream.CHUNK_BYTES_MAX)),
        st.builds(stream.Sync, UNSIGNED),
        st.builds(stream.Mark, UNSIGNED),
        st.builds(stream.Heard, UNSIGNED),
        st.builds(stream.Follow, st.integers(0, 65536)),
        st.builds(
            stream.Step, st.none() | st.integers(0, 1000), st.dictionaries(st.integers(0, 2**20), UNSIGNED, max_size=5).map(changes_of)
        ),
        st.builds(stream.Cut, st.booleans()),
        st.builds(stream.Time, st.integers(0, 1 << 19)),
        st.builds(stream.TellTimes, UNSIGNED),
        st.builds(stream.TellSegments, UNSIGNED),
        st.builds(stream.TellGang, UNSIGNED),
        st.builds(stream.Settings, st.integers(0, stream.SETTINGS_MAX)),
        st.builds(stream.Limit, UNSIGNED),
        st.builds(stream.Share, UNSIGNED, st.integers(0, stream.SHARED_BYTES_MAX)),
        st.builds(stream.WriteShared, UNSIGNED, UNSIGNED, st.integers(0, stream.CHUNK_BYTES_MAX), UNSIGNED),
        st.builds(stream.ReadShared, UNSIGNED, UNSIGNED, UNSIGNED, st.integers(0, stream.CHUNK_BYTES_MAX), UNSIGNED),
        st.builds(stream.Copy, UNSIGNED, UNSIGNED, UNSIGNED, UNSIGNED, sizes),
        st.builds(vocabulary.OpenDoor, UNSIGNED, UNSIGNED, st.integers(0, 1023), st.integers(0, 1024), st.integers(0, 10**8)),
        st.builds(vocabulary.Member, UNSIGNED, RANKS, TEXT, TICKETS),
        st.builds(vocabulary.Exchange, UNSIGNED, st.sampled_from(vocabulary.Collective), PARCELS, PARCELS),
        st.builds(
            vocabulary.Reduce,
            UNSIGNED,
            st.sampled_from(vocabulary.Collective),
            st.integers(0, 255),
            st.sampled_from(vocabulary.Reduction),
            SPANS,
            SPANS,
        ),
        st.builds(vocabulary.ReduceEach, UNSIGNED, st.lists(REDUCTIONS, max_size=3).map(tuple)),
        st.builds(vocabulary.Part, UNSIGNED),
        st.builds(images.Keep, UNSIGNED, UNSIGNED, st.booleans()),
        st.builds(images.Restore, UNSIGNED),
        st.builds(images.Checkpoint, UNSIGNED, st.booleans(), st.booleans()),
        st.builds(images.DropCheckpoint, UNSIGNED),
        st.builds(images.TellCheckpoints, UNSIGNED, UNSIGNED),
        st.builds(images.GoBack, UNSIGNED, UNSIGNED),
        st.builds(images.TracesPart, st.binary(max_size=50)),
        st.builds(vocabulary.Kernel, UNSIGNED, UNSIGNED, SOURCES),
        st.builds(programs.Program, UNSIGNED, UNSIGNED, st.binary(max_size=50)),
        st.builds(programs.Execute, UNSIGNED, IDS, IDS),
        st.builds(programs.ExecuteCalling, UNSIGNED, UNSIGNED, IDS, IDS),
        st.builds(programs.Returned, ELEMENTS),
        st.builds(programs.Returned, failure=TEXT),
        st.builds(
            vocabulary.Launch,
            UNSIGNED,
            st.tuples(*[st.integers(0, 2**31 - 1)] * 3),
            st.lists(POINTERS | st.integers(0, 2**64 - 1), max_size=4).map(tuple),
        ),
    )


def changes_of(words: dict[int, int]) -> tuple[stream.Change, ...]:
    return tuple(stream.Change(index, words[index]) for index in sorted(words))


NEW = st.builds(lambda storage, geometry, size: stream.Produced(OutputTag.NEW, storage, geometry, size), UNSIGNED, geometries(), UNSIGNED)
FLAT_PRODUCED = st.one_of(
    st.just(stream.Produced(OutputTag.NONE)),
    NEW,
    st.builds(
        lambda coalesced, sizes, parts: stream.Produced(OutputTag.SPARSE, items=parts, layout=1, coalesced=coalesced, sizes=tuple(sizes)),
        st.booleans(),
        st.lists(st.integers(0, 2**20), max_size=3),
        st.tuples(NEW, NEW),
    ),
    st.integers(0, 65536).map(lambda index: stream.Produced(OutputTag.SAME, same=index)),
    INTEGERS.map(lambda value: stream.Produced(OutputTag.INT, value=value)),
    FLOATS.map(lambda value: stream.Produced(OutputTag.DOUBLE, value=value)),
    st.booleans().map(lambda value: stream.Produced(OutputTag.BOOL, value=value)),
    COMPLEX.map(lambda value: stream.Produced(OutputTag.COMPLEX, value=value)),
)
PRODUCED = FLAT_PRODUCED | st.lists(FLAT_PRODUCED, max_size=4).map(lambda items: stream.Produced(OutputTag.LIST, items=tuple(items)))
CALL_TIMES = st.lists(st.tuples(st.integers(0, 2**32), st.integers(0, 2**62), UNSIGNED), max_size=4).map(
    lambda times: tuple(stream.CallTime(*time) for time in sorted(times))
)
SEGMENTS = st.lists(st.builds(stream.Segment, *[UNSIGNED] * 8), max_size=4).map(tuple)
WORK = st.builds(stream.Work, UNSIGNED, UNSIGNED)
NUMBERS = st.lists(UNSIGNED, max_size=4).map(tuple)
LAYOUTS = st.sampled_from(gang_work.Layout)
GANG_PLANS = st.builds(
    gang_work.GangPlan,
    LAYOUTS,
    UNSIGNED,
    st.lists(st.builds(gang_work.Weights, TEXT, NUMBERS, UNSIGNED, UNSIGNED, UNSIGNED), max_size=4).map(tuple),
    st.lists(st.builds(gang_work.Considered, LAYOUTS, UNSIGNED, UNSIGNED), max_size=4).map(tuple),
    UNSIGNED,
    UNSIGNED,
    NUMBERS,
    st.none() | st.builds(gang_work.Pipeline, st.booleans(), UNSIGNED, UNSIGNED, UNSIGNED, NUMBERS, UNSIGNED),
)
SEGMENT_STATE = st.builds(images.SegmentState, st.integers(0, images.STEPS_MAX), st.integers(0, 3), UNSIGNED, TEXT)
STAGED_STATE = st.builds(images.SegmentState, st.integers(0, images.STEPS_MAX), st.integers(4, 5), UNSIGNED, TEXT, NUMBERS)
SEGMENT_STATES = st.lists(SEGMENT_STATE | STAGED_STATE, max_size=4).map(tuple)
LONE_WORK = st.lists(st.builds(stream.LoneWork, TEXT, st.sampled_from(stream.Alone), WORK), max_size=4).map(tuple)
REPLIES: st.SearchStrategy[stream.Reply] = st.one_of(
    st.builds(stream.Welcome, UNSIGNED, TEXT, TEXT, TEXT, UNSIGNED, TEXT, UNSIGNED, st.booleans(), *[st.integers(0, 255)] * 2, NUMBERS),
    st.builds(images.Checkpoints, UNSIGNED, st.lists(st.tuples(UNSIGNED, st.booleans()), max_size=4).map(tuple), TEXT),
    st.builds(images.WentBack, UNSIGNED, UNSIGNED, IDS, UNSIGNED),
    st.builds(images.Kept, UNSIGNED, UNSIGNED, UNSIGNED, TEXT),
    st.builds(images.ImageVersions, st.binary(max_size=50)),
    st.builds(images.ImageProducts, st.binary(max_size=50)),
    st.builds(images.ImageSegmentStates, SEGMENT_STATES),
    st.builds(Resumed, UNSIGNED),
    st.builds(stream.Refused, TEXT, st.booleans()),
    st.builds(stream.Data, UNSIGNED, UNSIGNED, st.binary(max_size=50)),
    st.builds(stream.Done, UNSIGNED, UNSIGNED),
    st.builds(stream.Shared, UNSIGNED, st.integers(0, stream.SHARED_BYTES_MAX)),
    st.builds(stream.Times, UNSIGNED, UNSIGNED, CALL_TIMES),
    st.builds(stream.Segments, UNSIGNED, SEGMENTS),
    st.builds(stream.GangWork, UNSIGNED, UNSIGNED, WORK, WORK, LONE_WORK, st.none() | GANG_PLANS),
    st.builds(vocabulary.Door, UNSIGNED, TEXT, TICKETS),
    st.builds(
        *(programs.Compiled, UNSIGNED, TEXT, st.tuples(ARRAYS, ARRAYS), st.lists(ARRAYS, max_size=2).map(tuple)),
        *(DONATED, UNSIGNED, st.booleans()),
    ),
    st.builds(programs.Callback, UNSIGNED, UNSIGNED, ELEMENTS),
    st.builds(stream.Outputs, UNSIGNED, st.lists(PRODUCED, max_size=4).map(tuple)),
    st.builds(stream.Failure, UNSIGNED, UNSIGNED, st.sampled_from(stream.FailureCode), UNSIGNED, TEXT, TEXT, TEXT),
)


def encode(commands: list[stream.Command]) -> bytes:
    writer = stream.CommandWriter()
    for command in commands:
        writer.add(command)
    return writer.take()


@given(conversations())
@settings(max_examples=EXAMPLES, deadline=None)
def test_commands_come_out_as_they_went_in(commands: list[stream.Command]) -> None:
    assert stream.CommandReader().read(encode(commands)) == commands


@given(REPLIES)
@settings(max_examples=EXAMPLES, deadline=None)
def test_replies_come_out_as_they_went_in(reply: stream.Reply) -> None:
    assert stream.decode_reply(stream.encode_reply(reply)) == reply


@pytest.mark.parametrize("leave", [stream.Leave(3), stream.Leave(3, 1 << 62), stream.Leave(3, 5, 4)])
def test_a_session_leaves_with_as_many_images_as_it_has(leave: stream.Leave) -> None:
    assert stream.CommandReader().read(encode([leave])) == [leave]
    assert len(encode([leave])) < 5 or leave.image, "a worker of an earlier release is told of none"


def test_a_worker_of_an_earlier_release_tells_of_no_images() -> None:
    told = stream.Welcome(5, "2.13.0", "cpu", "cpu-dev", 1 << 30, "", 120_000, True, 3, 1, (4, 9))
    body = stream.encode_reply(told)
    assert stream.decode_reply(body[:-4]) == dataclasses.replace(told, begun=0, images=())
    assert stream.decode_reply(body[:-5]) == dataclasses.replace(told, checkpoints=0, begun=0, images=())
    for cut in (1, 2, 3):
        with pytest.raises(stream.WireError):
            stream.decode_reply(body[:-cut])
    with pytest.raises(stream.WireError, match="the number of images"):
        stream.decode_reply(stream.encode_reply(dataclasses.replace(told, images=tuple(range(65)))))


def test_numbers_begin_again_with_other_operators_and_templates() -> None:
    reader, writer = steps.StepReader(), stream.CommandWriter()
    tensor = Argument(Tag.TENSOR, geometry=stream.Geometry(6, (4,), (1,)))
    for name, arguments in (("aten::neg", (tensor,)), ("aten::add", (tensor, tensor))):
        views = tuple(stream.View(1, 0) for _ in arguments)
        template = stream.Template(0, arguments, (Output(OutputTag.SAME),))
        defined = stream.Operator(name, "", 1), stream.DefineTemplate(template)
        for command in (*defined, stream.Call(0, views), stream.Cut(False), stream.Follow(1)):
            writer.add(command)
        called = [event for event in reader.read(writer.take()) if isinstance(event, steps.Called)]
        assert [one.name for one in reader.operators] == [name]
        assert [one.template for one in called] == [template] * 2 and reader.template(0) == template
        writer.add(stream.Renumber())


def expect_reading_or_refusal(body: bytes) -> None:
    try:
        stream.CommandReader().read(body)
    except stream.WireError as error:
        assert str(error)


@given(st.binary(max_size=400))
@settings(max_examples=1000, deadline=None)
def test_random_bytes_are_read_or_refused(body: bytes) -> None:
    expect_reading_or_refusal(body)
    expect_reading_or_refusal(b"\x03" + body)
    for reply in (body, bytes([65 + len(body) % 6]) + body):
        try:
            stream.decode_reply(reply)
        except stream.WireError as error:
            assert str(error)


@given(conversations(), st.data())
@settings(max_examples=EXAMPLES, deadline=None)
def test_damaged_commands_are_read_or_refused(commands: list[stream.Command], data: st.DataObject) -> None:
    body = bytearray(encode(commands))
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, len(body) - 1))
        body[where] = data.draw(st.integers(0, 255))
    del body[data.draw(st.integers(1, len(body))) :]
    expect_reading_or_refusal(bytes(body))


MANY = b"\xff\xff\xff\xff\x0f"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", None),
        (b"\x63", "an unknown command 99"),
        (b"\x04\x00", "template 0 is not defined"),
        (b"\x08" + MANY, "the number of storages is 4294967295"),
        (b"\x08\xff\xff\x03", "the frame ends before"),
        (b"\x09\x01\x00" + MANY, "the size of a chunk is 4294967295"),
        (b"\x0a\x01\x01\x00\x81\x80\x80\x02", "the size of a chunk is 4194305"),
        (b"\x06\x01" + b"\xff" * 10, "an integer longer than 64 bits"),
        (b"\x06\x01\x81\x80\x80\x80\x80\x80\x20", "the size of a storage is"),
        (b"\x03\x00\x00" + MANY, "the number of arguments is 4294967295"),
        (b"\x03\x00\x00\x01\x63", "an argument of unknown kind 99"),
        (b"\x03\x00\x00\x01\x01\x06\x00\x41" + bytes(200), "the number of dimensions is 65"),
        (b"\x03\x00\x00\x01\x03\x01\x03\x00", "a list within a list"),
        (b"\x03\x00\x00\x01\x03\x01\x04\x02", "a list holds an item of another kind"),
        (b"\x03\x00\x00\x00\x01\x09", "an output of unknown kind 9"),
        (b"\x03\x00\x00\x01\x12\x03\x00\x00", "a sparse tensor of unknown layout 3"),
        (b"\x03\x00\x00\x01\x12\x01\x02\x00", "a sparse tensor of unknown flags 2"),
        (b"\x03\x00\x00\x01\x12\x01\x00\x02" + b"\x80\x80\x80\x80\x80\x40" * 2, "more places than can be counted"),
        (b"\x03\x00\x00\x01\x03\x01\x12\x01\x00\x00" + bytes(6), "a list holds an item of another kind"),
        (b"\x02\x05ab", "the length of a string is 5, the frame ends before"),
        (b"\x02\x01\xff\x00" + bytes(8), "a string that is not UTF-8"),
        (b"\x0b", "a frame ends in the middle of a command"),
    ],
)
def test_each_kind_of_damage_has_its_sentence(body: bytes, sentence: str | None) -> None:
    if sentence is None:
        assert stream.CommandReader().read(body) == []
        return
    with pytest.raises(stream.WireError, match=sentence):
        stream.CommandReader().read(body)


def test_lists_of_one_template_share_a_limit() -> None:
    """An item of one byte takes some two hundred in memory, so sixteen lists of 65,536 may not all be read."""
    items = b"\x03\x80\x80\x04" + bytes(65536)
    with pytest.raises(stream.WireError, match="the number of items in a template's lists"):
        stream.CommandReader().read(b"\x03\x00\x00\x10" + items * 16)


def test_a_count_that_lies_allocates_nothing() -> None:
    bodies = [
        b"\x03\x00\x00\x01\x0c\x80\x80\x04\x00",
        b"\x03\x00\x00\x01\x0b\x80\x80\x04",
        b"\x08\xff\xff\xff\x01",
        b"\x09\x01\x00\xff\xff\xff\x01",
    ]
    tracemalloc.start()
    for body in bodies:
        expect_reading_or_refusal(body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("header", [struct.pack("<I", 0), struct.pack("<I", stream.FRAME_BYTES_MAX + 1), b"\xff" * 4])
def test_a_frame_of_forbidden_size_is_refused(header: bytes) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(header)
        with pytest.raises(stream.WireError, match="between 1 and 16777216 are accepted"):
            stream.read_frame(ours)


def test_frames_arrive_whole_and_their_end_is_told_from_a_break() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(stream.frame(b"abc") + stream.frame(b"d") + stream.frame(b"broken")[:-1])
        assert stream.read_frame(ours) == b"abc"
        assert stream.read_frame(ours) == b"d"
        with pytest.raises(stream.WireError, match="in the middle of a frame"):
            stream.read_frame(ours)
        assert stream.read_frame(ours) is None


def test_a_tensor_must_fit_what_a_storage_may_hold() -> None:
    assert Geometry(6, (2, 3), (3, 1)).span() == 6
    assert Geometry(6, (2, 0), (3, 1)).span() == 0
    assert Geometry(6, (), ()).span() == 1
    assert Geometry(6, (2**40,), (0,)).span() == 1
    for strides in [(2**46,), (2**45,)]:
        with pytest.raises(stream.WireError, match="larger than a storage may be"):
            Geometry(6, (2**46,), strides).span()


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (stream.Call(0, (stream.View(1),)), "fewer bindings than the template takes"),
        (stream.Call(0, (stream.View(1), 1.0, 2, 3)), "more bindings than the template takes"),
        (stream.Call(0, (1, 1.0, 2)), "a tensor is bound to a View"),
        (stream.Call(0, (stream.View(1), 1j, 2)), "a real number is bound to a complex one"),
        (stream.Call(1, ()), "template 1 is not defined"),
    ],
)
def test_bindings_that_do_not_fit_are_not_written(command: stream.Call, sentence: str) -> None:
    geometry = Geometry(6, (2,), (1,))
    arguments = (Argument(Tag.TENSOR, geometry=geometry), Argument(Tag.DOUBLE))
    template = Template(0, arguments, (Output(OutputTag.NEW, geometry=geometry, storage_bytes=8),))
    with pytest.raises(stream.WireError, match=sentence):
        encode([stream.DefineTemplate(template), command])


def test_a_schema_is_known_by_its_fnv_hash() -> None:
    """The vectors are those of the hash's authors."""
    assert stream.schema_hash("") == 0xCBF29CE484222325
    assert stream.schema_hash("a") == 0xAF63DC4C8601EC8C
    assert stream.schema_hash("foobar") == 0x85944171F73967E8
