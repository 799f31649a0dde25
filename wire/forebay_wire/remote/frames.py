"""The stream between a client and the worker that runs its process: ``docs/wire.md``, Processes beside a device.

A frame is its length as four bytes (little-endian, of what follows), one byte that says what it is, and its contents.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Annotated, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from forebay_wire.message_parts import Count, Hex256, Message, Text, Ticket

FRAME_BYTES_MAX = 32 * 2**20
"""Of one frame, without its length. A list of files is the longest."""
PIECE_BYTES = 2**18
"""Of contents and output that go in one frame."""
INPUT_BYTES_MAX = 2**20
FILES_MAX = 100_000
PATH_BYTES_MAX = 4096
ARGUMENTS_MAX = 4096
ARGUMENT_CHARACTERS_MAX = 2**17
"""As Linux has it (``MAX_ARG_STRLEN``)."""
HEAD = struct.Struct("<IB")
T = TypeVar("T")
Argument = Annotated[str, Field(max_length=ARGUMENT_CHARACTERS_MAX, pattern=r"^[^\x00]*$")]


class StreamError(ValueError):
    """A frame that is none of this stream's."""


class FrameKind(IntEnum):
    """What a frame holds."""

    MESSAGE = 0
    """One of the messages below, as JSON."""
    INPUT = 1
    """What the process reads; an empty one is its end."""
    OUTPUT = 2
    ERRORS = 3
    """What the process writes to standard output and standard error."""
    CONTENTS = 4
    """A piece of the file whose turn it is. A file's pieces end where its size is reached."""


class File(Message):
    """A regular file of the folder."""

    path: Annotated[str, Field(min_length=1, max_length=PATH_BYTES_MAX)]
    """Below the folder, with ``/`` between names."""
    size: Count
    hash: Hex256
    """SHA-256 of its contents."""
    executable: bool = False


# Client to worker


class Enter(Message):
    """The first message."""

    type: Literal["enter"] = "enter"
    ticket: Ticket


class Start(Message):
    """What to run, and the files of its folder; answered by :class:`Wanted`."""

    type: Literal["start"] = "start"
    arguments: Annotated[tuple[Argument, ...], Field(min_length=1, max_length=ARGUMENTS_MAX)]
    files: Annotated[tuple[File, ...], Field(max_length=FILES_MAX)]
    result_bytes_max: Count
    """Of files that come back. Others are left on the host, and named."""


class Signal(Message):
    """Gives the process a signal by its number, SIGINT, SIGTERM or SIGKILL: to all of its foreground group, as a terminal does."""

    type: Literal["signal"] = "signal"
    number: Literal[2, 9, 15]


def signal_of(number: int) -> Signal:
    """Raises ValidationError for one that is not sent."""
    return Signal.model_validate({"number": int(number)})


# Both


class Wanted(Message):
    """Which of the files that were told of the other side does not have: their places in the list, in the order in which their contents are
    to come."""

    type: Literal["wanted"] = "wanted"
    places: Annotated[tuple[Count, ...], Field(max_length=FILES_MAX)]

    def of(self, files: tuple[File, ...]) -> list[File]:
        """Raises StreamError for a place that the list does not have."""
        try:
            return [files[place] for place in self.places]
        except IndexError:
            raise StreamError(f"a place beyond a list of {len(files)} files") from None


# Worker to client


class Entered(Message):
    """The ticket was right."""

    type: Literal["entered"] = "entered"


class Started(Message):
    """The process runs, and its time counts."""

    type: Literal["started"] = "started"


class Took(Message):
    """The process has been given so many bytes more of what it reads. A client sends no more than :data:`INPUT_BYTES_MAX` before that."""

    type: Literal["took"] = "took"
    bytes: Count


class Exited(Message):
    """The process and all that it started are gone. Its time counts no more. Followed by :class:`Results`."""

    type: Literal["exited"] = "exited"
    status: Annotated[int, Field(ge=0, le=255)]
    """128 and the signal's number where a signal ended it."""
    why: Text = ""
    """Why the host ended it, where it did."""


class Results(Message):
    """Files that are new, or other than they were sent; answered by :class:`Wanted`."""

    type: Literal["results"] = "results"
    files: Annotated[tuple[File, ...], Field(max_length=FILES_MAX)]
    left: Annotated[tuple[Text, ...], Field(max_length=64)] = ()
    """What does not come back, and why, each a sentence."""


class Denied(Message):
    """The worker ends the stream, and says why."""

    type: Literal["denied"] = "denied"
    why: Text


FromClient = Enter | Start | Signal | Wanted
FromWorker = Entered | Wanted | Started | Took | Exited | Results | Denied

_FROM_CLIENT: TypeAdapter[FromClient] = TypeAdapter(Annotated[FromClient, Field(discriminator="type")])
_FROM_WORKER: TypeAdapter[FromWorker] = TypeAdapter(Annotated[FromWorker, Field(discriminator="type")])


def frame(kind: FrameKind, contents: bytes | memoryview = b"") -> bytes:
    """One frame."""
    return HEAD.pack(len(contents) + 1, kind) + contents


def said(message: Message) -> bytes:
    """A message in its frame. Raises StreamError where it is too long."""
    contents = message.encode().encode()
    if len(contents) >= FRAME_BYTES_MAX:
        raise StreamError(f"a message of {len(contents)} bytes; at most {FRAME_BYTES_MAX} are accepted")
    return frame(FrameKind.MESSAGE, contents)


def head_of(data: bytes) -> tuple[FrameKind, int]:
    """What a frame holds, and how many bytes of it follow its head. Raises StreamError."""
    length, kind = HEAD.unpack(data)
    if not 1 <= length <= FRAME_BYTES_MAX:
        raise StreamError(f"a frame of {length} bytes; at most {FRAME_BYTES_MAX} are accepted")
    try:
        return FrameKind(kind), length - 1
    except ValueError:
        raise StreamError(f"a frame of an unknown kind, {kind}") from None


def from_client(contents: bytes) -> FromClient:
    """Raises StreamError."""
    return message_of(_FROM_CLIENT, contents)


def from_worker(contents: bytes) -> FromWorker:
    """Raises StreamError."""
    return message_of(_FROM_WORKER, contents)


def message_of(adapter: TypeAdapter[T], contents: str | bytes) -> T:
    """Reads JSON. Raises StreamError."""
    try:
        return adapter.validate_json(contents)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)[0]
        raise StreamError(f"{'.'.join(map(str, found['loc'])) or 'message'}: {found['msg']}") from None
