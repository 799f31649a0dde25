"""Who held which device when, as stretches that can be drawn: what is too short for the eye is put together. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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

    def takes(self, lease: str, started_ns: int, ended_ns: int, finest_ns: int) -> bool:
        """Whether a holding belongs to it: it is of the same lease, or both are too short to be told apart."""
        if lease == self.last.lease:
            return True
        if started_ns - self.ended_ns >= finest_ns or ended_ns - self.started_ns > STEPS_TOGETHER_MAX * finest_ns:
            return False
        return self.leases > 1 or self.ended_ns - self.started_ns < finest_ns or ended_ns - started_ns < finest_ns

    def grow(self, holding: Holding, started_ns: int, ended_ns: int) -> None:
        """Takes it, as far as it is shown."""
        if holding.lease != self.last.lease:
            self.leases += 1
        self.held_ns += ended_ns - started_ns
        self.last = holding
        if ended_ns > self.ended_ns:
            self.ended_ns = ended_ns
        if holding.segment is None:
            self.is_open = True


def stretches(holdings: Iterable[Holding], since_ns: int, until_ns: int) -> list[Stretch]:
    """By device and time, cut to what is shown. Of equal beginnings the longest comes first. A month of a pool has tens of thousands."""
    finest_ns = (until_ns - since_ns) // STEPS
    found: list[Stretch] = []
    last_of_lanes: dict[str, list[Stretch]] = defaultdict(list)
    shown = [one for one in holdings if one.ended_ns > since_ns and one.started_ns < until_ns]
    shown.sort(key=lambda one: (one.device, one.started_ns, -one.ended_ns, one.lease))
    for one in shown:
        started_ns = one.started_ns if one.started_ns > since_ns else since_ns
        ended_ns = one.ended_ns if one.ended_ns < until_ns else until_ns
        ends = last_of_lanes[one.device]
        lane = _lane_of(ends, one.lease, started_ns)
        if lane < len(ends) and ends[lane].takes(one.lease, started_ns, ended_ns, finest_ns):
            ends[lane].grow(one, started_ns, ended_ns)
            continue
        stretch = Stretch(one.device, lane, started_ns, ended_ns, ended_ns - started_ns, 1, one, one.segment is None)
        ends[lane : lane + 1] = [stretch]
        found.append(stretch)
    return found


def _lane_of(ends: Sequence[Stretch], lease: str, started_ns: int) -> int:
    """The lane that a lease is in, else the first that is free by then. ``ends`` are the last stretches of a device's lanes."""
    for lane, end in enumerate(ends):
        if end.last.lease == lease:
            return lane
    for lane, end in enumerate(ends):
        if end.ended_ns <= started_ns:
            return lane
    return len(ends)
