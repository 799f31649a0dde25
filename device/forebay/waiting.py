"""The one line that says why a cell waits for a device."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple, TextIO

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


def short(seconds: float) -> str:
    """As people say it: to a tenth, below a second to a hundredth."""
    return f"{round(seconds, 1 if seconds >= 1 else 2):g}"


def clock(seconds: float) -> str:
    """A duration that goes on, for people."""
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class Left(NamedTuple):
    """What is left of an estimate, in seconds; it counts down from when it was told."""

    low: float
    high: float
    running: int
    """Leases that hold what is waited for."""
    running_seconds: float
    """For how long the oldest of them has run, if it runs yet."""

    @property
    def over(self) -> bool:
        """Whether the wait is longer than usual."""
        return self.high <= 0


def left(estimate: messages.Estimate | None, passed_seconds: float) -> Left | None:
    """So long after it was told."""
    if estimate is None:
        return None
    low, high = (max(0.0, told - passed_seconds) for told in (estimate.low_seconds, estimate.high_seconds))
    return Left(low, high, estimate.running, estimate.running_seconds + passed_seconds)


def in_words(left: Left) -> str:
    """How long it will be yet, or that it takes longer than usual."""
    low, high = about(left.low), about(left.high)
    if not left.over:
        return f"About {high}." if low == high else f"Up to {high}." if left.low < 1 else f"Between {low} and {high}."
    if not left.running:
        return "This is longer than usual."
    before = "the one before you has run for" if left.running == 1 else f"the {left.running} before you have run for up to"
    return f"This is longer than usual: {before} {clock(left.running_seconds)}."


class WaitingLine:
    """Written to standard error once per change: over itself where that is a terminal or a notebook, else line by line."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._text = ""
        self._started = self._told = time.monotonic()
        self._queued: messages.Queued | None = None
        self._was_over = False

    def show(self, flavor: str, queued: messages.Queued) -> None:
        """Says the place in the line (0: nobody knows), why, and about how long; again and again, as the estimate counts down.

        What cannot be written over is said anew only when there is news, or when the wait takes longer than usual."""
        place = f", {in_line(queued.position)}" if queued.position and queued.code not in OPENING else ""
        known, left = self._queued, self._left(queued)
        over = left is not None and left.over
        repeats = queued is known and over == self._was_over
        self._was_over = over
        text = f"forebay: waiting for {flavor}{place}: {queued.said()}{'' if left is None else f' {in_words(left)}'}"
        if text != self._text and not (repeats and not self._over_itself):
            self._write(text, last=False)

    def _left(self, queued: messages.Queued) -> Left | None:
        """Of its estimate, by now."""
        if queued is not self._queued:
            self._queued, self._told = queued, time.monotonic()
        return left(queued.estimate, time.monotonic() - self._told)

    def revoking(self, message: messages.Revoking) -> None:
        """Says that a lease is taken back, and why, on a line of its own."""
        ends = f"the lease is taken back in {short(message.seconds)} s, and the work waits again"
        self.warn(f"{ends}: {message.said()}")

    def stuck(self, refused: messages.Refused) -> None:
        """Ends the line of a wait that the pool began itself: what is recorded cannot be done."""
        self.finish(f"recorded work cannot go on: {refused.said()} Interrupt it; it waited")

    def warn(self, text: str) -> None:
        """Says something on a line of its own."""
        self._write(f"forebay: {text}", last=True)

    def finish(self, outcome: str) -> None:
        """Ends the line, if there is one, with what came of it and the time since this object was made."""
        if self._text:
            self._write(f"forebay: {outcome} after {time.monotonic() - self._started:.1f} s", last=True)

    @property
    def _out(self) -> TextIO:
        return self._stream if self._stream is not None else sys.stderr

    @property
    def _over_itself(self) -> bool:
        return self._out.isatty() or type(self._out).__module__.startswith("ipykernel")

    def _write(self, text: str, last: bool) -> None:
        stream, over_itself = self._out, self._over_itself
        shown = "\r" + text.ljust(len(self._text)) if over_itself else text
        self._text = "" if last else text
        stream.write(shown + ("\n" if last or not over_itself else ""))
        stream.flush()
