"""A command stream with what its traces stand for: each call and allocation in full, whether it came so or as expected."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from forebay_wire._stream import Steps, WireError
from forebay_wire.stream import CommandReader
from forebay_wire.vocabulary import (
    RANDOM,
    Allocate,
    Argument,
    Ask,
    Call,
    Command,
    Copy,
    Cut,
    DefineTemplate,
    Follow,
    Forget,
    Free,
    Leave,
    Mark,
    Operator,
    Output,
    OutputTag,
    Read,
    ReadShared,
    Renumber,
    Resize,
    Settings,
    Step,
    Sync,
    Tag,
    Template,
    View,
    Write,
    WriteShared,
)

STORAGE, NEW, NUMBER, BITS, BYTE, COUNTER = range(6)
"""Kinds of words, as ``wire.h`` numbers them."""
CUTTING = (Ask, Copy, Leave, Mark, Read, ReadShared, Resize, Settings, Sync, Write, WriteShared)
"""What ends a segment, beside CUT and FORGET."""
_FLOATS = frozenset({5, 6, 7, 15, *range(23, 27), 44, 45})
_COMPLEX = frozenset({8, 9, 10})
_SCALAR_KINDS = {
    Tag.DOUBLE: (BITS,),
    Tag.SCALAR_DOUBLE: (BITS,),
    Tag.SCALAR_INT: (NUMBER,),
    Tag.SCALAR_COMPLEX: (BITS, BITS),
    Tag.SCALAR_BOOL: (BYTE,),
}


class Made(NamedTuple):
    """A storage is there from here on."""

    storage: int
    bytes: int


class Freed(NamedTuple):
    """These storages are there no more."""

    storages: tuple[int, ...]


class Called(NamedTuple):
    """A call of a template; its words are as ``docs/wire.md`` has them, Traces."""

    template: Template
    words: Sequence[int]


Event = Made | Freed | Called | Command
"""What a stream says: steps in full, and all other commands as they came."""


def word_kinds(template: Template) -> list[int]:
    """What each word is that a call of the template binds."""
    kinds: list[int] = []
    for argument in template.arguments:
        _argument_kinds(argument, kinds)
    for output in template.outputs:
        _output_kinds(output, kinds)
    return kinds + ([BITS, COUNTER] if template.flags & RANDOM else [])


def _argument_kinds(argument: Argument, kinds: list[int]) -> None:
    match argument.tag:
        case Tag.TENSOR:
            kinds += (STORAGE, NUMBER)
        case Tag.SCALAR_TENSOR if argument.dtype in _COMPLEX:
            kinds += (BITS, BITS)
        case Tag.SCALAR_TENSOR:
            kinds.append(BITS if argument.dtype in _FLOATS else NUMBER)
        case Tag.DOUBLE_LIST:
            kinds += [BITS] * argument.count
        case _:
            kinds += _SCALAR_KINDS.get(argument.tag, ())
    if argument.tag == Tag.SPARSE:
        kinds += (STORAGE, NUMBER) * len(argument.items)
        return
    for item in argument.items:
        _argument_kinds(item, kinds)


def _output_kinds(output: Output, kinds: list[int]) -> None:
    if output.tag == OutputTag.NEW:
        kinds.append(NEW)
    for item in output.items:
        _output_kinds(item, kinds)


def _words(kinds: Sequence[int], call: Call) -> list[int]:
    """What the call binds, as 64-bit words."""
    words: list[int] = []
    for binding in call.bindings:
        if isinstance(binding, View):
            words += binding
        elif isinstance(binding, int):
            words.append(_zigzag(binding) if kinds[len(words)] == NUMBER else binding)
        else:
            words += (_bits(value) for value in _doubles(binding))
    return words if call.random is None else [*words, *call.random]


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (~value << 1) | 1


def _bits(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def _doubles(binding: float | complex | tuple[float, ...]) -> Sequence[float]:
    if isinstance(binding, complex):
        return binding.real, binding.imag
    return binding if isinstance(binding, tuple) else (binding,)


@dataclass
class StepReader:
    """Reads the commands in the bodies of frames, and follows their traces."""

    operators: list[Operator] = field(default_factory=list)
    _commands: CommandReader = field(default_factory=CommandReader)
    _steps: Steps = field(default_factory=Steps)
    _templates: list[tuple[Template, list[int]]] = field(default_factory=list)
    """Those that are defined, with the kinds of their words."""
    _freed: list[int] = field(default_factory=list)
    """Since the last step."""
    _all_told: bool = False

    def template(self, number: int) -> Template:
        """Of those that are defined now."""
        return self._templates[number][0]

    def read(self, body: bytes) -> list[Event]:
        """All that one body says. Raises WireError."""
        events: list[Event] = []
        for command in self._commands.read(body):
            self._take(command, events)
        return events

    def _take(self, command: Command, events: list[Event]) -> None:
        match command:
            case Call():
                kinds = self._templates[command.template][1]
                self._come(command.template << 1, kinds, _words(kinds, command), events)
            case Allocate():
                self._come(command.bytes << 1 | 1, [NEW], [command.storage], events)
            case Follow():
                for _ in range(command.steps):
                    self._again(None, (), events)
            case Step():
                self._again(command.child, command.changes, events)
            case Free():
                self._freed += command.storages
                self._all_told = self._all_told or not command.storages
                events.append(Freed(command.storages))
            case _:
                self._take_other(command)
                events.append(command)

    def _take_other(self, command: Command) -> None:
        match command:
            case Operator():
                self.operators.append(command)
            case DefineTemplate():
                self._templates.append((command.template, word_kinds(command.template)))
            case Forget():
                self._templates.clear()
                self._steps.cut(True)
            case Renumber():
                self.operators.clear()
                self._templates.clear()
                self._freed.clear()
                self._steps, self._all_told = Steps(), False
            case Cut():
                self._steps.cut(command.forget)
            case _ if isinstance(command, CUTTING):
                self._steps.cut(False)

    def _come(self, key: int, kinds: Sequence[int], words: Sequence[int], events: list[Event]) -> None:
        self._steps.come(key, kinds, words, self._freed)
        self._happen(key, words, events)

    def _again(self, child: int | None, changes: Sequence[tuple[int, int]], events: list[Event]) -> None:
        key, words, freed = self._steps.again(child, changes, self._freed, self._all_told)
        if freed:
            events.append(Freed(tuple(freed)))
        self._happen(key, words, events)

    def _happen(self, key: int, words: Sequence[int], events: list[Event]) -> None:
        self._freed.clear()
        self._all_told = False
        if key & 1:
            events.append(Made(words[0], key >> 1))
        elif key >> 1 >= len(self._templates):
            raise WireError(f"template {key >> 1} is not defined")
        else:
            events.append(Called(self._templates[key >> 1][0], words))
