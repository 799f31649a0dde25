"""Text that people and their programs choose: what each field of it may hold, for both sides of the links, for the pool and for billing.

What may be in it is what every database keeps and every page, terminal and log shows on one line as what it is: no control characters, no
breaks of lines, nothing that turns the direction of writing around. What comes otherwise is mended at the links, since a notebook may be
called anything, and work that cannot be named is work all the same.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from pydantic import BeforeValidator, StringConstraints

NAME_CHARS_MAX = 128
LABEL_CHARS_MAX = 2048
LINE_CHARS_MAX = 80
_UNFIT = r"\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
FIT = rf"^[^{_UNFIT}]*$"
"""Holds for all that is fit; half a pair of UTF-16 is none anyway, and no such text gets as far as a pattern."""
SHOWN_INSTEAD = "\N{REPLACEMENT CHARACTER}"
_UNFIT_OR_HALF = re.compile(rf"[{_UNFIT}\ud800-\udfff]")

Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_CHARS_MAX, pattern=FIT)]
"""Names that tell one thing from another: ids, logins, tenants, flavors, models of devices."""
Label = Annotated[str, StringConstraints(max_length=LABEL_CHARS_MAX, pattern=FIT)]
"""What people recognise their work by: a notebook's path, a command line."""
Line = Annotated[str, StringConstraints(max_length=LINE_CHARS_MAX, pattern=FIT)]
"""What people recognise a cell by: how its source begins."""


def label_of(text: str) -> str:
    """The text as a label, as close to it as there is one."""
    return _shown(text, LABEL_CHARS_MAX)


def line_of(text: str) -> str:
    """The text as a line, as close to it as there is one."""
    return _shown(text, LINE_CHARS_MAX)


def _shown(text: str, chars_max: int) -> str:
    cut = text if len(text) <= chars_max else text[: chars_max - 1] + "…"
    return _UNFIT_OR_HALF.sub(SHOWN_INSTEAD, cut)


def name_of(text: str) -> str:
    """The text where it can be a name, else a name that stands in for it: always the same one for the same text, and for no other."""
    if 0 < len(text) <= NAME_CHARS_MAX and not _UNFIT_OR_HALF.search(text):
        return text
    return f"unreadable-{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _label_for(value: object) -> object:
    return label_of(value) if isinstance(value, str) else value


def _name_for(value: object) -> object:
    return name_of(value) if isinstance(value, str) else value


def _line_for(value: object) -> object:
    return line_of(value) if isinstance(value, str) else value


MendedName = Annotated[Name, BeforeValidator(_name_for)]
MendedLabel = Annotated[Label, BeforeValidator(_label_for)]
MendedLine = Annotated[Line, BeforeValidator(_line_for)]
