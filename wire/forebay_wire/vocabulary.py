"""The words of the command stream as Python values: what ``docs/wire.md`` lists in its tables, field by field."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from forebay_wire import _stream
from forebay_wire.gang_work import GangWork
from forebay_wire.greetings import Fetch, Hello, Resume, Resumed, Welcome
from forebay_wire.images import ImageCommand, ImageReply
from forebay_wire.programs import Callback, Compiled, ProgramCommand

RANDOM = 1
"""Template flag: calls carry a seed and a counter."""
FLOAT = 6
"""PyTorch's ScalarType number of float32."""
DEFAULT_DTYPE_SHIFT = 1
"""Template flags from this bit on: PyTorch's default dtype that calls are made under, 0 for float32."""


def schema_hash(schema: str) -> int:
    """FNV-1a (64 bits) of the schema's text, as http://www.isthe.com/chongo/tech/comp/fnv/ defines it."""
    value = 0xCBF29CE484222325
    for byte in schema.encode():
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


class Tag(IntEnum):
    """Kinds of arguments."""

    NONE = 0
    TENSOR = 1
    SCALAR_TENSOR = 2
    TENSOR_LIST = 3
    INT = 4
    DOUBLE = 5
    BOOL = 6
    SCALAR_DOUBLE = 7
    SCALAR_INT = 8
    SCALAR_BOOL = 9
    SCALAR_COMPLEX = 10
    INT_LIST = 11
    DOUBLE_LIST = 12
    BOOL_LIST = 13
    STRING = 14
    DEVICE = 15
    GENERATOR = 16
    SCALAR_LIST = 17
    SPARSE = 18


class OutputTag(IntEnum):
    """Kinds of outputs."""

    NONE = 0
    NEW = 1
    SAME = 2
    LIST = 3
    UNKNOWN = 4
    INT = 5
    DOUBLE = 6
    BOOL = 7
    COMPLEX = 8
    SPARSE = 9


class FailureCode(IntEnum):
    """Why a command failed."""

    OPERATOR = 1
    OUT_OF_MEMORY = 2
    NEVER_MADE = 3
    UNSUPPORTED = 4
    GEOMETRY = 5
    INDEX = 6
    VALUE = 7
    TYPE = 8
    LINALG = 9
    DEVICE_LOST = 10


@dataclass(frozen=True)
class Geometry:
    """Sizes and strides in elements; ``dtype`` is PyTorch's ScalarType number; flags: 1 conjugate bit, 2 negative bit."""

    dtype: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    flags: int = 0

    def span(self) -> int:
        """Elements from the first to the last, both included; 0 if there are none. Raises WireError where a storage cannot hold it."""
        return _stream.span_of(self.dtype, self.sizes, self.strides, self.flags)


@dataclass(frozen=True)
class Argument:
    """The constant part of one argument; which fields mean something depends on the tag, as in ``wire.h``."""

    tag: Tag
    geometry: Geometry | None = None
    dtype: int = 0
    flag: bool = False
    integer: int = 0
    count: int = 0
    list: tuple[int, ...] = ()
    text: str = ""
    items: tuple[Argument, ...] = ()
    layout: int = 0


@dataclass(frozen=True)
class Output:
    """The constant part of one output."""

    tag: OutputTag
    geometry: Geometry | None = None
    storage_bytes: int = 0
    same: int = 0
    items: tuple[Output, ...] = ()


@dataclass(frozen=True)
class Template:
    """Everything of a call that does not change from step to step."""

    op: int
    arguments: tuple[Argument, ...]
    outputs: tuple[Output, ...]
    flags: int = 0

    @property
    def default_dtype(self) -> int:
        """PyTorch's default dtype under which its calls are made, as ScalarType number."""
        return self.flags >> DEFAULT_DTYPE_SHIFT or FLOAT


class Random(NamedTuple):
    """The state of the generator a random call starts from."""

    seed: int
    counter: int


class View(NamedTuple):
    """What a tensor argument is bound to; the offset counts elements."""

    storage: int
    offset: int = 0


Binding = View | int | float | complex | tuple[float, ...]
"""A tensor's view, a number's value, a double list's values, or (for an output) a storage id."""


@dataclass(frozen=True)
class Operator:
    name: str
    overload: str
    schema_hash: int


@dataclass(frozen=True)
class DefineTemplate:
    template: Template


@dataclass(frozen=True)
class Call:
    """Bindings are flat, in the order of the arguments, then of the outputs, lists flattened."""

    template: int
    bindings: tuple[Binding, ...]
    random: Random | None = None


@dataclass(frozen=True)
class Ask:
    request: int
    first_storage: int
    template: int
    bindings: tuple[Binding, ...]
    random: Random | None = None


