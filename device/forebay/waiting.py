"""The one line that says why a cell waits for a device."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from forebay_wire import messages

QUIET_SECONDS = 0.5
"""Shorter waits are not worth a line."""


OPENING = ("starting", "restoring")
"""Reasons of who is not in the line any more: the lease is being opened."""


def in_line(position: int) -> str:
    """A position for people."""
    if position == 1:
        return "next in line"
    ending = "th" if position // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(position % 10, "th")
    return f"{position}{ending} in line"


def about(seconds: float) -> str:
    """A duration for people."""
    if seconds < 120:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 7_200 else f"{round(seconds / 3600)} h"


class WaitingLine:
    """Written to standard error once per change: over itself where that is a terminal or a notebook, else line by line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._text = ""
        self._started = time.monotonic()

    def show(self, flavor: str, queued: messages.Queued) -> None:
        """Says the place in the line (0: nobody knows), why, and about how long."""
        place = f", {in_line(queued.position)}" if queued.position and queued.code not in OPENING else ""
        estimate = "" if queued.estimate_seconds is None else f" About {about(queued.estimate_seconds)}."
        text = f"forebay: waiting for {flavor}{place}: {queued.reason}{estimate}"
        if text != self._text:
            self._write(text, last=False)

    def warn(self, text: str) -> None:
        """Says something on a line of its own."""
        self._write(f"forebay: {text}", last=True)

    def finish(self, outcome: str) -> None:
        """Ends the line, if there is one, with what came of it and the time since this object was made."""
        if self._text:
            self._write(f"forebay: {outcome} after {time.monotonic() - self._started:.1f} s", last=True)

    def _write(self, text: str, last: bool) -> None:
        stream = self._stream if self._stream is not None else sys.stderr
        over_itself = stream.isatty() or type(stream).__module__.startswith("ipykernel")
        shown = "\r" + text.ljust(len(self._text)) if over_itself else text
        self._text = "" if last else text
        stream.write(shown + ("\n" if last or not over_itself else ""))
        stream.flush()
