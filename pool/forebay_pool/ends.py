"""When compute that is held is expected to be free again, without looking at each lease.

Leases of a flavor last equally long as far as anybody knows, so they end in the order in which they began; those that lasted longer than
the average already are expected to last as long again, and come last. So the next ends of any makes are a merge of few ordered lists.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from sortedcontainers import SortedList

from forebay_pool.estimates import Lengths
from forebay_pool.types import Make, Place, Session

Entry = tuple[int, str, int]
"""When the lease began, its session's id, the thousandths that it holds."""


class Holds:
    """Those of a flavor on devices of a make."""

    __slots__ = ("open", "placing")

    def __init__(self) -> None:
        self.open: SortedList[Entry] = SortedList()
        self.placing: dict[Session, int] = {}
        """The thousandths of leases that are being opened."""

    def ends(self, length_ns: int, now_ns: int) -> Iterator[tuple[int, int]]:
        overdue = self.open.bisect_left((now_ns - length_ns + 1,))
        in_time = ((began_ns + length_ns, milli) for began_ns, _, milli in self.open.islice(overdue))
        late = chain((milli for _, _, milli in self.open.islice(0, overdue)), self.placing.values())
        return chain(in_time, ((now_ns + length_ns, milli) for milli in late))


class Ends:
    """The holds, by make of device and flavor, in the order in which their leases began."""

    def __init__(self) -> None:
        self.free_milli: Counter[Make] = Counter()
        """Of each make, what nobody holds, in thousandths."""
        self._holds: dict[Make, dict[str, Holds]] = {}
        self._entries: dict[Session, list[tuple[Make, Holds, Entry | None]]] = {}

    def hold(self, session: Session, place: Place) -> None:
        """A lease is being opened."""
        held: list[tuple[Make, Holds, Entry | None]] = []
        self._entries[session] = held
        for make, count in Counter([device.make for device in place.devices]).items():
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
        held: list[tuple[Make, Holds, Entry | None]] = []
        for make, placing, _ in self._entries[session]:
            holds = self._holds_of(make, flavor)
            entry = (opened_ns, session.id, placing.placing.pop(session))
            holds.open.add(entry)
            held.append((make, holds, entry))
        self._entries[session] = held

    def leave(self, session: Session) -> None:
        """It holds nothing any more."""
        for _, holds, entry in self._entries.pop(session):
            if entry is None:
                del holds.placing[session]
            else:
                holds.open.remove(entry)

    def held_milli(self, make: Make) -> int:
        """What leases hold of the make. For checks."""
        holds = self._holds.get(make, {}).values()
        return sum(milli for some in holds for milli in (*some.placing.values(), *(milli for _, _, milli in some.open)))

    def next_ends(self, makes: Iterable[Make], lengths: Lengths, now_ns: int) -> Iterator[tuple[int, int]]:
        """When leases are expected to end, and the thousandths that each holds, soonest first."""
        holds = (pair for make in makes for pair in self._holds.get(make, {}).items())
        return heapq.merge(*(some.ends(lengths.mean_ns(flavor) or 0, now_ns) for flavor, some in holds))
