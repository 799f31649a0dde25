"""A program of chance: calls, writes in place, views, frees, checkpoints, and ways back, held against the same on the CPU with deep copies.

Run as ``checkpointed_programs.py SEED STEPS EVENTS``. EVENTS has letters: with ``k`` workers are killed, with ``p`` the session is parked.
Prints what was done. Raises AssertionError where a bit differs.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
import forebay
from forebay.errors import ForebayError, SessionEnded
from forebay.facade.checkpoint import WentBack
from killed_training import workers

DEVICE = "cuda:0"
STORAGES_MAX = 12
KILLS_MAX = 2
tokens = itertools.count(1)


@dataclass
class Pair:
    """A storage there, and the same here."""

    there: torch.Tensor
    here: torch.Tensor
    token: int = field(default_factory=lambda: next(tokens))
    """Of what it holds: another one with each write."""
    views: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)


@dataclass
class Kept:
    """A checkpoint, by deep copies."""

    name: str
    parent: Kept | None
    held: dict[int, tuple[torch.Tensor, int]]
    drawn: bytes


def bits(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())


class Program:
    def __init__(self, seed: int, events: str) -> None:
        self.chance = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        self.storages: dict[int, Pair] = {}
        self.numbers = itertools.count(1)
        self.kept: list[Kept] = []
        self.present: Kept | None = None
        self.done: Counter[str] = Counter()
        writes = [self.fill, self.combine, self.write, self.write, self.write, self.upload, self.draw, self.view]
        ways = [self.checkpoint, self.checkpoint, self.restore, self.undo]
        self.moves: list[Callable[[], None]] = [*writes, *writes, self.new, self.free, *ways]
        self.moves += [self.kill] * ("k" in events) + [self.park] * ("p" in events)

    def branch(self, seed: int) -> None:
        """In a forked process, which goes on in its own way: the checkpoints are its parent's."""
        self.chance, self.done = random.Random(seed), Counter()
        self.generator.manual_seed(seed)
        self.kept, self.present = [], None

    def run(self, steps: int) -> None:
        self.new()
        for _ in range(steps):
            move = self.chance.choice(self.moves)
            move()
            self.done[move.__name__] += 1
            if self.chance.random() < 0.1:
                self.check()
        self.check()

    def check(self) -> None:
        for number, pair in self.storages.items():
            assert bits(pair.there) == bits(pair.here), f"storage {number} after {sum(self.done.values())} steps"

    # Storages

    def add(self, there: torch.Tensor, here: torch.Tensor) -> None:
        while len(self.storages) >= STORAGES_MAX:
            self.free()
        self.storages[next(self.numbers)] = Pair(there, here)

    def some(self) -> Pair:
        return self.chance.choice(list(self.storages.values()))

    def new(self) -> None:
        here = torch.randn(self.chance.choice([1, 7, 64, 1000, 70_000]), generator=self.generator)
        match self.chance.randrange(3):
            case 0:
                self.add(here.to(DEVICE), here)
            case 1:
                self.add(torch.zeros(len(here), device=DEVICE), torch.zeros(len(here)))
            case _:
                self.add(torch.full((len(here),), 3.0, device=DEVICE), torch.full((len(here),), 3.0))

    def free(self) -> None:
        if len(self.storages) > 1:
            del self.storages[self.chance.choice(list(self.storages))]

    def view(self) -> None:
        pair = self.some()
        step, begin = self.chance.randint(1, 3), self.chance.randrange(len(pair.here))
        pair.views.append((pair.there[begin::step], pair.here[begin::step]))

    def target(self) -> tuple[torch.Tensor, torch.Tensor]:
        """A tensor that is about to be written to."""
        pair = self.some()
        pair.token = next(tokens)
        return self.chance.choice([(pair.there, pair.here), *pair.views])

    # Calls

    def fill(self) -> None:
        value = self.chance.choice([0.0, 1.5, -2.0])
        for tensor in self.target():
            tensor.fill_(value)

    def combine(self) -> None:
        pair, factor = self.some(), self.chance.uniform(-2, 2)
        self.add(pair.there * factor, pair.here * factor)

    def write(self) -> None:
        factor, kind = self.chance.uniform(-2, 2), self.chance.randrange(4)
        place = self.chance.random()
        for tensor in self.target():
            match kind:
                case 0:
                    tensor.mul_(factor).clamp_(-100, 100)
                case 1:
                    tensor.add_(factor)
                case 2:
                    tensor[int(place * len(tensor))] = factor
                case _:
                    tensor.copy_(tensor.flip(0))

    def upload(self) -> None:
        there, here = self.target()
        here.copy_(torch.randn(here.shape, generator=self.generator))
        there.copy_(here)

    def draw(self) -> None:
        there, here = self.target()
        there.normal_()
        here.copy_(there.cpu())

    # Checkpoints

    def checkpoint(self) -> None:
        name = f"at {next(tokens)}"
        forebay.checkpoint(name if self.chance.random() < 0.5 else None)
        taken = forebay.checkpoints()[-1]
        held = {number: (pair.here.clone(), pair.token) for number, pair in self.storages.items()}
        state = torch.cuda.get_rng_state(0)
        drawn = bits(torch.rand(3, device=DEVICE))
        torch.cuda.set_rng_state(state, 0)
        self.present = Kept(taken.name, self.present, held, drawn)
        self.kept.append(self.present)

    def changed(self, kept: Kept) -> list[int]:
        return [number for number, pair in self.storages.items() if number in kept.held and kept.held[number][1] != pair.token]

    def restore(self) -> None:
        if self.kept:
            kept = self.chance.choice(self.kept[-8:])
            self.go_back(kept, lambda: forebay.restore(kept.name))

    def undo(self) -> None:
        line, kept, count = [], self.present, self.chance.randint(1, 3)
        while kept is not None:
            line.append(kept)
            kept = kept.parent
        line = [kept for kept in line if self.changed(kept)]
        if len(line) >= count:
            self.go_back(line[count - 1], lambda: forebay.undo(count))

    def go_back(self, kept: Kept, ask: Callable[[], WentBack]) -> None:
        try:
            went = ask()
        except SessionEnded:  # whoever runs this says whether that may be
            raise
        except ForebayError as error:
            assert "nothing has changed" in str(error) or "no checkpoint to go back to" in str(error), error
            self.done["parked" if "parked" in str(error) else "not there"] += 1
            return
        changed = self.changed(kept)
        assert (went.name, went.tensors) == (kept.name, len(changed)), (went, kept.name, changed, self.done)
        for number in changed:
            pair = self.storages[number]
            held, pair.token = kept.held[number]
            pair.here.copy_(held)
        self.present = kept
        self.check()
        state = torch.cuda.get_rng_state(0)
        assert bits(torch.rand(3, device=DEVICE)) == kept.drawn
        torch.cuda.set_rng_state(state, 0)

    # What happens to workers

    def kill(self) -> None:
        if self.done["kill"] >= KILLS_MAX or self.chance.random() < 0.7:
            self.done["kill"] -= 1
            return
        time.sleep(self.chance.uniform(0, 0.2))
        for pid in workers():
            os.kill(pid, signal.SIGKILL)

    def park(self) -> None:
        torch.ones(10, device="cuda:1").sum().item()


if __name__ == "__main__":
    program = Program(int(sys.argv[1]), sys.argv[3])
    try:
        program.run(int(sys.argv[2]))
    except RuntimeError as error:
        if "lost" not in str(error):
            raise
        program.done["lost"] += 1
    print(json.dumps(dict(program.done)))
