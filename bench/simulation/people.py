"""Clients that do whatever comes to their mind: every way in which a process may use the session link and its stream."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

from forebay_pool.model.events import Event, SessionDismissed
from forebay_wire import messages as wire

from simulation.agenda import MILLISECOND_NS, SECOND_NS
from simulation.clients import Client, Network
from simulation.workers import Ask, Work

NOTEBOOKS = 2
"""That each user has; a session computes for one of them."""


def notebook_of(user: str, number: int) -> str:
    return f"{user}/{number}.ipynb"


KEEPS_ONE_IN = 2
"""So many clients keep what they send, for another worker to do it again."""
ODD_ONE_IN = 8
ODD = (
    *("", "\0", "a\0b.ipynb", "x\r\naction=usage.correct who=operator", "\x1b[2J", "\u202egnp.ipynb", "\ud800"),
    *("=1+1", "n" * 5000, "🦊" * 2048),
)
"""What a program may call its work that speaks the link's language and means no good."""


class Crowd(Network, Protocol):
    """What a person needs of the storm."""

    tenants: list[str]
    flavor_names: list[str]
    calm: bool

    def add(self, client: Client) -> None: ...

    def apply_soon(self, event: Event) -> None: ...

    def dismissal(self, name: str) -> SessionDismissed: ...

    def departed(self, person: Person) -> None: ...


class Person(Client):
    """Thinks, computes, and sometimes presses stop, changes its flavor, walks away or dies. A lost session begins anew."""

    def __init__(self, storm: Crowd, name: str, chance: random.Random) -> None:
        tenant = chance.choice(storm.tenants)
        user = f"{tenant}-{chance.randrange(3)}"
        super().__init__(storm, name, tenant, user, chance.choice(storm.flavor_names), notebook_of(user, int(name[1:]) % NOTEBOOKS))
        self.storm = storm
        self.chance = chance
        self.careful = chance.random() < 0.7
        """Waits for its cells' results."""
        self.odd = int(name[1:]) % ODD_ONE_IN == 0
        if int(name[1:]) % KEEPS_ONE_IN == 0:
            self.keep()
        self._cell = 0

    def start(self) -> None:
        self.storm.add(self)
        self._think()

    def _think(self) -> None:
        self._after(self.chance.expovariate(1.5), self._act)

    def _after(self, seconds: float, action: Callable[[], None]) -> None:
        def go() -> None:
            if not self.over:
                action()

        self.storm.agenda.after(int(seconds * SECOND_NS), go)

    def _act(self) -> None:
        if self.storm.calm:
            self._go_home()
            return
        what = self.chance.random()
        if what < 0.03:
            self._die()
        elif what < 0.06:
            self.storm.apply_soon(self.storm.dismissal(self.name))
            self._think()
        elif what < 0.12:
            self._say(wire.ChooseFlavor(flavor=self.chance.choice([*self.storm.flavor_names, "none"])))
            self._think()
        elif what < 0.15:
            self.release()
            self._think()
        elif self.waits:
            self._bother()
        else:
            self._run_cell()

    def _go_home(self) -> None:
        """Once all is well it waits for what it asked for, and then its process ends."""
        if self.waits or self.lease is not None:
            self._think()
        else:
            self._die()

    def _bother(self) -> None:
        """It waits: patience, stop, or asking again."""
        what = self.chance.random()
        if what < 0.3:
            self.cancel()
        elif what < 0.5:
            self._say(wire.Acquire(request=self.request, span=self.span))
        self._think()

    def _run_cell(self) -> None:
        self._cell += 1
        if self.chance.random() < 0.8:
            self.begin(self._span())
        count = self.chance.randint(1, 4) if self.chance.random() < 0.95 else 40
        works = [Work(int(self.chance.expovariate(8) * SECOND_NS) + MILLISECOND_NS) for _ in range(count)]
        if self.careful:
            self.compute(*works, Ask(self._read))
        else:
            self.compute(*works)
            self._after(self.chance.random(), self.end)
        self._think()

    def _span(self) -> wire.Span:
        """Of its next cell; who is odd gives it a name, and calls itself, what no book can hold."""
        id, label = f"{self.name}-{self._cell}", self.label
        if self.odd:
            id, label = ("", f"{id}\0", id * 200, id)[self._cell % 4], ODD[self._cell % len(ODD)]
        return wire.Span(id=id, kind="cell", label=label, cell=self._cell)

    def _read(self) -> None:
        if not self.over and self.chance.random() < 0.9:
            self.end()

    def _die(self) -> None:
        self.leave()
        self.storm.departed(self)

    def hear(self, message: wire.ToClient) -> None:
        super().hear(message)
        if isinstance(message, wire.Refused) and not self.welcome and not self.over:
            self._die()

    def lost(self) -> None:
        super().lost()
        self.storm.departed(self)
