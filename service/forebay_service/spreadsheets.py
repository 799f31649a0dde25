"""Tables that people open in spreadsheets: the one writer of every CSV.

A cell that a spreadsheet would take for a formula gets an apostrophe before it (https://owasp.org/www-community/attacks/CSV_Injection),
whatever column it stands in; numbers stay numbers, below zero too.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

PARKED_SHOWN = "(parked)"
"""What parked memory is called among flavors here: its own name begins as formulas do."""
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001 - the wide ones count in some languages
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?")


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The table with its header."""
    return csv_rows([header, *rows])


def csv_rows(rows: Iterable[Sequence[object]]) -> str:
    """Rows of a table that goes on."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows([cell(value) for value in row] for row in rows)
    return out.getvalue()


def cell(value: object) -> object:
    """The value as a cell that is what it says."""
    if not isinstance(value, str) or _NUMBER.fullmatch(value) or not value.lstrip(" ").startswith(FORMULA_STARTS):
        return value
    return f"'{value}"
