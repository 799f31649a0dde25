"""Faults that a test asks for: one for each call that matches, in order."""

from __future__ import annotations

import re
import threading
from dataclasses import dataclass
from typing import Literal

Kind = Literal["busy", "conflict", "error_before", "error_after", "lost_before", "lost_after", "denied"]


@dataclass(frozen=True)
class Fault:
    """``path`` is a pattern of "METHOD /path". ``error_*``: a 500, before or after the effect, which the key replays for a day.
    ``lost_*``: the connection ends without an answer."""

    kind: Kind
    path: str = "POST "
    retry_after_seconds: int | None = None


class Faults:
    """What is still to happen."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []
        self._lock = threading.Lock()
        self.seen: list[Fault] = []

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._waiting += faults

    def take(self, call: str) -> Fault | None:
        """The first that matches; it happens once."""
        with self._lock:
            for number, fault in enumerate(self._waiting):
                if re.search(fault.path, call):
                    self.seen.append(fault)
                    return self._waiting.pop(number)
        return None

    @property
    def left(self) -> int:
        return len(self._waiting)
