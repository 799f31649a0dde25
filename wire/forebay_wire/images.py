"""What a session is between two commands, on its way from one worker to another: the answer to a FETCH (``docs/wire.md``, Moving), and the
commands about images that outlive a worker (Images), and about what a session may go back to (Checkpoints)."""

from __future__ import annotations

from dataclasses import dataclass

from forebay_wire import _stream
from forebay_wire._stream import Reader, WireError, Writer


@dataclass(frozen=True)
class ImageLibraries:
    """A part of the libraries that go along; all parts come before the head."""

    data: bytes


@dataclass(frozen=True)
class ImageHead:
    sequence: int
    failures: int
    """So far; the number of the last one."""
    causes: int
    unheard: int
    """The cause that the client has not said it heard of, from 1; 0: none."""
    storages: int
    bytes: int


@dataclass(frozen=True)
class ImageCause:
    code: int
    sequence: int
    operator: str
    message: str
    inputs: str = ""


@dataclass(frozen=True)
class ImageStorage:
    storage: int
    bytes: int
    cause: int = 0
    """Why it was never made, from 1; 0: none."""
    has_bytes: bool = True


@dataclass(frozen=True)
class ImageStorages:
    storages: tuple[ImageStorage, ...]


@dataclass(frozen=True)
class ImageBytes:
    """The next bytes of those storages that have some, one after the other."""

    data: bytes


@dataclass(frozen=True)
class Keep:
    """Keeps an image of this number, and none before but ``base``."""

    number: int
    base: int = 0
    """The image that the client would go on from now; 0: none."""
    together: bool = False
    """The members of the session's process groups ask for theirs between the same collectives."""


@dataclass(frozen=True)
class Restore:
    """The session goes on from an image that another worker kept."""

    number: int


@dataclass(frozen=True)
class TracesPart:
    """A part of what the worker of that image remembered of its steps; the last one is empty."""

    data: bytes


@dataclass(frozen=True)
class Kept:
    number: int
    bytes: int
    took_ns: int
    why: str
    """Why it was not kept; empty: it was."""


@dataclass(frozen=True)
class ImageHoldings:
    """A part of how several devices hold the storages, and of what was found of the program's steps."""

    data: bytes


@dataclass(frozen=True)
class ImageSummand:
    """The next bytes of a device's part of a sum that is still to be made."""

    storage: int
    device: int
    data: bytes


@dataclass(frozen=True)
class ImageVersions:
    """A part of which checkpoints go along, and what each keeps; all parts come before the head."""

    data: bytes


@dataclass(frozen=True)
class ImageProducts:
    """A part of which storages can be made again, and by which calls; all parts come before the head."""

    data: bytes


@dataclass(frozen=True)
class SegmentState:
    """How a segment that repeats is carried out when it comes next."""

    step: int
    """Its last one, by its number in the order of TRACES."""
    course: int
    """0: it is not known yet by what; 1: call by call; 2: likewise, and its library is compared; 3: by its library; 4, 5: as 2 and 3, of a
    pipeline."""
    left: int = 0
    """How many times more its library or pipeline is compared."""
    library: str = ""
    pipeline: tuple[int, ...] = ()
    """The numbers that its worker has it by; of 4 and 5 alone."""


@dataclass(frozen=True)
class ImageSegmentStates:
    """Before all else in an image."""

    states: tuple[SegmentState, ...]


CHECKPOINTS_MAX = 1024
"""Of a session."""


@dataclass(frozen=True)
class Checkpoint:
    """Takes one. Numbers ascend."""

    number: int
    is_named: bool = False
    is_for_forks: bool = False
    """Sessions of forked processes may begin with it, and nobody goes back to it."""


@dataclass(frozen=True)
class TellCheckpoints:
    request: int
    held: int = 0
    """The one that is not dropped before the session has gone back to it."""


@dataclass(frozen=True)
class GoBack:
    request: int
    number: int


@dataclass(frozen=True)
class Checkpoints:
    request: int
    there: tuple[tuple[int, bool], ...]
    """Their numbers, and whether the storages hold what they held then."""
    why_dropped: str = ""
    """The others."""


