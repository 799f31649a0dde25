"""What a program without cells shows at its end, where it ends in a terminal: the line that a notebook shows below a cell."""

from __future__ import annotations

import sys

from forebay.journal import Journal


def show(journal: Journal, span: str) -> None:
    """On standard error, if that is a terminal and the program used a device."""
    entry = journal.entry(span)
    if entry is None or not entry.leases or not _is_terminal():
        return
    from forebay.notebook import notice
    from forebay.texts import Texts, language_here

    sys.stderr.write(notice.used(entry, Texts(language_here()))["text/plain"] + "\n")


def _is_terminal() -> bool:
    stream = sys.stderr  # there is none in some programs, and one that is closed in others
    return stream is not None and not stream.closed and stream.isatty()
