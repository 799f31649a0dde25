"""Part ``speed``: the virtual device against native eager PyTorch on the same GPU, by turns."""

from __future__ import annotations

import math
import statistics

from gpu.figures import LARGE_MODELS, RECURRENT_MODELS, SMALL_MODELS
from gpu.peer import Peer
from gpu.pool import pool_on
from gpu.trial import NOT_REHEARSED, Trial, blocks_ms
from gpu.worker import Session

MEMORY_SHARE = 0.6
"""Of the device, for the session; a native process holds the same models beside it."""
TURNS = 7
CELLS = 40
LARGE_STEPS = 5
LARGE_BLOCKS = 5
WARM_UP_STEPS = 5
LARGE_SECONDS = 12.0
"""About what a large model takes, by the time limit's reckoning."""


def run(trial: Trial, _: float | None) -> None:
    """Takes the part's figures; what is cheap comes first."""
    start_workers(trial)
    lease(trial)
    limit_bytes = trial.sizes.limit_bytes if trial.is_host else int(MEMORY_SHARE * trial.memory_bytes)
    with trial.session(limit_bytes) as session, trial.native() as native:
        call(trial, session, native)
        transfer(trial, session, native)
        small_models(trial, session, native)
        recurrent_models(trial, session, native)
        for model in LARGE_MODELS:
            large_model(trial, session, native, model)


def start_workers(trial: Trial) -> None:
    """How long a worker takes until it is ready: the first one reads PyTorch's libraries from the disk, if nobody did before."""
    names = "worker's start to ready, the first one", "worker's start to ready, p50 of later ones"
    with trial.report.figures(*names):
        seconds = []
        for _ in range(trial.sizes.starts + 1):
            with trial.worker() as worker:
                seconds.append(worker.start_seconds)
        trial.report.take(names[0], seconds[0])
        trial.report.take(names[1], statistics.median(seconds[1:]))


def lease(trial: Trial) -> None:
    """From a program's first call, without a lease, until it was executed, with a real pool."""
    cold, warm, cell = (
        "lease to first kernel, cold worker",
        "lease to first kernel, warm worker, p50",
        "cell to first kernel, session resident, p50",
    )
    with trial.report.figures(cold, warm, cell):
        memory_bytes = trial.sizes.limit_bytes
        with pool_on(trial.device, memory_bytes, trial.root, warm_workers=0) as pool, pool.client() as program:
            found = program.call("programs.cells_ms", count=CELLS)
            trial.report.take(cold, found[0])
            trial.report.take(cell, statistics.median(found[1:]), f"of {CELLS - 1} cells; largest {max(found[1:]):.1f} ms")
        waits = []
        for _ in range(trial.sizes.starts):
            with pool_on(trial.device, memory_bytes, trial.root, warm_workers=1) as pool, pool.client() as program:
                program.call("programs.seen")
                pool.await_warm()
                waits += program.call("programs.cells_ms", count=1)
        trial.report.take(warm, statistics.median(waits), f"of {len(waits)} programs")


def call(trial: Trial, session: Session, native: Peer) -> None:
    """What one operator, and one read, takes of the program's thread."""
    for function, mine, theirs in (
        ("programs.add_us", "record one operator, p50", "native launch of it, p50"),
        ("programs.item_us", "read of a ready scalar, p50", "native read of it, p50"),
    ):
        with trial.report.figures(mine, theirs):
            trial.report.take(mine, session.peer.call(function, calls=trial.sizes.calls))
            trial.report.take(theirs, native.call(function, calls=trial.sizes.calls))


def transfer(trial: Trial, session: Session, native: Peer) -> None:
    """Bulk data between the program's pageable memory and the device."""
    ways = ("up", "from"), ("down", "to")
    names = {way: (f"{way}load 256 MiB", f"{way}load 256 MiB ÷ native {against} pageable memory") for way, against in ways}
    with trial.report.figures(*(name for pair in names.values() for name in pair)):
        count_bytes = trial.sizes.transfer_bytes
        mine, theirs = (peer.call("programs.transfer", count_bytes=count_bytes, turns=TURNS) for peer in (session.peer, native))
        for way, (rate, ratio) in names.items():
            trial.report.take(rate, count_bytes / mine[way] / 1e9, f"natively {count_bytes / theirs[way] / 1e9:.1f} GB/s")
            trial.report.take(ratio, theirs[way] / mine[way])


def small_models(trial: Trial, session: Session, native: Peer) -> None:
    """The four models whose steps are bound by launches."""
    mean = "step ÷ native eager, geometric mean of the four"
    with trial.report.figures(*(f"step ÷ native eager, {model}" for model in SMALL_MODELS), mean):
        ratios = [step(trial, session, native, f"step ÷ native eager, {model}", model, "float32") for model in SMALL_MODELS]
        trial.report.take(mean, math.exp(statistics.fmean(map(math.log, ratios))))


def recurrent_models(trial: Trial, session: Session, native: Peer) -> None:
    """Those whose layers are one call each."""
    for model in RECURRENT_MODELS:
        with trial.report.figures(f"step ÷ native eager, {model}"):
            step(trial, session, native, f"step ÷ native eager, {model}", model, "float32")


def large_model(trial: Trial, session: Session, native: Peer, model: str) -> None:
    """A model whose steps are bound by the GPU."""
    name = f"step ÷ native eager, {model} in bf16"
    if model not in trial.sizes.large_models:
        trial.report.skip(name, NOT_REHEARSED)
        return
    with trial.report.figures(name):
        trial.report.need(LARGE_SECONDS, model)
        step(trial, session, native, name, model, "bfloat16")


def step(trial: Trial, session: Session, native: Peer, name: str, model: str, dtype: str) -> float:
    """Blocks of steps by turns. Returns the median of the ratios."""
    large = model in LARGE_MODELS
    steps, blocks = (LARGE_STEPS, LARGE_BLOCKS) if large else (trial.sizes.block_steps, trial.sizes.blocks)
    sides = (session.peer, native)
    for peer in sides:
        peer.call("models.make", model=model, dtype=dtype)
        peer.call("models.block_ms", model=model, steps=WARM_UP_STEPS)
    pairs = blocks_ms(sides, blocks, model, steps)
    for peer in sides:
        peer.call("models.discard", model=model)
    ratio: float = statistics.median(mine / theirs for mine, theirs in pairs)
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    trial.report.take(name, ratio, f"{mine:.3g} ms, natively {theirs:.3g} ms")
    return ratio
