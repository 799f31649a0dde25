"""Tells pages, and the person's own channels, when a long cell ends, fails, waits for a device, or is stopped by a budget: ``%notify``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from forebay.errors import PoolRefused
from forebay.journal import Journal
from forebay.notebook.bounds import NANO, CellStopped, nanoseconds_of
from forebay.service import BUDGET
from forebay.spans import first_line, notebook_label, running_cell
from forebay.texts import Texts

AFTER_SECONDS = 60.0
"""Cells that take less are not worth a word, unless somebody says otherwise."""
AFTER_SECONDS_MAX = 7 * 86_400.0
WORDS_CHARS_MAX = 300
"""Of a cell's first line, and of why it ended so, that go to channels."""

Tell = Callable[[Mapping[str, Any]], None]
Kind = Literal["ended", "failed", "waits", "budget"]


@dataclass
class Cell:
    """The cell that runs. ``told`` is what was said of it."""

    number: int
    first_line: str | None
    began: float
    told: set[Kind] = field(default_factory=set)


class Notifier:
    """Off until it is turned on. ``announce`` tells all pages, ``post`` the channels, ``changed`` is called where the setting changes."""

    def __init__(
        self, shell: Any, journal: Journal, texts: Texts, announce: Tell, post: Tell, changed: Callable[[], None]
    ) -> None:
        self.on = False
        self.channels = False
        """Whether the person's channels are told too."""
        self.after_seconds = AFTER_SECONDS
        self._shell = shell
        self._journal = journal
        self._texts = texts
        self._announce = announce
        self._post = post
        self._changed = changed
        self._cell: Cell | None = None
        self._depth = 0

    def begin(self) -> None:
        """Follows cells."""
        self._shell.events.register("pre_run_cell", self._began)
        self._shell.events.register("post_run_cell", self._ended)

    @property
    def setting(self) -> dict[str, Any]:
        """As front ends get it, and notebooks keep it."""
        return {"on": self.on, "after_seconds": self.after_seconds, "channels": self.channels}

    def set(self, on: bool | None = None, after_seconds: float | None = None, channels: bool | None = None) -> None:
        """Changes what is given. Raises ValueError for a time that is not between 0 and a week."""
        if after_seconds is not None:
            if not 0 <= after_seconds <= AFTER_SECONDS_MAX:
                raise ValueError(f"{after_seconds:g} s is not between 0 s and a week")
            self.after_seconds = after_seconds
        self.on = self.on if on is None else on
        self.channels = self.channels if channels is None else channels
        self._changed()

    def look(self) -> None:
        """Whether the cell that runs waits for a device: for long, or for money."""
        cell = self._cell
        if cell is None or not self.on:
            return
        for device in self._journal.devices().values():
            if device.queued is None:
                continue
            waited = (time.monotonic_ns() - device.queued_ns) / NANO
            if device.queued.code == BUDGET:
                self._tell(cell, "budget", self._texts.reason(device.queued))
            elif waited >= self.after_seconds:
                self._tell(cell, "waits", self._texts.reason(device.queued))

    def _began(self, _info: Any) -> None:
        self._depth += 1
        found = running_cell(self._shell) if self._depth == 1 else None
        if found is not None:
            self._cell = Cell(found.count, first_line(found.source, os.environ), time.monotonic())

    def _ended(self, result: Any) -> None:
        self._depth = max(0, self._depth - 1)
        cell = self._cell
        if self._depth or cell is None:
            return
        self._cell = None
        error = result.error_before_exec or result.error_in_exec
        if not self.on or isinstance(error, KeyboardInterrupt):
            return
        if isinstance(error, CellStopped) or (isinstance(error, PoolRefused) and error.code == BUDGET):
            self._tell(cell, "budget", self._texts.error(error))
        elif time.monotonic() - cell.began >= self.after_seconds:
            self._tell(cell, "failed" if error else "ended", type(error).__name__ if error else None)

    def _tell(self, cell: Cell, kind: Kind, why: str | None) -> None:
        if kind in cell.told:
            return
        cell.told.add(kind)
        seconds = time.monotonic() - cell.began
        said = {"type": "notice", "kind": kind, "cell": cell.number, "first_line": cell.first_line}
        self._announce({**said, "seconds": seconds, "why": why})
        if self.channels:
            words = {name: text and text[:WORDS_CHARS_MAX] for name, text in (("first_line", cell.first_line), ("why", why))}
            notebook = notebook_label(os.environ, self._shell.user_ns)
            self._post({"kind": kind, "notebook": notebook, "cell": cell.number, "seconds": seconds, **words})


def seconds_of(word: str) -> float:
    """``90s``, ``5m``, ``1.5h``. Raises ValueError."""
    nanoseconds = nanoseconds_of(word)
    if nanoseconds <= 0:
        raise ValueError(f"{word!r} is not a time above 0, as 90s, 5m or 1.5h")
    return nanoseconds / NANO
