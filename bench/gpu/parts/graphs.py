"""Part ``graphs``: steps that the worker may record as graphs (tier 2), against tier 1 and native eager PyTorch, by turns."""

from __future__ import annotations

import math
import statistics
import time

from gpu.figures import LARGE_MODELS, SMALL_MODELS
from gpu.peer import Peer
from gpu.trial import NOT_REHEARSED, Trial, blocks_ms

MEMORY_SHARE = 0.3
"""Of the device, for each of two sessions; a native process holds the same models beside them."""
LARGE_STEPS, LARGE_BLOCKS = 5, 6
SETTLED_SECONDS_MAX = 20.0
UNSETTLED = ("it came once or twice", "held against", "is timed", "moved", "changed", "could not be recorded")
"""Of reasons why a tier is not higher: those that may change."""
LARGE_SECONDS = 25.0
"""About what a large model takes, by the time limit's reckoning."""


def run(trial: Trial, _: float | None) -> None:
    """Takes the part's figures."""
    limit_bytes = trial.sizes.limit_bytes if trial.is_host else int(MEMORY_SHARE * trial.memory_bytes)
    mean = "step ÷ native eager, geometric mean of the four"
    with trial.session(limit_bytes) as plain, trial.session(limit_bytes, compiles=True) as graphed, trial.native() as native:
        sides = graphed.peer, plain.peer, native
        with trial.report.figures(*(f"step ÷ {other}, {model}" for other in ("native eager", "tier 1") for model in SMALL_MODELS), mean):
            ratios = [step(trial, sides, model, model, "float32") for model in SMALL_MODELS]
            trial.report.take(mean, math.exp(statistics.fmean(map(math.log, ratios))))
        for model in LARGE_MODELS:
            large_model(trial, sides, model)


def large_model(trial: Trial, sides: tuple[Peer, Peer, Peer], model: str) -> None:
    """A model whose steps are bound by the GPU."""
    names = f"step ÷ native eager, {model} in bf16", f"step ÷ tier 1, {model} in bf16"
    if model not in trial.sizes.large_models:
        for name in names:
            trial.report.skip(name, NOT_REHEARSED)
        return
    with trial.report.figures(*names):
        trial.report.need(LARGE_SECONDS, model)
        step(trial, sides, model, f"{model} in bf16", "bfloat16")


def step(trial: Trial, sides: tuple[Peer, Peer, Peer], model: str, shown: str, dtype: str) -> float:
    """Blocks of steps by turns: recorded, by tier 1, and natively. Returns the median ratio of the first to the last."""
    steps, blocks = (LARGE_STEPS, LARGE_BLOCKS) if model in LARGE_MODELS else (trial.sizes.block_steps, trial.sizes.blocks)
    for peer in sides:
        peer.call("models.make", model=model, dtype=dtype)
    for peer in sides[1:]:
        peer.call("models.block_ms", model=model, steps=steps)
    began = time.monotonic()
    standing = until_settled(sides[0], model, steps)
    settled_s = time.monotonic() - began
    turns = blocks_ms(sides, blocks, model, steps)
    for peer in sides:
        peer.call("models.discard", model=model)
    recorded, plain, native = (statistics.median(side) for side in zip(*turns, strict=True))
    note = f"{recorded:.3g} ms, tier 1 {plain:.3g}, natively {native:.3g}; "
    note += f"{standing['calls']} calls in tier {standing['tier']} after {settled_s:.1f} s"
    note += f": {standing['why']}" if standing["why"] else ""
    ratio: float = statistics.median(turn[0] / turn[2] for turn in turns)
    trial.report.take(f"step ÷ native eager, {shown}", ratio, note)
    trial.report.take(f"step ÷ tier 1, {shown}", statistics.median(turn[0] / turn[1] for turn in turns))
    return ratio


def until_settled(peer: Peer, model: str, steps: int) -> dict[str, str]:
    """Runs steps until it is known how they are carried out."""
    ends = time.monotonic() + SETTLED_SECONDS_MAX
    while time.monotonic() < ends:
        peer.call("models.block_ms", model=model, steps=steps)
        standing: dict[str, str] = peer.call("models.standing", model=model, steps=steps)
        if not any(word in standing["why"] for word in UNSETTLED):
            break
    return standing
