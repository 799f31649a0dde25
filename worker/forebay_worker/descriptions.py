"""What the executor says of a segment to its compiler: operators, geometries, aliases, no contents (``csrc/tier2/specialization.cpp``)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

from forebay_wire._stream import Reader, WireError
from forebay_wire.steps import word_kinds
from forebay_wire.stream import Argument, Geometry, Output, Template, get_template
from forebay_wire.vocabulary import FLOAT

PLACES_MAX = 16_384
CALLS_MAX = 65_536
NUMBERS_MAX = 4096
GUARDS_MAX = 4096
WINDOWS_MAX = 1024


class WordKind(IntEnum):
    """What a word of a call stands for."""

    USED = 0
    MADE = 1
    CONSTANT = 2
    NUMBER = 3
    IGNORED = 4
    DRAWN = 5
    WINDOW = 6


class Word(NamedTuple):
    """A word that a call binds."""

    kind: WordKind
    value: int
    """The number of the storage, the constant as the stream has it, or which of the changing numbers, the draws or the windows it is."""


class Guard(NamedTuple):
    """Between which numbers those of an argument must lie, which the segment computes."""

    argument: int
    item: int
    """Of a list: its number and 1."""
    least: int
    most: int
    excepted: int | None
    """May be there, too."""


@dataclass(frozen=True)
class Place:
    """A storage."""

    is_input: bool
    """As a whole."""
    is_output: bool
    geometry: Geometry | None
    """Of all its elements; None where no call uses it."""


class Window(NamedTuple):
    """A tensor over a storage that is there before, which lies elsewhere from time to time."""

    is_output: bool
    """It is written to, and all that the segment looks at of its storage."""
    geometry: Geometry


@dataclass(frozen=True)
class Call:
    """A call of an operator, such as ``aten::add`` with the overload ``Tensor``."""

    operator: str
    overload: str
    template: Template
    words: tuple[Word, ...]
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class Description:
    """A segment. Its library takes the inputs in their order, behind them one tensor of the changing numbers if there are any, what is
    drawn for it, and the windows; it gives the outputs, windows among them last, and behind them, where calls have guards, how many numbers
    do not lie where these say."""

    numbers: int
    """How many numbers change from time to time."""
    places: tuple[Place, ...]
    calls: tuple[Call, ...]
    draws: int = 0
    """How many calls are given what they draw."""
    windows: tuple[Window, ...] = ()

    @property
    def default_dtype(self) -> int:
        """PyTorch's default dtype under which its first call is made."""
        return next((call.template.default_dtype for call in self.calls), FLOAT)

    @property
    def tells_astray(self) -> bool:
        """Whether something is given behind the outputs."""
        return any(call.guards for call in self.calls)


def form_of(description: Description) -> bytes:
    """The same for segments that differ in numbers alone, sizes among them."""
    places = [(place.is_input, place.is_output, _form(place.geometry)) for place in description.places]
    calls = [
        (
            call.operator,
            call.overload,
            call.template.flags,
            [_form(argument) for argument in call.template.arguments],
            [_form(output) for output in call.template.outputs],
            [(int(word.kind), word.kind != WordKind.CONSTANT and word.value) for word in call.words],
            [guard.argument for guard in call.guards],
        )
        for call in description.calls
    ]
    windows = [(window.is_output, _form(window.geometry)) for window in description.windows]
    return repr((description.numbers, description.draws, windows, places, calls)).encode()


def changing_in(description: Description) -> set[tuple[int, int]]:
    """The numbers that change: of which call, and which of its words."""
    calls = enumerate(description.calls)
    return {(number, place) for number, call in calls for place, word in enumerate(call.words) if word.kind == WordKind.NUMBER}


def form_without_numbers(description: Description) -> bytes:
    """The same for segments that differ in constants alone, and in which of their numbers change."""
    numbers = (WordKind.CONSTANT, WordKind.NUMBER)
    calls = [
        (call.operator, call.overload, call.template, [None if word.kind in numbers else tuple(word) for word in call.words], call.guards)
        for call in description.calls
    ]
    return repr((description.draws, description.windows, description.places, calls)).encode()


def _form(one: Geometry | Argument | Output | None) -> Any:
    match one:
        case Geometry():
            return one.dtype, len(one.sizes)
        case Argument():
            return int(one.tag), _form(one.geometry), one.dtype, one.count, len(one.list), one.text, [_form(item) for item in one.items]
        case Output():
            return int(one.tag), _form(one.geometry), [_form(item) for item in one.items]
    return None


def read(body: bytes) -> Description:
    """Raises WireError for what the executor would not have said."""
    reader = Reader(body)
    numbers = reader.bounded(NUMBERS_MAX, "the number of changing numbers")
    draws = reader.bounded(CALLS_MAX, "the number of draws")
    windows = tuple(Window(bool(reader.u8()), _geometry(reader)) for _ in range(reader.count(WINDOWS_MAX, "the number of windows")))
    places = tuple(_place(reader) for _ in range(reader.count(PLACES_MAX, "the number of storages")))
    calls = tuple(_call(reader, len(places), numbers, draws, len(windows)) for _ in range(reader.count(CALLS_MAX, "the number of calls")))
    if not reader.done():
        raise WireError("a description with something behind it")
    return Description(numbers, places, calls, draws, windows)


def _place(reader: Reader) -> Place:
    flags = reader.u8()
    return Place(bool(flags & 1), bool(flags & 2), _geometry(reader) if flags & 4 else None)


def _geometry(reader: Reader) -> Geometry:
    dtype, sizes, strides, conjugate = reader.geometry()
    return Geometry(dtype, tuple(sizes), tuple(strides), conjugate)


def _call(reader: Reader, places: int, numbers: int, draws: int, windows: int) -> Call:
    operator, overload = reader.string().decode(), reader.string().decode()
    template = get_template(reader)
    words = tuple(Word(WordKind(reader.u8()), reader.u64()) for _ in word_kinds(template))
    for word in words:
        if word.kind in (WordKind.USED, WordKind.MADE) and word.value >= places:
            raise WireError("a storage that the description does not have")
        if word.kind == WordKind.NUMBER and word.value >= numbers:
            raise WireError("a changing number that the description does not have")
        if word.kind == WordKind.DRAWN and word.value >= draws:
            raise WireError("a draw that the description does not have")
        if word.kind == WordKind.WINDOW and word.value >= windows:
            raise WireError("a window that the description does not have")
    guards = tuple(_guard(reader) for _ in range(reader.count(GUARDS_MAX, "the number of guards")))
    return Call(operator, overload, template, words, guards)


def _guard(reader: Reader) -> Guard:
    argument, item = reader.varint(), reader.varint()
    least, most = reader.zigzag(), reader.zigzag()
    has_exception, excepted = reader.u8(), reader.zigzag()
    return Guard(argument, item, least, most, excepted if has_exception else None)
