"""Says on standard error how far files are that go or come."""

from __future__ import annotations

import sys
import time

TERMINAL_SECONDS = 0.2
LINE_SECONDS = 30.0
"""Where standard error is no terminal."""
_MIB = 2**20


def size(count_bytes: int) -> str:
    """As people read it."""
    for unit, name in ((2**30, "GiB"), (_MIB, "MiB"), (2**10, "KiB")):
        if count_bytes >= unit:
            return f"{count_bytes / unit:.1f} {name}"
    return f"{count_bytes} bytes"


class TransferProgress:
    """``verb`` is what happens, such as ``sending``. A transfer that is over at once says nothing."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self._terminal = sys.stderr.isatty()
        self._began = self._told = time.monotonic()
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        ends = done >= total and self._shown
        if not total or (now - self._told < (TERMINAL_SECONDS if self._terminal else LINE_SECONDS) and not ends):
            return
        self._told = now
        rate = done / max(now - self._began, 0.001)
        text = f"forebay: {self._verb} {size(done)} of {size(total)} ({100 * done // total} %, {size(round(rate))}/s)"
        self._shown = not ends
        if self._terminal:
            sys.stderr.write(f"\r{text:<78}" + ("\n" if ends else ""))
        else:
            sys.stderr.write(text + "\n")
        sys.stderr.flush()
