"""Text that people and their programs choose: what each field of it may hold, for both sides of the links, for the pool and for billing.

What may be in it is what every database keeps and every page, terminal and log shows on one line as what it is: no control characters, no
breaks of lines, nothing that turns the direction of writing around, nothing that nobody sees. Joiners and selectors that scripts and
pictographs need are kept where they do something: between letters of Arabic, of India and their neighbours, and in emoji. What comes
otherwise is mended at the links, since a notebook may be called anything, and work that cannot be named is work all the same.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

from pydantic import BeforeValidator, Field, StringConstraints

NAME_CHARS_MAX = 128
LABEL_CHARS_MAX = 2048
LINE_CHARS_MAX = 80
_BREAKS = r"\t\n\r"
_CONTROLS = r"\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_UNSEEN = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u2065\u206a-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff"
    r"\uffa0\ufff0-\ufffb"
)
_INVISIBLE = _UNSEEN + r"\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
"""What Unicode has shown as nothing (Default_Ignorable_Code_Point), and characters that look like a space and are none."""
_JOINED = r"[\u0620-\u06dc\u06de-\u0dff\u0f00-\u109f\u1780-\u17b3\u17b6-\u180a\u1810-\u18aa]"
"""Letters and signs of scripts that have U+200C and U+200D between letters: Arabic to Sinhala, Tibetan, Burmese, Khmer, Mongolian."""
_PICTURE = r"[\u00a9\u00ae\u203c\u2049\u2122-\u27ff\u2900-\u2bff\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
_SEQUENCES = (
    rf"{_JOINED}(?:[\u200c\u200d]{_JOINED})+"
    rf"|{_PICTURE}[\ufe0e\ufe0f]?(?:\u200d{_PICTURE}\ufe0f?)*"
    r"|[0-9#*]\ufe0f\u20e3"
    r"|[\u3400-\u9fff\U00020000-\U0003ffff][\U000e0100-\U000e01ef]"
    r"|[\u1820-\u18aa][\u180b-\u180d\u180f]"
)
"""Where a character that by itself shows nothing does something: joined letters, emoji, and variants of ideographs and of Mongolian."""
FIT = rf"^(?:[^{_CONTROLS}{_BREAKS}{_INVISIBLE}]|{_SEQUENCES})*$"
"""Holds for all that is fit; half a pair of UTF-16 is none anyway, and no such text gets as far as a pattern."""
FIT_LINES = rf"^(?:[^{_CONTROLS}{_INVISIBLE}]|{_SEQUENCES})*$"
"""The same for what people write in several lines."""
ONE_LINE = Field(pattern=FIT, json_schema_extra={"pattern": rf"^[^{_CONTROLS}{_BREAKS}{_UNSEEN}]*$"})
LINES = Field(pattern=FIT_LINES, json_schema_extra={"pattern": rf"^[^{_CONTROLS}{_UNSEEN}]*$"})
"""As a part of a type. Its description is short: it leaves out sequences, and what is invisible beyond the first plane of Unicode."""
SHOWN_INSTEAD = "\N{REPLACEMENT CHARACTER}"
_KEPT_OR_UNFIT = re.compile(rf"({_SEQUENCES})|[{_CONTROLS}{_BREAKS}{_INVISIBLE}\ud800-\udfff]")

Name = Annotated[str, StringConstraints(min_length=1, max_length=NAME_CHARS_MAX), ONE_LINE]
"""Names that tell one thing from another: ids, logins, tenants, flavors, models of devices."""
Label = Annotated[str, StringConstraints(max_length=LABEL_CHARS_MAX), ONE_LINE]
"""What people recognise their work by: a notebook's path, a command line."""
Line = Annotated[str, StringConstraints(max_length=LINE_CHARS_MAX), ONE_LINE]
"""What people recognise a cell by: how its source begins."""


def label_of(text: str) -> str:
    """The text as a label, as close to it as there is one."""
    return _shown(text, LABEL_CHARS_MAX)


def line_of(text: str) -> str:
    """The text as a line, as close to it as there is one."""
    return _shown(text, LINE_CHARS_MAX)


def _shown(text: str, chars_max: int) -> str:
    cut = text if len(text) <= chars_max else text[: chars_max - 1] + "…"
    return _KEPT_OR_UNFIT.sub(lambda found: found[1] or SHOWN_INSTEAD, cut)


def name_of(text: str) -> str:
    """The text where it can be a name, else a name that stands in for it: always the same one for the same text, and for no other."""
    if 0 < len(text) <= NAME_CHARS_MAX and all(found[1] for found in _KEPT_OR_UNFIT.finditer(text)):
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
