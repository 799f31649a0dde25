"""Who held which device when, as stretches that can be drawn: what is too short for the eye is put together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

NS_PER_HOUR = 3_600 * 10**9
STEPS = 100
"""What is shorter than so large a part of the time that is shown is put together with what is near it."""
STEPS_TOGETHER_MAX = 4
"""But for no longer than that, so that whoever looks closer at it sees more."""


@dataclass(frozen=True, slots=True)
class Holding:
    """A device was held by a lease, for one of its segments or for as long as it is open."""

    device: str
    started_ns: int
    ended_ns: int
    lease: str
    segment: str | None = None
    """Of its usage record; None while it is open."""


@dataclass(slots=True)
class Stretch:
    """What is drawn as one: a lease, or several short ones with little between them. ``lane`` tells shares of one device apart."""

    device: str
    lane: int
    started_ns: int
    ended_ns: int
    held_ns: int
    leases: int
    last: Holding
    is_open: bool

    def ends_with(self, holding: Holding, finest_ns: int) -> bool:
        """Whether the holding belongs to it: it is of the same lease, or both are too short to be told apart."""
        if holding.lease == self.last.lease:
            return True
        if self.leases == 1 and min(self.ended_ns - self.started_ns, holding.ended_ns - holding.started_ns) >= finest_ns:
            return False
        return holding.started_ns - self.ended_ns < finest_ns and holding.ended_ns - self.started_ns <= STEPS_TOGETHER_MAX * finest_ns

    def grow(self, holding: Holding) -> None:
        self.leases += holding.lease != self.last.lease
        self.held_ns += holding.ended_ns - holding.started_ns
        self.ended_ns, self.last = max(self.ended_ns, holding.ended_ns), holding
        self.is_open |= holding.segment is None


@dataclass(slots=True)
class _Lanes:
    """Those of one device."""

    ends: list[Stretch] = field(default_factory=list)
    """The last stretch of each lane."""

    def place_of(self, holding: Holding) -> int:
        """The lane that its lease is in, else the first that is free by then."""
        same = [lane for lane, end in enumerate(self.ends) if end.last.lease == holding.lease]
        free = [lane for lane, end in enumerate(self.ends) if end.ended_ns <= holding.started_ns]
        return next(iter(same or free), len(self.ends))


def stretches(holdings: Iterable[Holding], since_ns: int, until_ns: int) -> list[Stretch]:
    """By device and time, cut to what is shown. Of equal beginnings the longest comes first."""
    finest_ns = (until_ns - since_ns) // STEPS
    found: list[Stretch] = []
    lanes: dict[str, _Lanes] = defaultdict(_Lanes)
    shown = [one for one in holdings if one.ended_ns > since_ns and one.started_ns < until_ns]
    for one in sorted(shown, key=lambda one: (one.device, one.started_ns, -one.ended_ns, one.lease)):
        cut = Holding(one.device, max(one.started_ns, since_ns), min(one.ended_ns, until_ns), one.lease, one.segment)
        ends = lanes[one.device].ends
        lane = lanes[one.device].place_of(cut)
        if lane < len(ends) and ends[lane].ends_with(cut, finest_ns):
            ends[lane].grow(cut)
            continue
        stretch = Stretch(one.device, lane, cut.started_ns, cut.ended_ns, cut.ended_ns - cut.started_ns, 1, cut, one.segment is None)
        ends[lane : lane + 1] = [stretch]
        found.append(stretch)
    return found
