"""What a program without cells shows at its end in a terminal: the line that a notebook shows below a cell.

Nothing is imported at the end: a program that was interrupted would end with another status.
"""

from __future__ import annotations

import sys

from forebay.journal import Journal
from forebay.notebook import notice
from forebay.texts import Texts, language_here


def show(journal: Journal, span: str) -> None:
    """On standard error, if the program used a device, and nobody has closed that meanwhile."""
    entry = journal.entry(span)
    if entry is not None and entry.leases and not sys.stderr.closed:
        sys.stderr.write(notice.used(entry, Texts(language_here()))["text/plain"] + "\n")
