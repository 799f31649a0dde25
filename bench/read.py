"""What a read costs: numbers, small tensors and masks read by the program, and whole programs that read at each step, against native eager.

Bars on one host with two cores: an ``.item()`` of a ready number at most 40 µs at the median and 12 µs of the client's processor, a small
``cpu()`` at most 50 µs, ``nonzero`` and a boolean index at most 1.2 times what the CPU takes at 10^6 elements, the programs 1.5 times.
Virtual and native take turns in one process; the worker is a process of its own on the same cores, as with a development device.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns, process_time_ns, sleep
from typing import Any

from report import percentile, report

os.environ.setdefault("FOREBAY_URL", "local")

import torch
from torch import Tensor, nn

ELEMENTS = 10**6
"""Of the mask."""
WARM_UP_BLOCKS = 2
REST_SECONDS = 0.02
"""Before a block, until the threads of the other side's kernels wait for work no more, which they do spinning."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Subject:
    """Something measured, made for a device; ``count`` calls are a block."""

    make: Callable[[str], Call]
    count: int
    bar_us: float | None = None
    bar_client_us: float | None = None
    bar_ratio: float | None = None


def ready_number(device: str) -> Call:
    """``.item()`` of a number that nothing is to be computed for."""
    number = torch.zeros((), device=device)
    return lambda: number.item()


def numbers_of_a_tensor(device: str) -> Call:
    """``x[i].item()`` in a loop."""
    numbers, places = torch.rand(100, device=device), iter(lambda: random.randrange(100), None)
    return lambda: numbers[next(places)].item()


def new_number(device: str) -> Call:
    """A number that one operator makes, and that is read."""
    number = torch.zeros((), device=device)
    return lambda: number.add_(1).item()


def rows_of_a_tensor(device: str) -> Call:
    """``x[i].cpu()`` of 64 numbers."""
    rows, places = torch.rand(1000, 64, device=device), iter(lambda: random.randrange(1000), None)
    return lambda: rows[next(places)].cpu()


def places_of_a_mask(device: str) -> Call:
    """``mask.nonzero()``, half of it true."""
    mask = torch.rand(ELEMENTS, device=device) > 0.5
    return lambda: mask.nonzero()


def boolean_index(device: str) -> Call:
    """``x[mask]``, half of it true."""
    numbers = torch.rand(ELEMENTS, device=device)
    mask = numbers > 0.5
    return lambda: numbers[mask]


class CartPole:
    """A pole on a cart, to be held upright; numbers of Barto, Sutton and Anderson (1983), in plain Python."""

    FORCE_NEWTONS = 10.0
    TICK_SECONDS = 0.02

    def __init__(self) -> None:
        self.chance = random.Random(0)
        self.state = self.reset()

    def reset(self) -> list[float]:
        """Begins an episode: place, speed, angle and its change."""
        self.state = [self.chance.uniform(-0.05, 0.05) for _ in range(4)]
        return self.state

    def step(self, action: int) -> tuple[list[float], bool]:
        """Pushes left or right; the new state, and whether the episode goes on."""
        place, speed, angle, turn = self.state
        force = self.FORCE_NEWTONS if action == 1 else -self.FORCE_NEWTONS
        pushed = (force + 0.05 * turn**2 * math.sin(angle)) / 1.1
        turning = (9.8 * math.sin(angle) - math.cos(angle) * pushed) / (0.5 * (4 / 3 - 0.1 * math.cos(angle) ** 2 / 1.1))
        moving = pushed - 0.05 * turning * math.cos(angle) / 1.1
        tick = self.TICK_SECONDS
        self.state = [place + tick * speed, speed + tick * moving, angle + tick * turn, turn + tick * turning]
        return self.state, abs(self.state[0]) < 2.4 and abs(self.state[2]) < 0.21


def reinforce(device: str) -> Call:
    """REINFORCE on the cart-pole: an upload and an ``.item()`` for each step, a gradient for each episode. A call is a step."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    world = CartPole()
    taken: list[Tensor] = []

    def learn() -> None:
        returns = torch.arange(len(taken), 0, -1, dtype=torch.float32).to(device)
        loss = -(torch.stack(taken) * (returns - returns.mean()) / len(taken)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        taken.clear()
        world.reset()

    def step() -> None:
        logits = policy(torch.tensor(world.state).to(device))
        choice = torch.distributions.Categorical(logits=logits, validate_args=False)
        action = choice.sample()
        taken.append(choice.log_prob(action))
        _, goes_on = world.step(int(action.item()))
        if not goes_on or len(taken) == 100:
            learn()

    return step


DORMAND_PRINCE = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
"""How each stage weighs the ones before (Dormand and Prince 1980); the last one is the step itself, of order 5."""
ERROR_WEIGHTS = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
"""Its difference to the embedded step of order 4."""


def dormand_prince(device: str) -> Call:
    """An adaptive solver of 64 coupled Van der Pol oscillators: each step's error is read to choose the next step. A call is a step."""
    torch.manual_seed(0)
    coupling = 0.01 * torch.randn(64, 64, device=device)
    state = torch.randn(2, 64, device=device)
    length = 0.01

    def slope(state: Tensor) -> Tensor:
        place, speed = state
        return torch.stack((speed, (1 - place * place) * speed - place + coupling @ place))

    def step() -> None:
        nonlocal state, length
        slopes = [slope(state)]
        for weights in DORMAND_PRINCE:
            new = state + length * sum(weight * slopes[at] for at, weight in enumerate(weights) if weight)
            slopes.append(slope(new))
        error = length * sum(weight * slopes[at] for at, weight in enumerate(ERROR_WEIGHTS) if weight)
        size = (error / (1e-6 + 1e-4 * torch.maximum(state.abs(), new.abs()))).square().mean().sqrt().item()
        if size <= 1:
            state = new
        length *= min(5.0, max(0.2, 0.9 * max(size, 1e-10) ** -0.2))

    return step