@dataclass(frozen=True)
class Allocate:
    storage: int
    bytes: int


@dataclass(frozen=True)
class Resize:
    storage: int
    bytes: int


@dataclass(frozen=True)
class Free:
    storages: tuple[int, ...]


@dataclass(frozen=True)
class Write:
    storage: int
    offset_bytes: int
    data: bytes


@dataclass(frozen=True)
class Read:
    request: int
    storage: int
    offset_bytes: int
    bytes: int


@dataclass(frozen=True)
class Sync:
    request: int


@dataclass(frozen=True)
class Mark:
    epoch: int


@dataclass(frozen=True)
class Forget:
    pass


@dataclass(frozen=True)
class Renumber:
    """All numbers begin again, as behind a :class:`Hello`, but for those of storages and calls."""


@dataclass(frozen=True)
class Follow:
    """So many steps come as the worker expects them."""

    steps: int


class Change(NamedTuple):
    """The word at a position of a step, where it is not as expected; words are 64 bits, as ``docs/wire.md`` says."""

    position: int
    word: int


@dataclass(frozen=True)
class Step:
    """A step that came before comes with changes; ``child`` is its number among those that came here, None the one that came last."""

    child: int | None = None
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class Cut:
    forget: bool = False


@dataclass(frozen=True)
class Heard:
    """The client knows of the failure of this number: what follows is carried out again."""

    failure: int


@dataclass(frozen=True)
class Share:
    """Asks for an area of shared memory; its descriptor comes with the reply."""

    request: int
    bytes: int


@dataclass(frozen=True)
class WriteShared:
    storage: int
    offset_bytes: int
    bytes: int
    area_offset_bytes: int


@dataclass(frozen=True)
class ReadShared:
    request: int
    storage: int
    offset_bytes: int
    bytes: int
    area_offset_bytes: int


@dataclass(frozen=True)
class Copy:
    storage: int
    offset_bytes: int
    source: int
    source_offset_bytes: int
    bytes: int


@dataclass(frozen=True)
class Leave:
    """The session moves to another worker; ends the stream. Answered by :class:`Done`."""

    request: int
    image: int = 0
    """The number of the image that the worker keeps before it says that the session has left; 0: none."""
    base: int = 0
    """That of the one that stays beside it until another worker comes for the session; 0: none."""


@dataclass(frozen=True)
class Time:
    """The worker is to note when it carries out each of the next calls; what it noted before is dropped."""

    calls: int


@dataclass(frozen=True)
class TellTimes:
    """Answered by :class:`Times`."""

    request: int


@dataclass(frozen=True)
class TellSegments:
    """Answered by :class:`Segments`."""

    request: int


@dataclass(frozen=True)
class TellGang:
    """Answered by :class:`GangWork`."""

    request: int


@dataclass(frozen=True)
class Settings:
    """How the device is to compute from here on: bits of ``docs/wire.md``, SETTINGS."""

    bits: int


@dataclass(frozen=True)
class Limit:
    """What the session may hold on this device from here on, within what its worker was given; the rest goes back to the device."""

    bytes: int


class Collective(IntEnum):
    """What members of a process group carry out together."""

    BROADCAST = 1
    ALL_REDUCE = 2
    REDUCE = 3
    ALL_GATHER = 4
    GATHER = 5
    SCATTER = 6
    REDUCE_SCATTER = 7
    ALL_TO_ALL = 8
    MESSAGE = 9
    BARRIER = 10


class Reduction(IntEnum):
    SUM = 0
    AVERAGE = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4


@dataclass(frozen=True)
class OpenDoor:
    """The session becomes a member of a process group; answered by :class:`Door`."""

    request: int
    group: int
    rank: int
    size: int
    patience_ms: int


@dataclass(frozen=True)
class Member:
    """Where another member of the group is let in."""

    group: int
    member: int
    address: str
    ticket: bytes


@dataclass(frozen=True)
class Span:
    """Bytes of a storage."""

    storage: int
    offset_bytes: int
    bytes: int


@dataclass(frozen=True)
class Parcel:
    """For a member, or from it."""

    member: int
    span: Span


@dataclass(frozen=True)
class Exchange:
    group: int
    what: Collective
    sent: tuple[Parcel, ...]
    received: tuple[Parcel, ...]


@dataclass(frozen=True)
class Reduce:
    group: int
    what: Collective
    dtype: int
    reduction: Reduction
    input: Span
    result: Span


@dataclass(frozen=True)
class InPlace:
    """Elements that become the reduction of all members' own."""

    dtype: int
    reduction: Reduction
    span: Span


