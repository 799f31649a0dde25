"""A random program's segment on a worker, again and again, from the same values each time."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from conftest import bytes_of
from forebay_wire import stream
from random_segments import CHANGING, Program, Sent

COMPILED = 1 << 11
DETERMINISTIC = 512
"""Of SETTINGS: no library carries anything out."""
UNSETTLED = ("it came once or twice", "no library was made", "is being made", "held against tier 1", "is timed", "had been constant")
"""Of reasons why a tier is not higher: those that may change."""
RANDOM = stream.Random(7, 11)


@dataclass
class Rounds:
    """A session that knows nothing of programs before this one."""

    client: Any
    program: Program
    ids: dict[int, int] = field(default_factory=dict)
    """Of the program's storages that are there."""

    def __post_init__(self) -> None:
        self.client.send(stream.Cut(True))
        self._templates = [
            None if step.op is None else self.client.template(replace(step.template, op=self.client.operator(step.op)))
            for step in self.program.sent
        ]
        for number, whole in self.program.before.items():
            self.ids[number] = self.client.upload(whole)
        self._synchronize()

    def round(self, factor: float = 1.0, steps: int | None = None, fails: bool = False) -> stream.Reply:
        """The numbers that change are multiplied by the factor; where it is not 1, what is read of data lies farther. ``steps``: it breaks
        off there. ``fails``: it may."""
        made = [number for number in self.ids if number not in self.program.before]
        self._free(made)
        for number, whole in self.program.before.items():
            self.client.writer.add(stream.Write(self.ids[number], 0, bytes_of(whole)))
        for step, template in list(zip(self.program.sent, self._templates, strict=True))[:steps]:
            self._free(step.freed)
            self.ids |= {number: self.client.storage() for number in step.made}
            if template is None:
                (number,) = step.made
                self.client.writer.add(stream.Allocate(self.ids[number], self.program.bytes_of(number)))
            else:
                self.client.writer.add(stream.Call(template, self._bindings(step, factor), RANDOM if step.draws else None))
        return self._synchronize(fails)

    def _synchronize(self, fails: bool = False) -> stream.Reply:
        reply: stream.Reply = self.client.sync()
        assert fails or isinstance(reply, stream.Done), reply
        return reply

    def _bindings(self, step: Sent, factor: float) -> tuple[stream.Binding, ...]:
        def bound(one: stream.Binding) -> stream.Binding:
            if isinstance(one, stream.View):
                farther = self.program.data.get(one.storage, 0) if factor != 1 else 0
                return stream.View(self.ids[one.storage], one.offset + farther)
            if isinstance(one, tuple):
                return tuple(bound(item) for item in one)  # type: ignore[return-value,misc]
            if not self.program.changing or one not in CHANGING:
                return one
            return type(one)(one * factor)

        return (*map(bound, step.bindings), *(self.ids[number] for number in step.made))

    def _free(self, numbers: Sequence[int]) -> None:
        gone = tuple(self.ids.pop(number) for number in numbers)
        if gone:
            self.client.writer.add(stream.Free(gone))

    def standing(self) -> tuple[int, str]:
        self.client.send(stream.TellSegments(self.client.request()))
        segment = max(self.client.reply().segments, key=lambda one: one.calls * one.times)
        return segment.tier, segment.why

    def settle(self, seconds_max: float, moves: bool = True) -> tuple[int, str]:
        """Rounds until it is known whether a library serves the segment. Numbers change in the first and the second, if ``moves``."""
        if moves:
            self.round(1.25)
            self.round(0.75)
        deadline = time.monotonic() + seconds_max
        while True:
            for _ in range(10):
                self.round()
            tier, why = self.standing()
            if tier == 2 or not any(word in why for word in UNSETTLED):
                return tier, why
            assert time.monotonic() < deadline, why
            if "is being made" in why:
                time.sleep(0.02)

    def outputs(self) -> dict[int, torch.Tensor]:
        """What the storages hold that a round leaves, by their numbers."""
        left = sorted(number for number in self.ids if number in self.program.written or number not in self.program.before)
        return {number: self.client.download(self.ids[number], self.program.geometries[number]) for number in left}

    def close(self) -> None:
        self._free(list(self.ids))
