"""A training step as a planner sees it: what it keeps, what it computes, and what is alive when. All from one iteration of a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from forebay.toolkit.planner.calls import CallShape


class Part(Enum):
    """What a storage is to the step."""

    WEIGHT = "weights"
    """Was there before, and calls on rows, or what they lead to, read it: trained or frozen."""
    STATE = "optimizer states"
    """Was there before, and only updates use it: moments, averages of weights."""
    GRADIENT = "gradients"
    """A sum over the rows."""
    ROWS = "activations"
    """Holds rows of the batch: a device has its part of them."""
    UPDATE = "update"
    """Made of gradients or states, as an optimizer's temporaries are."""
    CAST = "casts of weights"
    """Weights in another type, made in the step: where weights lie in parts, so do these."""
    COPY = "copies"
    """What is the same on every device: masks, what nothing of the batch is in."""


class Domain(Enum):
    """What a call works on."""

    ROWS = "rows"
    UPDATE = "update"
    COPY = "copies"


@dataclass
class Block:
    """A storage."""

    number: int
    bytes: int
    part: Part
    born: int
    """The event of the step that makes it; -1: it was there before."""
    freed: int | None = None


@dataclass
class StepCall:
    """A call, with what it costs one device that does all of it."""

    event: int
    name: str
    domain: Domain
    flops: float
    half: bool
    """Whether its products are of half precision."""
    rows_bytes: int
    """Moved: of what holds rows, and of all else."""
    other_bytes: int
    weights: tuple[int, ...] = ()
    """Blocks of weights that it reads and that are no update's."""
    template: int = 0
    given: tuple[int, ...] = ()
    """Blocks that it reads or writes, but for those that it makes; one for each tensor of its template."""
    made: tuple[int, ...] = ()
    """Blocks that it makes, in the order of its template."""
    exchanged: tuple[int, ...] = ()
    """Bytes of what the devices of a tensor group gather for it, or sum and scatter after it."""


@dataclass(frozen=True)
class Division:
    """How several devices compute each row together (tensor parallelism)."""

    parts: int = 1
    by_rows: bool = False
    """Whether what lies between the divided products is in parts of rows, for want of positions within rows."""
    summed_bytes: int = 0
    """Of gradients that are whole on each device, and summed over these, too."""


@dataclass(frozen=True)
class Stage:
    """What a step that is a stage of a pipeline has to do with the others."""

    received_bytes: int = 0
    """Of all rows, from the stages before and after it."""
    held_bytes: int = 0
    """Of all rows, between its forward and its backward pass."""


@dataclass
class Step:
    """One iteration. Blocks are in the order of their numbers; events count from the iteration's beginning."""

    rows: int
    """Of the batch."""
    blocks: dict[int, Block]
    calls: list[StepCall]
    events: int
    gradients: dict[int, int]
    """Those that reach an optimizer: each block's number with the event after which it is complete."""
    trained: frozenset[int]
    """Blocks of weights that the step writes."""
    uploads: tuple[int, ...]
    """Bytes of each."""
    shapes: Mapping[int, CallShape] = field(default_factory=dict)
    """The templates of the calls."""
    uploaded: frozenset[int] = frozenset()
    """Blocks that hold rows of uploads."""
    division: Division = Division()
    stage: Stage = Stage()

    @property
    def work(self) -> list[StepCall]:
        """The forward and the backward pass: all calls but those of updates."""
        return [call for call in self.calls if call.domain is not Domain.UPDATE]

    def total(self, part: Part) -> int:
        """Bytes that are there when the step begins, of what is kept from step to step."""
        return sum(block.bytes for block in self.blocks.values() if block.part is part and block.born < 0)

    @property
    def gradient_bytes(self) -> int:
        return sum(self.blocks[number].bytes for number in self.gradients)

    @property
    def staying_gradient_bytes(self) -> int:
        """Of the gradients that stay from step to step."""
        return sum(self.blocks[number].bytes for number in self.gradients if self.blocks[number].born < 0)

    @property
    def flops(self) -> float:
        return sum(call.flops for call in self.calls)
