"""Whether numbers that a training leaves are those of the CPU, but for rounding in double precision."""

from __future__ import annotations

import math


def differs(one: float, other: float) -> bool:
    if math.isnan(one) or math.isnan(other) or math.isinf(other):
        return not (one == other or (math.isnan(one) and math.isnan(other)))
    return not math.isclose(one, other, rel_tol=1e-10, abs_tol=1e-10)
