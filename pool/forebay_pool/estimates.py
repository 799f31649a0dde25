"""How long leases last, and from that how long somebody who waits has to wait yet."""

from __future__ import annotations

from typing import NamedTuple

MEMORY = 16
"""The averages are over about so many of the last leases: each counts 15/16 of the one after it."""


class Lengths:
    """Decayed averages of the lengths of leases, by flavor."""

    def __init__(self) -> None:
        self._means: dict[str, tuple[int, float]] = {}
        self._all: tuple[int, float] = (0, 0.0)

    def add(self, flavor: str, duration_ns: int) -> None:
        """A lease of the flavor lasted so long."""
        self._means[flavor] = _with(self._means.get(flavor, (0, 0.0)), duration_ns)
        self._all = _with(self._all, duration_ns)

    @property
    def known(self) -> bool:
        """Whether any lease has ended."""
        return bool(self._all[0])

    def mean_ns(self, flavor: str) -> int | None:
        """How long a lease of the flavor lasts; that of any where there was none of it; None where there was none at all."""
        count, mean = self._means.get(flavor, self._all)
        return int(mean) if count else None


class Outlook(NamedTuple):
    """What somebody who comes now would meet."""

    waiting: int
    """Requests in the line that compete for the same devices."""
    wait_seconds: float | None
    """Until the grant; zero where a place is free, None where nobody knows yet how long leases last."""


def _with(known: tuple[int, float], value: int) -> tuple[int, float]:
    """The average with one more value: of all while they are few, decayed from then on."""
    count, mean = min(known[0] + 1, MEMORY), known[1]
    return count, mean + (value - mean) / count


def estimate_seconds(ahead_ns: int, own_ns: int, slots: int) -> float | None:
    """Until the grant: ``(ahead + own) / slots``.

    ``slots`` leases run at a time; ``ahead_ns`` is the work of those who come before, each with the mean length of its flavor's leases.
    With leases of mean length ``own_ns`` under way on every slot, the next of ``slots`` slots is left after ``own_ns / slots`` on average
    (exactly so for lengths without memory, whatever their ages).
    """
    return (ahead_ns + own_ns) / slots / 1e9 if slots else None


def rough(value: float) -> int:
    """The value in steps that people notice: its two leading digits, and nothing after the point."""
    whole = value if isinstance(value, int) else round(value)
    if whole < 100:
        return whole
    step = 10 ** (len(str(whole)) - 2)
    return int(round(whole / step) * step)
