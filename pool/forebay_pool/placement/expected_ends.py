"""When compute that is held is expected to be free again, without looking at each lease.

Leases of a flavor last equally long as far as anybody knows, so they end in the order in which they began; those that lasted longer than
the average already are expected to last as long again, and come last. So the next ends of any makes are a merge of few ordered lists.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from operator import attrgetter

from forebay_pool.model.types import Make, Place, Session
from forebay_pool.placement.lease_lengths import LeaseLengths

GONE_MAX = 32
"""Stretches that are over are dropped from a list when there are more than this, and more than of those that go on."""


class Stretch:
    """A lease that holds so many thousandths of devices of a make, since then; none from when it is over."""

    __slots__ = ("began_ns", "milli")

    def __init__(self, began_ns: int, milli: int) -> None:
        self.began_ns = began_ns
        self.milli = milli


class Holds:
    """Those of a flavor on devices of a make."""

    __slots__ = ("_gone", "_stretches", "placing")

    def __init__(self) -> None:
        self.placing: dict[Session, int] = {}
        """The thousandths of leases that are being opened."""
        self._stretches: list[Stretch] = []
        """Those of open leases in the order in which they began, and some that are over."""
        self._gone = 0

    @property
    def open(self) -> Iterator[Stretch]:
        return (stretch for stretch in self._stretches if stretch.milli)

    def begin(self, began_ns: int, milli: int) -> Stretch:
        stretch = Stretch(began_ns, milli)
        if self._stretches and self._stretches[-1].began_ns > began_ns:  # another pool opened it
            insort(self._stretches, stretch, key=_began)
        else:
            self._stretches.append(stretch)
        return stretch

    def end(self, stretch: Stretch) -> None:
        stretch.milli = 0
        self._gone += 1
        if self._gone > GONE_MAX + len(self._stretches) // 2:
            self._stretches, self._gone = list(self.open), 0

    def __len__(self) -> int:
        return len(self._stretches) - self._gone + len(self.placing)

    def some(self, step: int, now_ns: int) -> Iterator[tuple[int, int]]:
        """For how long one out of ``step`` has been held, and the thousandths that it holds; those that are being opened as from now."""
        return chain(
            ((now_ns - one.began_ns, one.milli) for one in islice(self.open, 0, None, step)),
            ((0, milli) for milli in islice(self.placing.values(), 0, None, step)),
        )

    def ends(self, length_ns: int, now_ns: int) -> Iterator[tuple[int, int]]:
        overdue = bisect_right(self._stretches, now_ns - length_ns, key=_began)
        in_time = ((one.began_ns + length_ns, one.milli) for one in islice(self._stretches, overdue, None) if one.milli)
        late = chain((one.milli for one in islice(self._stretches, overdue) if one.milli), self.placing.values())
        return chain(in_time, ((now_ns + length_ns, milli) for milli in late))


_began = attrgetter("began_ns")


class Ends:
    """The holds, by make of device and flavor, in the order in which their leases began."""

    def __init__(self) -> None:
        self.free_milli: Counter[Make] = Counter()
        """What is free of each make, in thousandths."""
        self._holds: dict[Make, dict[str, Holds]] = {}
        self._entries: dict[Session, list[tuple[Make, Holds, Stretch | None]]] = {}

    def hold(self, session: Session, place: Place) -> None:
        """A lease is being opened."""
        held: list[tuple[Make, Holds, Stretch | None]] = []
        self._entries[session] = held
        makes = [device.make for device in place.devices]
        for make, count in Counter(makes).items() if len(makes) > 1 else ((makes[0], 1),):
            holds = self._holds_of(make, session.flavor)
            holds.placing[session] = count * place.share_milli
            held.append((make, holds, None))

    def _holds_of(self, make: Make, flavor: str) -> Holds:
        holds = self._holds.setdefault(make, {})
        found = holds.get(flavor)
        if found is None:
            found = holds[flavor] = Holds()
        return found

    def open(self, session: Session, flavor: str, opened_ns: int) -> None:
        """Its lease began."""
        held: list[tuple[Make, Holds, Stretch | None]] = []
        for make, placing, _ in self._entries[session]:
            holds = self._holds_of(make, flavor)
            held.append((make, holds, holds.begin(opened_ns, placing.placing.pop(session))))
        self._entries[session] = held

    def leave(self, session: Session) -> None:
        """Forgets the session, which holds nothing any more."""
        for _, holds, stretch in self._entries.pop(session):
            if stretch is None:
                del holds.placing[session]
            else:
                holds.end(stretch)

    def held_milli(self, make: Make) -> int:
        """What leases hold of the make. For checks."""
        holds = self._holds.get(make, {}).values()
        return sum(milli for some in holds for milli in (*some.placing.values(), *(one.milli for one in some.open)))

    def next_ends(self, makes: Iterable[Make], lengths: LeaseLengths, now_ns: int) -> Iterator[tuple[int, int]]:
        """When leases are expected to end, and the thousandths that each holds, soonest first."""
        holds = (pair for make in makes for pair in self._holds.get(make, {}).items())
        return heapq.merge(*(some.ends(lengths.mean_ns(flavor) or 0, now_ns) for flavor, some in holds))

    def some(self, makes: Iterable[Make], most: int, now_ns: int) -> tuple[list[tuple[str, int, int]], int]:
        """Leases on devices of the makes: each one's flavor, for how long it has been held, thousandths; and of how many it is one."""
        holds = [pair for make in makes for pair in self._holds.get(make, {}).items()]
        step = max(1, -(-sum(len(some) for _, some in holds) // most))
        return [(flavor, age_ns, milli) for flavor, some in holds for age_ns, milli in some.some(step, now_ns)], step

    def ages(self, flavor: str, most: int, now_ns: int) -> tuple[list[int], int]:
        """For how long leases of the flavor have been held, at most so many of them; and of how many each is one."""
        holds = [some[flavor] for some in self._holds.values() if flavor in some]
        step = max(1, -(-sum(map(len, holds)) // most))
        return [age_ns for some in holds for age_ns, _ in some.some(step, now_ns)], step
