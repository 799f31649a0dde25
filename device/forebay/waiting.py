"""The one line that says why a cell waits for a device."""

from __future__ import annotations

import sys
from typing import TextIO

QUIET_SECONDS = 0.5
"""Shorter waits are not worth a line."""


class WaitingLine:
    """Written to standard error once per change: over itself where that is a terminal or a notebook, else line by line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._over_itself = self._stream.isatty() or type(self._stream).__module__.startswith("ipykernel")
        self._text = ""

    def show(self, position: int, reason: str) -> None:
        """Says the place in the queue (1 is next) and why."""
        text = f"forebay: waiting for a device, position {position}: {reason}"
        if text != self._text:
            self._write(text, end="" if self._over_itself else "\n")

    def finish(self, outcome: str, waited_seconds: float) -> None:
        """Ends the line with what came of it, if there is one."""
        if self._text:
            self._write(f"forebay: {outcome} after {waited_seconds:.1f} s", end="\n")

    def _write(self, text: str, end: str) -> None:
        over = "\r" + text.ljust(len(self._text)) if self._over_itself else text
        self._text = text
        self._stream.write(over + end)
        self._stream.flush()