def gibbs(device: str) -> Call:
    """A Gibbs sampler of a mixture of three Gaussians with 2,000 points: each component's points are picked by a mask, and its mean drawn
    from numbers that were read. A call is a sweep."""
    torch.manual_seed(0)
    chance = random.Random(0)
    points = torch.cat([torch.randn(700) + centre for centre in (-4.0, 0.0, 5.0)]).to(device)
    means = [-1.0, 0.0, 1.0]

    def sweep() -> None:
        weights = torch.softmax(-0.5 * (points.unsqueeze(1) - torch.tensor(means).to(device)).square(), 1)
        drawn = torch.multinomial(weights, 1).squeeze(1)
        for component in range(len(means)):
            own = points[drawn == component]
            precision = len(own) + 0.01
            means[component] = own.sum().item() / precision + chance.gauss(0, 1) / math.sqrt(precision)

    return sweep


READS = {
    "item of a ready number": Subject(ready_number, 500, bar_us=40, bar_client_us=12),
    "x[i].item()": Subject(numbers_of_a_tensor, 500),
    "item of a new number": Subject(new_number, 500),
    "x[i].cpu()": Subject(rows_of_a_tensor, 500, bar_us=50),
    "nonzero": Subject(places_of_a_mask, 10, bar_ratio=1.2),
    "boolean index": Subject(boolean_index, 10, bar_ratio=1.2),
}
PROGRAMS = {
    "REINFORCE, a step": Subject(reinforce, 200, bar_ratio=1.5),
    "Dormand-Prince, a step": Subject(dormand_prince, 50, bar_ratio=1.5),
    "Gibbs, a sweep": Subject(gibbs, 50, bar_ratio=1.5),
}


@dataclass(frozen=True)
class Block:
    """What the calls of one block took."""

    each_us: list[float]
    client_us: float  # of the processor, all threads of the process, for a call

    @property
    def mean_us(self) -> float:
        return statistics.fmean(self.each_us)


def block(call: Call, count: int) -> Block:
    """Makes the calls."""
    sleep(REST_SECONDS)
    each = []
    before = process_time_ns()
    for _ in range(count):
        start = perf_counter_ns()
        call()
        each.append((perf_counter_ns() - start) / 1e3)
    return Block(each, (process_time_ns() - before) / count / 1e3)


def row(name: str, subject: Subject, blocks: int) -> dict[str, Any]:
    """One subject's figures: of all its calls, but the ratio is the median over blocks that followed one another."""
    virtual, native = subject.make("cuda"), subject.make("cpu")
    for call in (virtual, native):
        for _ in range(WARM_UP_BLOCKS):
            block(call, subject.count)
    pairs = [(block(virtual, subject.count), block(native, subject.count)) for _ in range(blocks)]
    each = [one for mine, _ in pairs for one in mine.each_us]
    own = [one for _, theirs in pairs for one in theirs.each_us]
    found = {
        "what": name,
        "p50 us": percentile(each, 0.5),
        "p99 us": percentile(each, 0.99),
        "client us": statistics.median(mine.client_us for mine, _ in pairs),
        "native p50 us": percentile(own, 0.5),
        "native p99 us": percentile(own, 0.99),
        "ratio": statistics.median(mine.mean_us / theirs.mean_us for mine, theirs in pairs),
    }
    return found | {"bar": verdict(subject, found)}


def verdict(subject: Subject, found: dict[str, Any]) -> str:
    """Which bars are met."""
    bars = (("p50 us", subject.bar_us), ("client us", subject.bar_client_us), ("ratio", subject.bar_ratio))
    said = [f"{figure} {bar:g}: {'met' if found[figure] <= bar else 'missed'}" for figure, bar in bars if bar is not None]
    return ", ".join(said) or "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=9, help="blocks a figure is the median of")
    parser.add_argument("what", nargs="*", help="beginnings of the names of what to measure; all by default")
    options = parser.parse_args()
    subjects = {name: one for name, one in (READS | PROGRAMS).items() if not options.what or name.startswith(tuple(options.what))}
    if not subjects:
        parser.error(f"nothing is called {' or '.join(options.what)}; there are {', '.join(READS | PROGRAMS)}")
    rows = [row(name, subject, options.blocks) for name, subject in subjects.items()]
    report("read", rows, threads=torch.get_num_threads(), torch=torch.__version__)


if __name__ == "__main__":
    main()
