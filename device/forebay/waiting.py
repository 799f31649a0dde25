"""The one line that says why a cell waits for a device."""

from __future__ import annotations

import sys
import time
from typing import TextIO

QUIET_SECONDS = 0.5
"""Shorter waits are not worth a line."""


class WaitingLine:
    """Written to standard error once per change: over itself where that is a terminal or a notebook, else line by line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._text = ""
        self._started = time.monotonic()

    def show(self, position: int, reason: str) -> None:
        """Says the place in the queue (1 is next) and why."""
        text = f"forebay: waiting for a device, position {position}: {reason}"
        if text != self._text:
            self._write(text, last=False)

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
