"""The lines below cells: while one waits for a device, and after one that used it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.journal import Entry, Journal
from forebay.notebook import notice
from forebay.notebook.looks import Looks
from forebay.notebook.output import NOWHERE, Header, Output
from forebay.spans import Work
from forebay.texts import Texts
from forebay.waiting import WaitingLine, short

if TYPE_CHECKING:
    from forebay_wire.messages import Queued, Refused, Revoking

SETTLE_SECONDS = 0.1
"""How long a cell's end waits for its lease to be closed, so that the first line is the last one: mostly the work is done by then."""
SHOWN_MAX = 20
"""How many of the last lines are mended when a lease of their cell closes later."""


@dataclass
class Shown:
    """A line that is there."""

    name: str
    header: Header
    entry: Entry
    data: notice.Bundle


class CellLines:
    """Follows cells, and shows below each what it used."""

    def __init__(self, output: Output, journal: Journal, texts: Texts) -> None:
        self.quiet = False
        self._output = output
        self._journal = journal
        self._texts = texts
        self._lock = threading.Lock()
        self._header: Header = NOWHERE
        self._shown: dict[str, Shown] = {}
        self._looks = Looks(journal)
        self._late: Entry | None = None
        """Of the last cell, whose work was not done at its end."""

    @property
    def header(self) -> Header:
        """Of the cell that runs, or ran last."""
        return self._header

    def began(self, _work: Work | None = None) -> None:
        """A cell begins, in this thread."""
        self._header = self._output.header()
        self._late = None

    def ended(self, work: Work) -> None:
        """A cell ended, in this thread, and its end is in the stream."""
        entry = self._journal.entry(work.id)
        if entry is None or not entry.leases:
            return
        if self._journal.settled(work.id, SETTLE_SECONDS):
            self._looks.look(entry)
        else:
            self._late = entry
        if self.quiet:
            return
        with self._lock:
            data = notice.used(entry, self._texts)
            self._shown[work.id] = Shown(self._output.show(data, self._header), self._header, entry, data)
            while len(self._shown) > SHOWN_MAX:
                del self._shown[next(iter(self._shown))]

    def mend(self) -> None:
        """Says anew what has changed since: a cell's work may be done after its end."""
        late = self._late
        if late is not None and not late.open:
            self._late = None
            self._looks.look(late)
        with self._lock:
            for shown in self._shown.values():
                data = notice.used(shown.entry, self._texts)
                if data["text/plain"] != shown.data["text/plain"]:
                    shown.data = data
                    self._output.change(shown.name, data, shown.header)


class DisplayLine(WaitingLine):
    """The line of a wait, as one display that changes and goes. Where no front end with the extension is there, it is text."""

    def __init__(self, output: Output, lines: CellLines, texts: Texts, wanted: Callable[[], bool]) -> None:
        super().__init__()
        self._output = output
        self._lines = lines
        self._texts = texts
        self._wanted = wanted
        self._began = time.monotonic()
        self._name: str | None = None
        self._header: Header = NOWHERE
        self._data: notice.Bundle = {}

    def show(self, flavor: str, queued: Queued) -> None:
        if self._name is None and not self._wanted():
            super().show(flavor, queued)
            return
        data = notice.waiting(flavor, queued, self._left(queued), self._texts)
        if self._name is None:
            self._header = self._lines.header
            self._name = self._output.show(data, self._header)
        elif data != self._data:
            self._output.change(self._name, data, self._header)
        self._data = data

    def revoking(self, message: Revoking) -> None:
        self.warn(self._texts("revoking", seconds=short(message.seconds), reason=self._texts.reason(message)))

    def stuck(self, refused: Refused) -> None:
        self.finish(self._texts("stuck", reason=self._texts.reason(refused)))

    def finish(self, outcome: str) -> None:
        if self._name is None:
            super().finish(outcome)
            return
        name, self._name = self._name, None
        over = outcome == "granted"
        data = notice.nothing() if over else notice.outcome(outcome, time.monotonic() - self._began, self._texts)
        self._output.change(name, data, self._header)
