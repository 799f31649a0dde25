"""Values that would tell a wrong rule to divide a call from a right one: degenerate ones first, ordinary ones after.

A rule that was inferred from results holds for the values that it was inferred from, such as a batch of zeros whose maxima are also their
sum. So the tensors of a sequence change from constant, tied, saturated or half empty values to ordinary ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch

IGNORED = -100
"""The class that losses leave out by default."""
Fill = Callable[[torch.Tensor, torch.Generator], torch.Tensor]


def _normal(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(like.shape, dtype=like.dtype, generator=generator)


def _one_hot(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    made = torch.zeros(like.shape, dtype=like.dtype)
    if made.numel():
        rows = made.view(made.shape[0], -1)
        rows[torch.arange(len(rows)), torch.randint(rows.shape[1], (len(rows),), generator=generator)] = 1
    return made


def _huge_column(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    made = _normal(like, generator)
    made[..., :1] *= 1e6
    return made


def _scattered(value: float) -> Fill:
    def fill(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        chance = torch.rand(like.shape, generator=generator)
        return _normal(like, generator).masked_fill(chance < 0.1, value)

    return fill


def _half(first: bool, value: float = 0.0) -> Fill:
    def fill(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        made = _normal(like, generator)
        rows = len(made) // 2
        made[slice(rows) if first else slice(rows, None)] = value
        return made

    return fill


def _ties(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(-1, 2, like.shape, generator=generator).to(like.dtype)


FILLS: dict[str, Fill] = {
    "zeros": lambda like, _: torch.zeros(like.shape, dtype=like.dtype),
    "negative zeros": lambda like, _: torch.full(like.shape, -0.0, dtype=like.dtype),
    "ones": lambda like, _: torch.ones(like.shape, dtype=like.dtype),
    "constant": lambda like, _: torch.full(like.shape, 2.5, dtype=like.dtype),
    "saturated": lambda like, generator: _normal(like, generator).sgn() * 1e4,
    "one-hot": _one_hot,
    "sorted": lambda like, _: torch.arange(like.numel()).view(like.shape).to(like.dtype) / max(like.numel(), 1),
    "ties": _ties,
    "huge column": _huge_column,
    "some NaN": _scattered(float("nan")),
    "some inf": _scattered(float("inf")),
    "some -inf": _scattered(float("-inf")),
    "first half zeros": _half(first=True),
    "second half zeros": _half(first=False),
    "first half NaN": _half(first=True, value=float("nan")),
    "positive": lambda like, generator: _normal(like, generator).abs().to(like.dtype) + 0.1,
    "normal": _normal,
}
ORDINARY = ("normal", "positive")


def _numbers(like: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """Whole numbers, which may be indices: those that are there, in another order, half of them alike, or one of them everywhere."""
    flat = like.flatten()
    if not len(flat):
        return like
    kind, half = chance.randrange(5), len(flat) // 2
    if kind == 0:
        flat = flat[[chance.randrange(len(flat))]].expand(len(flat))
    elif kind == 1:
        flat = torch.cat((flat[:1].expand(half), flat[half:]))
    elif kind == 2:
        flat = flat.flip(0)
    elif kind == 3:
        flat = flat.sort().values
    return flat.reshape(like.shape).clone()


def _ignored(like: torch.Tensor, chance: random.Random) -> torch.Tensor:
    """Classes some of which count for nothing: unequally many in the parts of a batch."""
    flat = _numbers(like, chance).flatten()
    begin, end = sorted((chance.randint(0, len(flat)), chance.randint(0, len(flat))))
    flat[begin:end] = IGNORED
    return flat.reshape(like.shape)


def _truths(like: torch.Tensor, chance: random.Random) -> torch.Tensor:
    flat = torch.zeros(like.numel(), dtype=torch.bool)
    begin, end = chance.choice(((0, 0), (0, len(flat)), (0, len(flat) // 2), (len(flat) // 3, len(flat))))
    flat[begin:end] = True
    return flat.reshape(like.shape)


def filled(like: torch.Tensor, chance: random.Random, ordinary: bool, classes: bool = False) -> torch.Tensor:
    """Values for a tensor, in its sizes, dtype and layout. ``classes``: whole numbers are classes, of which some may be ignored."""
    if like.dtype == torch.bool:
        made = _truths(like, chance)
    elif not like.dtype.is_floating_point and not like.dtype.is_complex:
        made = (_ignored if classes and chance.random() < 0.5 else _numbers)(like, chance)
    elif chance.random() < 0.15:
        made = like
    else:
        generator = torch.Generator().manual_seed(chance.getrandbits(32))
        fill = FILLS[chance.choice(ORDINARY) if ordinary else chance.choice(list(FILLS))]
        made = fill(like if like.dim() else like.reshape(1), generator).reshape(like.shape)
    return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype).copy_(made) if _is_plain(like) else made


def _is_plain(like: torch.Tensor) -> bool:
    """Whether no two elements share their place."""
    return all(stride or size <= 1 for size, stride in zip(like.shape, like.stride(), strict=True)) and like.numel() > 0


def alike(ours: torch.Tensor, theirs: torch.Tensor) -> bool:
    """Element by element, within the rounding of the dtype."""
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if not theirs.dtype.is_floating_point and not theirs.dtype.is_complex:
        return torch.equal(ours, theirs)
    tolerance = {torch.float64: 1e-7, torch.complex128: 1e-7, torch.float32: 1e-3, torch.complex64: 1e-3}.get(theirs.dtype, 5e-2)
    return torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True)
