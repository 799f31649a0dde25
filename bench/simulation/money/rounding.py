"""The accountant's rounding."""

from __future__ import annotations


def nearest(numerator: int, denominator: int) -> int:
    """Rounded, halves to the even one."""
    down, rest = divmod(numerator, denominator)
    return down + (2 * rest > denominator or (2 * rest == denominator and down % 2 == 1))
