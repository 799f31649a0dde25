"""What a client asks of a session with several devices, and is told: ``docs/wire.md``, TELL_GANG and GANG."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from forebay_wire import _stream
from forebay_wire._stream import Reader, WireError, Writer


class Alone(IntEnum):
    """Why a call is carried out on one device alone."""

    NO_BATCH = 0
    NO_ROOM = 1
    NO_RULE = 2
    VIEWS = 3
    SIZES = 4
    KEPT = 5


@dataclass(frozen=True)
class Work:
    calls: int
    ns: int
    """Of the worker of the first device."""


@dataclass(frozen=True)
class LoneWork:
    operator: str
    """With its overload."""
    reason: Alone
    work: Work


class Layout(IntEnum):
    """How a step's batches and weights are held."""

    WHOLE = 0
    """Each device has all of both, and computes the same."""
    DATA = 1
    """Each device has its rows of the batches, and copies of the weights."""
    TENSOR = 2
    """Each device has all of the batches, and rows of weights."""
    ROWS = 3
    """Each device has rows of both."""


@dataclass(frozen=True)
class Weights:
    """Storages that are held alike: those that come to the same argument of the same kind of calls."""

    operator: str
    """That uses them first."""
    sizes: tuple[int, ...]
    """As it is given them."""
    count: int
    bytes: int
    """Of all together."""
    rows_of: int
    """0: copies; else 1 and the dimension whose rows each device has a part of."""


@dataclass(frozen=True)
class Considered:
    """The best that was found of a layout, as it was predicted."""

    layout: Layout
    step_ns: int
    bytes: int
    """Of one device, at most."""


@dataclass(frozen=True)
class Pipeline:
    """A step in stages, of which each device has one or several devices one together, as it was predicted."""

    serves: bool
    """Whether steps are carried out so."""
    parts: int
    """Of a batch."""
    step_ns: int
    bytes: int
    """Of one device, at most."""
    stages: tuple[int, ...]
    """Bytes of the weights of each."""
    rows: int = 1
    """Devices of each stage, which take the parts of a batch by turns."""


@dataclass(frozen=True)
class GangPlan:
    """The last one that was chosen."""

    layout: Layout
    room_bytes: int
    """Of one device, that a plan may use."""
    weights: tuple[Weights, ...]
    """Those of 64 KiB and more, the largest first."""
    considered: tuple[Considered, ...]
    steps: int
    """That were measured."""
    step_ns: int
    """Their median: what the worker of the first device spent on calls."""
    bytes: tuple[int, ...]
    """Of each device, the most in a measured step."""
    pipeline: Pipeline | None = None
    """Where a step can be one."""


@dataclass(frozen=True)
class GangWork:
    """What the devices of a session did so far, together and alone."""

    request: int
    devices: int
    divided: Work
    copies: Work
    alone: tuple[LoneWork, ...]
    plan: GangPlan | None = None
    """Where a step is divided by plan."""


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
    if reply.plan is not None:
        _put_plan(out, reply.plan)


def get_gang_work(reader: Reader) -> GangWork:
    """Reads what comes after the opcode. Raises WireError."""
    request, devices = reader.varint(), reader.varint()
    divided, copies = _get(reader), _get(reader)
    number = reader.count(_stream.LONE_WORK_MAX, "the number of operators that ran alone")
    alone = tuple(_lone(reader) for _ in range(number))
    return GangWork(request, devices, divided, copies, alone, None if reader.done() else _get_plan(reader))


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


def _put_plan(out: Writer, plan: GangPlan) -> None:
    out.u8(plan.layout)
    out.varint(plan.room_bytes)
    out.varint(len(plan.weights))
    for weights in plan.weights:
        out.string(weights.operator)
        _put_list(out, weights.sizes)
        _put_numbers(out, weights.count, weights.bytes, weights.rows_of)
    out.varint(len(plan.considered))
    for one in plan.considered:
        out.u8(one.layout)
        _put_numbers(out, one.step_ns, one.bytes)
    _put_numbers(out, plan.steps, plan.step_ns)
    _put_list(out, plan.bytes)
    if plan.pipeline is not None:
        out.u8(plan.pipeline.serves)
        _put_numbers(out, plan.pipeline.parts, plan.pipeline.step_ns, plan.pipeline.bytes)
        _put_list(out, plan.pipeline.stages)
        out.varint(plan.pipeline.rows)


def _get_plan(reader: Reader) -> GangPlan:
    """Raises WireError."""
    layout, room_bytes = _layout(reader), reader.varint()
    weights = tuple(_weights(reader) for _ in range(_count(reader)))
    considered = tuple(Considered(_layout(reader), reader.varint(), reader.varint()) for _ in range(_count(reader)))
    steps, step_ns, held = reader.varint(), reader.varint(), _numbers(reader)
    return GangPlan(layout, room_bytes, weights, considered, steps, step_ns, held, None if reader.done() else _pipeline(reader))


def _pipeline(reader: Reader) -> Pipeline:
    serves, parts, step_ns, held = bool(reader.u8()), reader.varint(), reader.varint(), reader.varint()
    return Pipeline(serves, parts, step_ns, held, _numbers(reader), 1 if reader.done() else reader.varint())


def _weights(reader: Reader) -> Weights:
    try:
        operator = reader.string().decode()
    except UnicodeDecodeError:
        raise WireError("an operator's name that is not UTF-8") from None
    return Weights(operator, _numbers(reader), reader.varint(), reader.varint(), reader.varint())


def _layout(reader: Reader) -> Layout:
    number = reader.u8()
    if number not in set(Layout):
        raise WireError(f"an unknown layout {number} of a step")
    return Layout(number)


def _count(reader: Reader) -> int:
    return reader.count(_stream.PLAN_ITEMS_MAX, "the length of a list in a plan")


def _numbers(reader: Reader) -> tuple[int, ...]:
    return tuple(reader.varint() for _ in range(_count(reader)))


def _put_list(out: Writer, numbers: tuple[int, ...]) -> None:
    _put_numbers(out, len(numbers), *numbers)


def _put_numbers(out: Writer, *numbers: int) -> None:
    for number in numbers:
        out.varint(number)
