"""Links: messages that take time and keep their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.agenda import Action, Agenda

Delay = Callable[[], int]
"""Nanoseconds the next message takes."""


class Link:
    """One direction of a connection. Whatever is sent after :meth:`close` is lost; what was sent before arrives, but for a :meth:`cut`."""

    def __init__(self, agenda: Agenda, delay: Delay, deliver: Callable[[Any], None]) -> None:
        self._agenda = agenda
        self._delay = delay
        self._deliver = deliver
        self._free_ns = 0
        self.closed = False
        self._cut = False

    def send(self, message: Any) -> None:
        if not self.closed:
            self._free_ns = max(self._free_ns, self._agenda.now_ns + self._delay())
            self._agenda.at(self._free_ns, lambda: self._arrives(message))

    def _arrives(self, message: Any) -> None:
        if not self._cut:
            self._deliver(message)

    def hold(self, ns: int) -> None:
        """Nothing that is sent from now on arrives for so long: who sends, or who hears, stands still."""
        self._free_ns = max(self._free_ns, self._agenda.now_ns) + ns

    def close(self) -> None:
        self.closed = True

    def cut(self) -> None:
        """The connection breaks: what is under way is lost too."""
        self.closed = self._cut = True

    def after_all(self, delay_ns: int, action: Action) -> None:
        """Runs ``action`` after ``delay_ns``, and not before all that was sent has arrived."""
        self._agenda.at(max(self._free_ns, self._agenda.now_ns + delay_ns), action)
