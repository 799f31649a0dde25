"""Whose turn it is where many want a service at once: who used least goes first, and all together take a share of its time.

A service has one thread for everything. So what peers ask for takes at most a share of that thread's time (``share``), and nobody waits
while less than that is used. Where more is wanted, the next turn is the peer's that used least lately, its tenant's use included: however
much others send, who sends little is served at once. Who waits for a turn is not read from meanwhile, so that what it sends too fast waits
on its own side.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

HALF_LIFE_SECONDS = 10.0
"""What was used so long ago counts half."""
BURST_SECONDS = 0.01
"""Time of the service that is saved up while nobody wants any."""
LOOP_SECONDS = 0.002
"""Time that is handed out in one turn of the service's loop: all that is not a peer's waits so much longer at most."""
WAITING_MAX = 64
"""Turns that a peer may wait for at a time."""
PEERS_MAX = 20_000
"""Peers that are remembered. Beyond, those whose use has faded are forgotten."""
FADED_SECONDS = 1e-4


class Crowded(Exception):
    """The peer waits for too many turns already."""


@dataclass(eq=False, slots=True)
class Use:
    """Seconds of the service's time that were used lately, each counting half after HALF_LIFE_SECONDS."""

    seconds: float = 0.0
    at: float = 0.0

    def now(self, now: float) -> float:
        """As of this moment."""
        return self.seconds * math.exp2((self.at - now) / HALF_LIFE_SECONDS)

    def add(self, seconds: float, now: float) -> None:
        self.seconds, self.at = self.now(now) + seconds, now


@dataclass(eq=False, slots=True)
class Peer:
    """A user of a tenant, or an address of which nobody is known yet."""

    own: Use
    shared: Use
    """Of the tenant."""
    waiting_max: int = WAITING_MAX
    waiting: int = 0
    bodies: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(1))
    """Long bodies that are read of it at a time."""

    def use(self, now: float) -> float:
        """What decides whose turn it is."""
        return self.own.now(now) + self.shared.now(now)


class RateLimit:
    """Hands out turns on the running loop."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._left = BURST_SECONDS
        self._filled = clock()
        self._handed = 0.0
        """In this turn of the loop."""
        self._waiting: list[tuple[float, int, float, Peer, asyncio.Future[None]]] = []
        self._order = count()
        self._timer: asyncio.TimerHandle | None = None
        self._peers: dict[tuple[str | None, str], Peer] = {}
        self._tenants: dict[str | None, Use] = {}

    def peer(self, tenant: str | None, name: str, waiting_max: int = WAITING_MAX, bodies: int = 1) -> Peer:
        """The peer of this name; with its first call it begins unused."""
        found = self._peers.get((tenant, name))
        if found is None:
            if len(self._peers) >= PEERS_MAX:
                self._forget()
            shared = self._tenants.setdefault(tenant, Use(at=self._clock()))
            found = self._peers[tenant, name] = Peer(Use(at=self._clock()), shared, waiting_max, bodies=asyncio.Semaphore(bodies))
        return found

    def _forget(self) -> None:
        now = self._clock()
        self._peers = {key: peer for key, peer in self._peers.items() if peer.waiting or peer.own.now(now) > FADED_SECONDS}
        named = {tenant for tenant, _ in self._peers}
        self._tenants = {tenant: use for tenant, use in self._tenants.items() if tenant in named}

    async def turn(self, peer: Peer, seconds: float) -> None:
        """Returns when it is the peer's turn, which takes so much of the service's time. Raises Crowded."""
        self._fill()
        if not self._waiting and self._may_hand():
            self._take(peer, seconds)
            return
        if peer.waiting >= peer.waiting_max:
            raise Crowded
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        peer.waiting += 1
        heapq.heappush(self._waiting, (peer.use(self._clock()), next(self._order), seconds, peer, turn))
        self._wake()
        try:
            await turn
        finally:
            peer.waiting -= 1

    def _take(self, peer: Peer, seconds: float) -> None:
        now = self._clock()
        self._left -= seconds
        if not self._handed:
            asyncio.get_running_loop().call_soon(self._turned)
        self._handed += seconds
        peer.own.add(seconds, now)
        peer.shared.add(seconds, now)

    def _may_hand(self) -> bool:
        return self._left > 0 and self._handed < LOOP_SECONDS

    def _turned(self) -> None:
        """The loop's next turn."""
        self._handed = 0.0

    def _fill(self) -> None:
        now = self._clock()
        self._left = min(BURST_SECONDS, self._left + (now - self._filled) * self._share)
        self._filled = now

    def _wake(self) -> None:
        if self._timer is None:
            wait = max(0.0, -self._left / self._share)
            self._timer = asyncio.get_running_loop().call_later(wait, self._serve)

    def _serve(self) -> None:
        """Gives turns as long as time is left; who used more since it began to wait goes back behind the others."""
        self._timer = None
        self._fill()
        while self._waiting and self._may_hand():
            use, order, seconds, peer, turn = heapq.heappop(self._waiting)
            if turn.done():  # whoever waited is gone
                continue
            used = peer.use(self._clock())
            if self._waiting and used > max(use, self._waiting[0][0]) + seconds:
                heapq.heappush(self._waiting, (used, order, seconds, peer, turn))
                continue
            self._take(peer, seconds)
            turn.set_result(None)
        if self._waiting:
            self._wake()