@dataclass(frozen=True)
class WentBack:
    request: int
    changed: int
    storages: tuple[int, ...] = ()
    """Those that were put back; none where they are more than a list may hold."""
    resized: int = 0
    """Storages that were left alone, since they have another size."""


@dataclass(frozen=True)
class DropCheckpoint:
    """Nobody goes back to it any more, nor begins with it."""

    number: int


CheckpointCommand = Checkpoint | TellCheckpoints | GoBack | DropCheckpoint
ImageCommand = Keep | Restore | TracesPart | CheckpointCommand
COMMAND_OPCODES = (42, 43, 44, 49, 50, 51, 52)
CheckpointReply = Checkpoints | WentBack
STEPS_MAX = _stream.STEPS_MAX
COURSE_MAX = 5
PIPELINE_COURSES = (4, 5)
PIPELINE_NUMBERS_MAX = 8 * _stream.STORAGES_MAX
PartBefore = ImageSegmentStates | ImageProducts | ImageLibraries | ImageVersions
ImagePart = PartBefore | ImageHead | ImageCause | ImageStorages | ImageBytes | ImageHoldings | ImageSummand
ImageReply = ImagePart | Kept | CheckpointReply
OPCODES = (72, 73, 74, 75, 82, 85, 86, 87, 90, 91, 92, 93, 94)


def put_image_command(out: Writer, command: ImageCommand) -> None:
    match command:
        case Keep():
            out.u8(42)
            out.varint(command.number)
            out.varint(command.base)
            out.u8(command.together)
        case Restore():
            out.u8(43)
            out.varint(command.number)
        case TracesPart():
            out.u8(44)
            out.varint(len(command.data))
            out.raw(command.data)
        case Checkpoint():
            out.u8(49)
            out.varint(command.number)
            out.u8(command.is_named + 2 * command.is_for_forks)
        case TellCheckpoints():
            out.u8(50)
            out.varint(command.request)
            out.varint(command.held)
        case GoBack():
            out.u8(51)
            out.varint(command.request)
            out.varint(command.number)
        case DropCheckpoint():
            out.u8(52)
            out.varint(command.number)


def get_image_command(reader: Reader, opcode: int) -> ImageCommand:
    """What follows the opcode. Raises WireError."""
    match opcode:
        case 42:
            return Keep(reader.varint(), reader.varint(), bool(reader.u8()))
        case 43:
            return Restore(reader.varint())
        case 49:
            number, bits = reader.varint(), reader.u8()
            return Checkpoint(number, bool(bits & 1), bool(bits & 2))
        case 50:
            return TellCheckpoints(reader.varint(), reader.varint())
        case 51:
            return GoBack(reader.varint(), reader.varint())
        case 52:
            return DropCheckpoint(reader.varint())
    return TracesPart(reader.raw(reader.count(_stream.CHUNK_BYTES_MAX, "the size of a chunk")))


def put_image_reply(out: Writer, reply: ImageReply) -> None:
    """Appends the reply with its opcode."""
    match reply:
        case ImageHead():
            out.u8(72)
            for number in (reply.sequence, reply.failures, reply.causes, reply.unheard, reply.storages, reply.bytes):
                out.varint(number)
        case ImageCause():
            out.u8(73)
            out.u8(reply.code)
            out.u64(reply.sequence)
            out.string(reply.operator)
            out.string(reply.message)
            out.string(reply.inputs)
        case ImageStorages():
            out.u8(74)
            out.varint(len(reply.storages))
            for storage in reply.storages:
                out.varint(storage.storage)
                out.varint(storage.bytes)
                out.varint(storage.cause)
                out.u8(storage.has_bytes)
        case ImageBytes():
            out.u8(75)
            out.raw(reply.data)
        case ImageLibraries() | ImageHoldings() | ImageVersions() | ImageProducts():
            out.u8({ImageLibraries: 82, ImageHoldings: 86, ImageVersions: 92, ImageProducts: 94}[type(reply)])
            out.raw(reply.data)
        case ImageSegmentStates():
            out.u8(93)
            out.varint(len(reply.states))
            for state in reply.states:
                out.varint(state.step)
                out.u8(state.course)
                out.varint(state.left)
                out.string(state.library)
                if state.course in PIPELINE_COURSES:
                    out.varint(len(state.pipeline))
                    for number in state.pipeline:
                        out.varint(number)
        case ImageSummand():
            out.u8(87)
            out.varint(reply.storage)
            out.varint(reply.device)
            out.raw(reply.data)
        case Kept():
            out.u8(85)
            for number in (0, reply.number, reply.bytes, reply.took_ns):
                out.varint(number)
            out.string(reply.why)
        case Checkpoints() | WentBack():
            _put_checkpoint_reply(out, reply)


