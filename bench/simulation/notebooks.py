"""How people use notebooks with GPUs, and clients that do so.

Source: Carver et al., "NotebookOS: A Replicated Notebook Platform for Interactive Training with On-Demand GPUs", ASPLOS 2026
(doi 10.1145/3760250.3762230), on Adobe's production trace of notebooks: half of the cells that train take at most 2 minutes and
three quarters at most 5; cells of a session begin 5 minutes apart at the median; GPUs reserved for sessions idle more than 81 % of
the time. We draw cells and the pauses between them from two log-normal distributions that meet these four figures: cells with a
median of 120 s (sigma 1.36, mean 302 s), pauses with a median of 60 s (sigma 2.48, mean 1,290 s). Independence of the two is our
assumption, and so is that a session begins at any moment of that alternation (its stationary start): 19 % of them within a cell. So
the published idle share holds for sessions of every length. If each began with a cell, those of the trace, of which half live for
minutes, would compute for more than it. That nearly 70 % of the GPUs were never used at all by the session they were reserved for is
left out, which favours whole-lifetime allocation.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Literal, Protocol

from forebay_wire import messages as wire

from simulation.agenda import SECOND_NS
from simulation.clients import Client, Network
from simulation.trace import WHOLE
from simulation.workers import Ask, Work

Level = Literal["lifetime", "process", "cell"]
"""What holds a device: a session as long as it lives, its process while it is not idle, each cell."""


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Log-normal cells and pauses, in seconds."""

    cell_median: float = 120.0
    cell_sigma: float = 1.3585
    pause_median: float = 60.0
    pause_sigma: float = 2.476

    def cells(self, seconds: int, chance: random.Random) -> tuple[int, list[Cell]]:
        """What a session that lives for so long computes, and after how many nanoseconds it begins to; the last cell is cut at its end."""
        cells, at, takes = [], 0.0, 0.0
        if chance.random() < self.busy:
            takes = rest_of(self.cell_median, self.cell_sigma, chance)
        else:
            at = rest_of(self.pause_median, self.pause_sigma, chance)
        first_seconds = min(at, seconds)
        while at < seconds:
            takes = min(takes or chance.lognormvariate(math.log(self.cell_median), self.cell_sigma), seconds - at)
            pause = chance.lognormvariate(math.log(self.pause_median), self.pause_sigma)
            cells.append(Cell(int(takes * SECOND_NS), int(pause * SECOND_NS)))
            at, takes = at + takes + pause, 0.0
        return int(first_seconds * SECOND_NS), cells

    @property
    def busy(self) -> float:
        """The share of its time that a session computes in the long run."""
        cell = self.cell_median * math.exp(self.cell_sigma**2 / 2)
        return cell / (cell + self.pause_median * math.exp(self.pause_sigma**2 / 2))


def rest_of(median: float, sigma: float, chance: random.Random) -> float:
    """What is left, at a moment picked at random, of the log-normal stretch it falls into: long ones are hit the more often."""
    return chance.random() * chance.lognormvariate(math.log(median) + sigma**2, sigma)


@dataclass(frozen=True, slots=True)
class Cell:
    """Device work, and how long the person then reads and writes."""

    work_ns: int
    pause_ns: int


@dataclass(frozen=True, slots=True)
class Plan:
    """A session to come: when, what it needs, and what it computes."""

    name: str
    gpus: int
    share_milli: int
    opens_ns: int
    ends_ns: int
    cells: list[Cell] = field(repr=False)
    thinks_ns: int = 0
    """From its begin to its first cell's."""

    @property
    def flavor(self) -> str:
        return f"gpu.{self.gpus}x{self.share_milli}"

    @property
    def demand(self) -> float:
        """In GPUs."""
        return self.gpus * self.share_milli / WHOLE


class Stage(Network, Protocol):
    """What a notebook needs of the replay that it is part of."""

    def add(self, client: Client) -> None: ...

    def asked(self, session: Notebook) -> None: ...

    def served(self, session: Notebook) -> int: ...

    def closed(self, session: Notebook) -> None: ...


class Notebook(Client):
    """A session that runs its cells, one after the other, and ends at its end or after its last cell, whichever is later."""

    def __init__(self, world: Stage, plan: Plan, level: Level) -> None:
        super().__init__(world, plan.name, tenant="trace", user="trace", flavor=plan.flavor)
        self.replay = world
        self.cells = plan.cells
        self.level = level
        self.begins_ns = plan.opens_ns + plan.thinks_ns
        self.ends_ns = plan.ends_ns
        self.wanted_ns: int | None = None
        """When the cell began whose first command was not executed yet."""
        self.worked_ns = 0
        self.waited_ns = 0
        self._cell = 0

    def open(self) -> None:
        self.replay.add(self)
        if self.level == "lifetime":
            self.compute(Ask(self._begin))
        else:
            self._begin()

    def _begin(self) -> None:
        """The first cell comes when the person has thought."""
        self.replay.agenda.at(self.begins_ns, self._run)

    def _run(self) -> None:
        """Runs the next cell, or ends."""
        if self._cell == len(self.cells):
            self.replay.agenda.at(self.ends_ns, self._close)
            return
        cell = self.cells[self._cell]
        self._cell += 1
        self.wanted_ns = self.replay.agenda.now_ns
        if self.level == "cell":
            self.begin(wire.Span(id=f"{self.name}-{self._cell}", kind="cell", label=self.name, cell=self._cell))
        self.compute(Work(cell.work_ns), Ask(lambda: self._read(cell)))

    def _read(self, cell: Cell) -> None:
        """The cell's result is there."""
        self.worked_ns += cell.work_ns
        if self.level == "cell":
            self.end()
        self.replay.agenda.after(cell.pause_ns if self._cell < len(self.cells) else 0, self._run)

    def _close(self) -> None:
        self.leave()
        self.replay.closed(self)

    def _acquire(self) -> None:
        self.replay.asked(self)
        super()._acquire()

    def _granted(self, granted: wire.Granted) -> None:
        self.waited_ns += self.replay.served(self)
        super()._granted(granted)

    def lost(self) -> None:
        raise RuntimeError(f"session {self.name} was lost although nothing fails in a replay")
