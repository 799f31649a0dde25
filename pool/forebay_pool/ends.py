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

PLACING_NS = 2**63
"""Stands for the time at which a lease began that is still being opened."""
Entry = tuple[int, str, int]
"""When the lease began, its session's id, the thousandths that it holds."""


class Ends:
    """The holds, by make of device and flavor, in the order in which their leases began."""

    def __init__(self) -> None:
        self.free_milli: Counter[Make] = Counter()
        """Of each make, what nobody holds, in thousandths."""
        self._holds: dict[Make, dict[str, SortedList[Entry]]] = {}
        self._entries: dict[Session, list[tuple[Make, str, Entry]]] = {}

    def hold(self, session: Session, place: Place) -> None:
        """A lease is being opened."""
        devices = Counter(device.make for device in place.devices)
        held = [(make, session.flavor, (PLACING_NS, session.id, count * place.share_milli)) for make, count in devices.items()]
        self._file(session, held)

    def open(self, session: Session, flavor: str, opened_ns: int) -> None:
        """Its lease began."""
        held = [(make, flavor, (opened_ns, name, milli)) for make, _, (_, name, milli) in self._entries[session]]
        self.leave(session)
        self._file(session, held)

    def _file(self, session: Session, held: list[tuple[Make, str, Entry]]) -> None:
        self._entries[session] = held
        for make, flavor, entry in held:
            holds = self._holds.setdefault(make, {})
            filed = holds.get(flavor)
            if filed is None:
                filed = holds[flavor] = SortedList()
            filed.add(entry)

    def leave(self, session: Session) -> None:
        """It holds nothing any more."""
        for make, flavor, entry in self._entries.pop(session):
            filed = self._holds[make][flavor]
            filed.remove(entry)
            if not filed:
                del self._holds[make][flavor]

    def held_milli(self, make: Make) -> int:
        """What leases hold of the make. For checks."""
        return sum(milli for filed in self._holds.get(make, {}).values() for _, _, milli in filed)

    def next_ends(self, makes: Iterable[Make], lengths: Lengths, now_ns: int) -> Iterator[tuple[int, int]]:
        """When leases are expected to end, and the thousandths that each holds, soonest first."""
        holds = (pair for make in makes for pair in self._holds.get(make, {}).items())
        return heapq.merge(*(_ends(filed, lengths.mean_ns(flavor) or 0, now_ns) for flavor, filed in holds))


def _ends(filed: SortedList[Entry], length_ns: int, now_ns: int) -> Iterator[tuple[int, int]]:
    overdue = filed.bisect_left((now_ns - length_ns + 1,))
    placing = filed.bisect_left((PLACING_NS,))
    in_time = ((began_ns + length_ns, milli) for began_ns, _, milli in filed.islice(overdue, placing))
    late = ((now_ns + length_ns, milli) for _, _, milli in chain(filed.islice(0, overdue), filed.islice(placing)))
    return chain(in_time, late)
