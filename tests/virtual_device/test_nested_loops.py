"""Programs of loops within loops, drawn at random, give the host's bits wherever their command stream is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
from forebay import _C
from hypothesis import given, settings
from hypothesis import strategies as st

REGISTERS = 4
CALLS_MAX = 9000
"""Of one program: what is searched for a loop, several times over."""


@dataclass(frozen=True)
class Call:
    """What is done with registers: into another one, or in place."""

    kind: Literal["add", "tanh", "add_", "keep", "drop", "read"]
    target: int
    source: int


@dataclass(frozen=True)
class Loop:
    rounds: int
    body: tuple[Call | Loop, ...]

    def calls(self) -> int:
        return self.rounds * sum(part.calls() if isinstance(part, Loop) else 1 for part in self.body)


CALLS = st.builds(Call, st.sampled_from(["add", "tanh", "add_", "add", "tanh", "keep", "drop"]), *[st.integers(0, REGISTERS - 1)] * 2)
BODIES = st.lists(CALLS, min_size=1, max_size=6)


@st.composite
def programs(draw: st.DrawFn) -> Loop:
    """Three loops deep: thousands of calls, with a read after each round of the outermost in half of them."""
    inner = Loop(draw(st.integers(1, 300)), tuple(draw(BODIES)))
    other = Loop(draw(st.integers(1, 40)), tuple(draw(BODIES)))
    middle = Loop(draw(st.integers(1, 20)), (*draw(BODIES), inner, *draw(BODIES), other))
    end = (Call("read", 0, 0),) if draw(st.booleans()) else ()
    whole = Loop(1, (*draw(BODIES), middle, *end))
    return Loop(max(1, min(30, CALLS_MAX // whole.calls())), whole.body) if whole.calls() < CALLS_MAX else Loop(1, (inner, *end))


def run(program: Loop, device: str) -> list[list[float]]:
    """All that was read, and what is in the registers, and was kept, at the end."""
    registers = [torch.full((4,), 0.25 * (index + 1)).to(device) for index in range(REGISTERS)]
    kept: list[torch.Tensor] = []
    read: list[list[float]] = []

    def carry_out(call: Call) -> None:
        source = registers[call.source]
        match call.kind:
            case "add":
                registers[call.target] = (registers[call.target] + source) * 0.5
            case "tanh":
                registers[call.target] = source.tanh()
            case "add_":
                registers[call.target].mul_(0.5).add_(source, alpha=0.25)
            case "keep":
                kept.append(source.clone())
            case "drop":
                del kept[:-3]
            case "read":
                read.append(source.tolist())

    def go_round(loop: Loop) -> None:
        for _ in range(loop.rounds):
            for part in loop.body:
                go_round(part) if isinstance(part, Loop) else carry_out(part)

    go_round(program)
    return [*read, *(tensor.tolist() for tensor in registers), *(tensor.tolist() for tensor in kept[-50:])]


@settings(max_examples=25, deadline=None)
@given(program=programs())
def test_a_program_of_loops_within_loops_gives_the_hosts_bits(program: Loop) -> None:
    assert run(program, "cuda") == run(program, "cpu")


def test_a_loop_that_fails_in_the_middle_of_a_known_round_goes_on_with_the_hosts_bits() -> None:
    table, state = torch.arange(4.0).cuda(), torch.zeros(2).cuda()
    good, bad = torch.tensor([1, 2]).cuda(), torch.tensor([1, 9]).cuda()

    def step(indices: torch.Tensor) -> None:
        state.mul_(0.5).add_(table.index_select(0, indices).tanh())

    def loop(rounds: int) -> None:
        for _ in range(rounds):
            step(good)

    loop(1500)
    known = {segment["identity"] for segment in _C.segments() if segment["times"] > 3}
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of range"):
            loop(100)
            step(bad)
            torch.cuda.synchronize()
        loop(700)
    expected = torch.tensor([1.0, 2.0]).tanh() * 2
    torch.testing.assert_close(state.cpu(), expected)
    assert known and known <= {segment["identity"] for segment in _C.segments()}, "what was known before the failure still is"