def _put_checkpoint_reply(out: Writer, reply: CheckpointReply) -> None:
    match reply:
        case Checkpoints():
            out.u8(90)
            out.varint(reply.request)
            out.varint(len(reply.there))
            for number, is_present in reply.there:
                out.varint(number)
                out.u8(is_present)
            out.string(reply.why_dropped)
        case WentBack():
            out.u8(91)
            for number in (reply.request, reply.changed, len(reply.storages), *reply.storages, reply.resized):
                out.varint(number)


def get_image_reply(reader: Reader, opcode: int) -> ImageReply:
    """What follows the opcode. Raises WireError."""
    match opcode:
        case 72:
            sequence, failures = reader.varint(), reader.varint()
            causes = reader.bounded(_stream.STORAGES_MAX + 1, "the number of causes")
            unheard = reader.bounded(causes, "the number of a cause")
            storages = reader.bounded(_stream.STORAGES_MAX, "the number of storages")
            size = reader.bounded(_stream.STORAGE_BYTES_MAX, "the size of an image")
            return ImageHead(sequence, failures, causes, unheard, storages, size)
        case 73:
            code, sequence = reader.u8(), reader.u64()
            texts = (reader.string(most).decode(errors="replace") for most in (_stream.STRING_BYTES_MAX, *[_stream.MESSAGE_BYTES_MAX] * 2))
            return ImageCause(code, sequence, *texts)
        case 85:
            reader.varint()
            return Kept(reader.varint(), reader.varint(), reader.varint(), reader.string(_stream.STRING_BYTES_MAX).decode(errors="replace"))
        case 74:
            count = reader.count(_stream.STORAGES_MAX, "the number of storages")
            return ImageStorages(tuple(_storage(reader) for _ in range(count)))
        case 75:
            return ImageBytes(reader.raw(reader.left()))
        case 82:
            return ImageLibraries(reader.raw(reader.left()))
        case 86:
            return ImageHoldings(reader.raw(reader.left()))
        case 93:
            count = reader.count(STEPS_MAX, "the number of segments")
            return ImageSegmentStates(tuple(_segment_state(reader) for _ in range(count)))
        case 92:
            return ImageVersions(reader.raw(reader.left()))
        case 94:
            return ImageProducts(reader.raw(reader.left()))
        case 87:
            return ImageSummand(reader.varint(), reader.varint(), reader.raw(reader.left()))
        case 90:
            request, count = reader.varint(), reader.count(CHECKPOINTS_MAX, "the number of checkpoints")
            there = tuple((reader.varint(), bool(reader.u8())) for _ in range(count))
            return Checkpoints(request, there, reader.string(_stream.STRING_BYTES_MAX).decode(errors="replace"))
        case 91:
            request, changed = reader.varint(), reader.varint()
            count = reader.count(_stream.ITEMS_MAX, "the number of storages")
            return WentBack(request, changed, tuple(reader.varint() for _ in range(count)), reader.varint())
    raise WireError(f"an unknown reply {opcode}")


def _segment_state(reader: Reader) -> SegmentState:
    step, course = reader.bounded(STEPS_MAX, "the number of a step"), reader.u8()
    if course > COURSE_MAX:
        raise WireError("a segment that is carried out by nothing known")
    left, library = reader.varint(), reader.string(_stream.STRING_BYTES_MAX).decode(errors="replace")
    count = reader.count(PIPELINE_NUMBERS_MAX, "the numbers of a pipeline") if course in PIPELINE_COURSES else 0
    return SegmentState(step, course, left, library, tuple(reader.varint() for _ in range(count)))


def _storage(reader: Reader) -> ImageStorage:
    storage, size = reader.varint(), reader.bounded(_stream.STORAGE_BYTES_MAX, "the size of a storage")
    return ImageStorage(storage, size, reader.varint(), reader.u8() != 0)
