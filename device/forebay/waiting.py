"""The one line that says why a cell waits for a device, and how waits are put in words."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

if TYPE_CHECKING:
    from forebay_wire import messages

    from forebay.texts import Texts

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


def rough(seconds: float) -> tuple[str, int]:
    """A wait as a person would say it: which text ``wait_…`` it is, and its count. `forebay_service.languages` has the same."""
    minutes = seconds / 60
    if seconds <= 5:
        return "few", 0
    if seconds <= 50:
        return "seconds", 10 * math.ceil(seconds / 10)
    if minutes < 1.5:
        return "minute", 1
    if minutes < 57.5:
        return "minutes", math.floor(minutes + 0.5) if minutes < 12.5 else 5 * math.floor(minutes / 5 + 0.5)
    return ("hour", 1) if minutes < 90 else ("hours", math.floor(minutes / 60 + 0.5))


def about(seconds: float, texts: Texts) -> str:
    """A wait in words, as a part of a sentence."""
    kind, count = rough(seconds)
    return texts(f"wait_{kind}", count=count)


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
    """What is left of an estimate; it counts down from when it was told."""

    seconds: float
    running: int
    """Leases that hold what is waited for."""
    running_seconds: float
    """For how long the oldest of them has run, if it runs yet."""


def left(estimate: messages.Estimate | None, passed_seconds: float) -> Left | None:
    """So long after it was told."""
    if estimate is None:
        return None
    return Left(max(0.0, estimate.high_seconds - passed_seconds), estimate.running, estimate.running_seconds + passed_seconds)


def in_words(left: Left, texts: Texts) -> str:
    """How long it will be yet, or that it takes longer than usual: a sentence for all that a notebook or a command shows."""
    if left.seconds > 0:
        words = about(left.seconds, texts)
        return f"{words[:1].upper()}{words[1:]}."
    key = "estimate_over_one" if left.running == 1 else "estimate_over_many" if left.running else "estimate_over"
    return texts(key, count=left.running, time=clock(left.running_seconds))


def english() -> Texts:
    """What programs and commands say."""
    from forebay.texts import LANGUAGES, Texts

    return Texts(LANGUAGES[0])


def of_row(row: Mapping[str, Any]) -> str | None:
    """How long the session of a row of ``api/sessions`` or ``api/queue`` will wait yet, in English; None where nobody knows."""
    told_ns, high = row.get("estimated_at_ns"), row.get("estimate_high_seconds")
    if told_ns is None or high is None:
        return None
    passed_seconds = max(0.0, time.time() - told_ns / 1e9)
    ran_seconds = (row.get("running_seconds") or 0.0) + passed_seconds
    return in_words(Left(max(0.0, high - passed_seconds), row.get("running") or 0, ran_seconds), english())


def offered(flavor: Mapping[str, Any], texts: Texts) -> str:
    """How long who would come now would wait for a flavor that can be had, a row of ``api/flavors``."""
    seconds = flavor.get("wait_seconds")
    if seconds is None:
        return texts("wait_unknown")
    return texts("wait_none") if seconds == 0 else texts("wait", time=about(seconds, texts))


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
        over = left is not None and not left.seconds
        repeats = queued is known and over == self._was_over
        self._was_over = over
        text = f"forebay: waiting for {flavor}{place}: {queued.said()}{'' if left is None else f' {in_words(left, english())}'}"
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