@dataclass(frozen=True)
class ReduceEach:
    """Of a gang's first worker to the others."""

    group: int
    each: tuple[InPlace, ...]


@dataclass(frozen=True)
class Part:
    """The session leaves the group."""

    group: int


@dataclass(frozen=True)
class KernelSource:
    """A kernel of the program's own, as its compiler hands it on."""

    compiler: str
    """Triton's release, whose representation it is in."""
    warps: int
    stages: int
    blocks: int
    """Thread blocks of a cluster."""
    registers_max: int
    """Of a thread; 0: as the compiler likes."""
    fuses: bool
    """Products and sums may become one instruction."""
    representation: bytes


@dataclass(frozen=True)
class Kernel:
    request: int
    kernel: int
    source: KernelSource


@dataclass(frozen=True)
class Pointer:
    """Where in a storage an argument of a kernel points."""

    storage: int
    offset_bytes: int


@dataclass(frozen=True)
class Launch:
    kernel: int
    grid: tuple[int, int, int]
    arguments: tuple[Pointer | int, ...]
    """A number as its bits."""


KernelCommand = Kernel | Launch
GroupCommand = OpenDoor | Member | Exchange | Reduce | ReduceEach | Part
StorageCommand = Allocate | Resize | Free | Write | Read | Sync | Mark | Heard | Share | WriteShared | ReadShared | Copy | Leave | Limit
Command = (
    Hello
    | Fetch
    | Resume
    | Operator
    | DefineTemplate
    | Call
    | Ask
    | Forget
    | Renumber
    | Follow
    | Step
    | Cut
    | Time
    | TellTimes
    | TellSegments
    | TellGang
    | Settings
    | GroupCommand
    | KernelCommand
    | ProgramCommand
    | ImageCommand
    | StorageCommand
)


@dataclass(frozen=True)
class Refused:
    message: str
    goes_on: bool = False
    """Whether another worker could be sent what this one was sent. Workers of earlier releases do not say so."""


@dataclass(frozen=True)
class Data:
    request: int
    busy_ns: int
    """How long the worker has carried out commands since it started."""
    data: bytes


@dataclass(frozen=True)
class Done:
    request: int
    busy_ns: int
    """How long the worker has carried out commands since it started."""


@dataclass(frozen=True)
class Produced:
    """One output that the worker tells: a storage with its geometry, an argument's index, a list, a value, or a sparse tensor."""

    tag: OutputTag
    storage: int = 0
    geometry: Geometry | None = None
    storage_bytes: int = 0
    same: int = 0
    value: int | float | bool | complex = 0
    items: tuple[Produced, ...] = ()
    layout: int = 0
    """Of a sparse tensor; the next two are, too, and its parts are the items."""
    coalesced: bool = False
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outputs:
    request: int
    outputs: tuple[Produced, ...]


@dataclass(frozen=True)
class Failure:
    request: int
    """0: no answer, but a notice that the stream has stopped."""
    number: int
    """Of the failure that stopped the stream, from 1; 0 where nothing stops: what was to be read was never made."""
    code: FailureCode
    sequence: int
    operator: str
    message: str
    """The operator's own."""
    inputs: str = ""
    """What it was given."""


@dataclass(frozen=True)
class Shared:
    """With ``bytes`` above 0 the frame carries a file descriptor of as many bytes."""

    request: int
    bytes: int


@dataclass(frozen=True)
class CallTime:
    sequence: int
    start_ns: int
    """By the clock of the worker."""
    took_ns: int


@dataclass(frozen=True)
class Times:
    """When calls were carried out, in their order."""

    request: int
    now_ns: int
    calls: tuple[CallTime, ...]


@dataclass(frozen=True)
class Segment:
    """Steps that came between two cuts, and came again."""

    identity: int
    """The same for the same steps, in any session."""
    times: int
    """How often they came, since the steps were dropped last."""
    calls: int
    allocations: int
    words: int
    """That the steps bind."""
    varying: int
    """Of them, numbers that came otherwise than the time before."""
    births: int
    """Storages that the steps make."""
    frees: int
    """Storages that are freed before the steps."""
    tier: int = 0
    """0: it came once; 1: its steps are known; 2: a library carries it out."""
    why: str = ""
    """The tier is not higher; or what its library takes of tier 1's time, how long it took to make, and for which sizes it is. In words."""


@dataclass(frozen=True)
class Segments:
    request: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Door:
    """Where a process group's members are let in, and what they show."""

    request: int
    address: str
    ticket: bytes


Told = Times | Segments | GangWork | Compiled | Callback
Reply = Door | Welcome | Resumed | Refused | Data | Done | Outputs | Failure | Shared | Told | ImageReply
