"""The auditor's own account of parked time: who was parked where, since when, and for how long that was metered."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from forebay_pool.model.snapshot import Snapshot
from forebay_pool.model.types import UsageRecord

Demand = Callable[..., None]
"""Raises Caught unless its first argument holds."""


@dataclass(eq=False)
class Stay:
    """A stretch of time in which a worker kept so many bytes of a session off its device."""

    session: str
    holder: str
    bytes: int
    opened_ns: int
    opened_unix_ns: int
    pieces: list[int] = field(default_factory=list)
    """For how long each of its segments was metered."""

    @property
    def name(self) -> str:
        return f"{self.session}.p{self.opened_unix_ns}"


@dataclass(eq=False)
class StayBook:
    """Stays by session; ``known`` are all that there ever were, since a pool may die before it wrote that one ended."""

    hour_ns: int
    demand: Demand
    stays: dict[str, Stay] = field(default_factory=dict)
    known: dict[str, Stay] = field(default_factory=dict)
    ended: int = 0

    def metered(self, record: UsageRecord, now_ns: int, away: Collection[str]) -> None:
        """Segments follow one another from the beginning on, and end at full hours and where the stay ends."""
        stay, ids = self.stays.get(record.session), (record.session, record.id)
        self.demand(stay is not None, "parked time is metered, and the session is not parked", *ids)
        if stay is None:
            return
        self.demand(record.id == f"{stay.name}/{len(stay.pieces) + 1}", "a segment of parked time is not the next one", *ids)
        self.demand(record.parked_bytes == stay.bytes, f"{stay.bytes} bytes are parked, and others metered", *ids)
        self.demand(stay.holder not in away, "parked time is metered while nobody can vouch for it", *ids)
        start_unix_ns = stay.opened_unix_ns + sum(stay.pieces)
        self.demand(record.started_at_unix_ns == start_unix_ns, "parked time does not go on where it was metered to", *ids)
        stay.pieces.append(record.duration_ns)
        end_unix_ns, hour_unix_ns = start_unix_ns + record.duration_ns, (start_unix_ns // self.hour_ns + 1) * self.hour_ns
        self.demand(end_unix_ns <= hour_unix_ns, "a segment of parked time goes beyond its hour", *ids)
        held_ns, metered_ns = now_ns - stay.opened_ns, sum(stay.pieces)
        self.demand(metered_ns <= held_ns, f"{metered_ns} ns are metered, and {held_ns} ns were parked", *ids)
        if record.close_reason == "open":
            self.demand(end_unix_ns == hour_unix_ns, "a segment of parked time that goes on ends before its hour", *ids)
            return
        self.demand(metered_ns == held_ns, f"{metered_ns} ns are metered, and {held_ns} ns were parked", *ids)
        del self.stays[record.session]
        self.ended += 1

    def follow(self, parked: Mapping[str, Stay], away: Collection[str], excused: Collection[str], now_ns: int) -> None:
        """After a step: ``parked`` are those who are, as of now. Who is not any more was metered, unless that was for no time, nobody can
        say since when, or its tensors are lost: its worker is ``excused``, or away and the session over."""
        for session, stay in list(self.stays.items()):
            now = parked.get(session)
            if now is not None and (now.holder, now.bytes) == (stay.holder, stay.bytes):
                continue
            if stay.holder not in away:
                free = stay.holder in excused or stay.opened_ns == now_ns
                self.demand(free, "parked time was not metered to its end", session, stay.holder)
            elif now is None or now.holder == stay.holder:
                continue  # it may come back with them
            del self.stays[session]
        for session, stay in parked.items():
            if session not in self.stays and stay.holder not in away:
                self._open(stay)

    def let_go(self, holder: str) -> None:
        """The worker is ended while nobody can vouch for what it keeps: it never comes back, and what was not metered is free."""
        self.stays = {session: stay for session, stay in self.stays.items() if stay.holder != holder}

    def forget(self, homes: Mapping[str, str | None], fetched: Mapping[str, str], away: Collection[str]) -> None:
        """Of those who are gone, or whose tensors another worker has or fetches, what nobody could vouch for is free."""
        for session, stay in list(self.stays.items()):
            gone = homes.get(session) != stay.holder or fetched.get(session, stay.holder) != stay.holder
            if gone and stay.holder in away:
                del self.stays[session]

    def _open(self, stay: Stay) -> None:
        self.stays[stay.session] = self.known[stay.name] = stay

    def pool_died(self, kept: Snapshot, homes: Mapping[str, str | None]) -> None:
        """Another pool knows what was written; where it reads that a session is parked and not since when, it meters from its worker's
        return on."""
        self.stays.clear()
        leased = {lease.session for lease in kept.leases}
        written = {parking.session: parking for parking in kept.parkings}
        for session in kept.sessions:
            home, parking = homes.get(session.id), written.get(session.id)
            parked = home is not None and session.parked_bytes and session.id not in leased
            if not parked or parking is None or parking.bytes != session.parked_bytes:
                continue
            stay = self.known.get(parking.id)
            self.demand(stay is not None, "parked time goes on that never began", session.id)
            if stay is not None:
                del stay.pieces[parking.segment - 1 :]
                self.demand(sum(stay.pieces) == parking.metered_ns, "parked time goes on from where it was not metered to", session.id)
                self._open(stay)
