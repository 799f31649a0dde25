"""A step whose products several devices compute together: tensor parallelism, with what lies between the products in parts, too.

The result is a step of one device of a tensor group, whose batch's rows are the group's. Its calls say what is exchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count

from forebay.toolkit.planner.calls import CallShape
from forebay.toolkit.planner.parallel.placements import COPIED, Conflict, Exchange, Placements
from forebay.toolkit.planner.step import Block, Division, Domain, Part, Step, StepCall

ATTEMPTS_MAX = 64
"""Ways of dividing products that are tried, each next one after a conflict."""


@dataclass
class Way:
    """How fewer devices divide a step, for more of them to begin with."""

    by_rows: bool = False
    units: dict[int, int] = field(default_factory=dict)
    """Features that each product is divided by at once."""
    placements: Placements | None = None


def divided(step: Step, parts: int, way: Way | None = None) -> Step | None:
    """The step of one device of so many; none where its products cannot be divided so. ``way`` is brought up to date."""
    if not step.shapes:
        return None
    way = way or Way()
    if way.placements is not None and way.placements.divisor % parts == 0:
        return _part_of(step, parts, way.by_rows, way.placements)
    for by_rows in (False, True) if not way.by_rows else (True,):
        found = _placements(step, parts, by_rows, way.units)
        if found is not None and found.summed:
            way.by_rows, way.placements = by_rows, found
            return _part_of(step, parts, by_rows, found)
    return None


def _placements(step: Step, parts: int, by_rows: bool, known: dict[int, int]) -> Placements | None:
    """A product that leads to a conflict is divided by more features at once, as by whole heads, and in the end not at all."""
    units = dict(known)
    larger: dict[int, set[int]] = defaultdict(set)
    for _ in range(ATTEMPTS_MAX):
        found = Placements(step, parts, by_rows, units)
        try:
            found.follow()
        except Conflict as conflict:
            if not conflict.openers:
                return None
            for opener in conflict.openers:
                larger[opener] |= found.larger[opener]
                tried = units.get(opener, 1)
                units[opener] = min((unit for unit in larger[opener] if unit > tried > COPIED), default=COPIED)
            continue
        known |= units
        return found
    return None


def _part_of(step: Step, parts: int, by_rows: bool, found: Placements) -> Step:
    in_parts = found.places.keys() | found.divided
    in_parts |= set(_left(step, in_parts))
    blocks = {
        number: Block(number, -(-block.bytes // parts), block.part, block.born, block.freed) if number in in_parts else block
        for number, block in step.blocks.items()
    }
    fresh = count(max(blocks) + 1)
    exchanged: dict[int, list[int]] = defaultdict(list)
    whole: dict[int, set[int]] = defaultdict(set)
    for one in (*found.gathered, *found.summed):
        exchanged[one.begin].append(step.blocks[one.block].bytes)
        number = next(fresh)
        blocks[number] = _while_whole(number, step.blocks[one.block], parts, one)
        whole[one.begin].add(one.block)
        whole[one.end].add(one.block)
    nothing = set[int]()
    calls = [
        _call(step, call, parts, in_parts, whole.get(call.event, nothing), tuple(exchanged.get(call.event, ()))) for call in step.calls
    ]
    summed = sum(step.blocks[number].bytes for number in step.gradients if number not in found.divided)
    return replace(step, blocks=blocks, calls=calls, division=Division(parts, by_rows, summed))


def _left(step: Step, in_parts: set[int]) -> Iterator[int]:
    """What the step before this one left, as this one leaves the like of it to the next."""
    sizes = {(block.part, block.bytes) for number in in_parts if (block := step.blocks[number]).born >= 0 and block.freed is None}
    used = {number for call in step.calls for number in call.given}
    for number, block in step.blocks.items():
        if block.born < 0 and number not in used and (block.part, block.bytes) in sizes:
            yield number


def _while_whole(number: int, block: Block, parts: int, exchange: Exchange) -> Block:
    """What a device has more of a block than its part."""
    return Block(number, block.bytes - block.bytes // parts, Part.ROWS, exchange.begin, exchange.end + 1)


def _call(step: Step, call: StepCall, parts: int, in_parts: set[int], whole: set[int], exchanged: tuple[int, ...]) -> StepCall:
    shape = step.shapes[call.template]
    shares = [parts if number in in_parts and number not in whole else 1 for number in (*call.given, *call.made)]
    if max(shares, default=1) == 1:
        return call
    rows_bytes = other_bytes = 0
    for size, number, share in zip(_moved(shape), (*call.given, *call.made), shares, strict=True):
        if step.blocks[number].part is Part.ROWS or (number in call.made and call.domain is Domain.ROWS):
            rows_bytes += -(-size // share)
        else:
            other_bytes += -(-size // share)
    return replace(call, flops=call.flops / parts, rows_bytes=rows_bytes, other_bytes=other_bytes, exchanged=exchanged)


def _moved(shape: CallShape) -> Iterator[int]:
    """Bytes of each tensor that a call is given, and of each that it makes."""
    yield from (use.bytes * (2 if use.written else 1) for use in shape.tensors)
    yield from (made.storage_bytes for made in shape.made)
