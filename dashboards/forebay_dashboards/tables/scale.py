"""Axes of charts: where they end, and what stands along them. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

_ENDS = (1, 1.2, 1.6, 2, 2.4, 3, 4, 5, 6, 8, 10)
"""Where an axis may end, but for the power of ten: it and its half are short to write."""


@dataclass(frozen=True)
class Tick:
    """What stands at ``at`` percent of the axis: of its width from the left, or of its height from the top."""

    at: float
    text: str


def end_of(highest: float) -> float:
    """Where an axis ends on which ``highest`` has room; 1 where there is nothing."""
    if highest <= 0:
        return 1
    power = math.pow(10, math.floor(math.log10(highest)))
    return next(one * power for one in (*_ENDS, 100) if one * power >= highest * (1 - 1e-9))


def upright(end: float, text: Callable[[float], str]) -> tuple[Tick, ...]:
    """The end of an upright axis, its middle and zero."""
    return (Tick(0, text(end)), Tick(50, text(end / 2)), Tick(100, text(0)))


def plain(value: float) -> str:
    """A number without decimals that say nothing, to a billionth."""
    return f"{value:.9f}".rstrip("0").rstrip(".") if value < 1000 else f"{value:,.0f}"


def natural(name: str) -> list[tuple[str, int]]:
    """What names are ordered by, so that ``node-2`` comes before ``node-10``."""
    return [(word, int(digits or 0)) for word, digits in re.findall(r"([^0-9]*)([0-9]{0,18})", name)]
