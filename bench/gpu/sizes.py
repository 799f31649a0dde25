"""How much a part does: what a GPU's minutes are for, or a rehearsal on the host."""

from __future__ import annotations

from dataclasses import dataclass

from gpu.figures import LARGE_MODELS, PARK_SIZES_GB, SESSION_COUNTS, SWEEP_DTYPES

MIB = 1 << 20


@dataclass(frozen=True)
class Sizes:
    """Sizes are bytes, counts, or seconds."""

    limit_bytes: int
    """Of a session's memory, where a part sets none."""
    park_bytes: dict[float, int]
    """By the size that the figure names, in GB."""
    park_turns: int
    training_steps: int
    blocks: int
    """Of steps, by turns; a ratio is the median over them."""
    block_steps: int
    large_models: tuple[str, ...]
    operators: int
    """Entries of PyTorch's operator database."""
    sweep_dtypes: tuple[str, ...]
    session_counts: tuple[int, ...]
    """Sessions that share the device."""
    transfer_bytes: int
    calls: int
    """A figure of microseconds is the median over so many."""
    starts: int
    """Workers, and leases, that are started to measure that."""
    matrix: int
    """Rows of the matrices of a long kernel."""


GPU = Sizes(
    limit_bytes=16 << 30,
    park_bytes={size: int(size * 1e9) for size in PARK_SIZES_GB},
    park_turns=3,
    training_steps=20,
    blocks=6,
    block_steps=20,
    large_models=LARGE_MODELS,
    operators=1_000_000,
    sweep_dtypes=SWEEP_DTYPES,
    session_counts=SESSION_COUNTS,
    transfer_bytes=256 * MIB,
    calls=1000,
    starts=4,
    matrix=16384,
)
REHEARSAL = Sizes(
    limit_bytes=256 * MIB,
    park_bytes={PARK_SIZES_GB[0]: 4 * MIB},
    park_turns=1,
    training_steps=3,
    blocks=1,
    block_steps=2,
    large_models=(),
    operators=6,
    sweep_dtypes=SWEEP_DTYPES[:1],
    session_counts=SESSION_COUNTS[:1],
    transfer_bytes=4 * MIB,
    calls=20,
    starts=1,
    matrix=256,
)


def sizes_of(device: str) -> Sizes:
    return REHEARSAL if device.startswith("cpu") else GPU
