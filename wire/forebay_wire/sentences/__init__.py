"""What the codes of causes say, in each language: the pool's codes and values become sentences where somebody reads them.

A catalogue is one JSON file a language; the extension of JupyterLab has the same files (``lab/src/text/sentences``); a test compares them.
A place is a value's name; ``{0}`` is the first part; ``{parts}`` are all parts, one after the other, and ``{ways}`` all as a choice.
A value whose name ends with ``_milli`` is in thousandths of a device, one that ends with ``_bytes`` in bytes. ``CODE_one`` is said in the
place of ``CODE`` where the value ``count`` is 1.

Codes are for ever: one that is said no more stays, since older pools say it. A code or a place that comes, or changes, raises
``forebay_wire.messages.CAUSES``.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

LANGUAGES = ("en", "ko")
ENGLISH = LANGUAGES[0]
CHOICES_SHORT_MAX = 3
"""A choice of more is a list whose last alone has the word between."""
WHOLE_MILLI = 1000
SMALL_BYTES = 2**30 // 10
"""Less than that is told in MiB."""

Value = str | int
Catalogue = Mapping[str, str]


@functools.cache
def catalogue(language: str) -> Catalogue:
    """All sentences of one of LANGUAGES, by code."""
    texts: dict[str, str] = json.loads((files(__name__) / f"{language}.json").read_text(encoding="utf-8"))
    return texts


def sentence(code: str, values: Mapping[str, Value], parts: Sequence[str], language: str = ENGLISH) -> str | None:
    """What the code says of its values, with its parts as they are said already; None for one that is not known, or lacks a value."""
    texts = catalogue(language)
    text = texts.get(f"{code}_one" if values.get("count") == 1 and f"{code}_one" in texts else code)
    if text is None:
        return None
    places = {name: _shown(name, value, texts) for name, value in values.items()}
    try:
        return text.format(*parts, **{**places, "parts": texts["join_parts"].join(parts), "ways": _choice(parts, texts)})
    except (KeyError, IndexError):
        return None


def gib(count: int) -> str:
    """Bytes for people."""
    return f"{count / 2**20:.1f} MiB" if 0 < count < SMALL_BYTES else f"{count / 2**30:.1f} GiB"


def _shown(name: str, value: Value, texts: Catalogue) -> str:
    if isinstance(value, str):
        return value
    if name.endswith("_milli"):
        return texts["devices_one" if value == WHOLE_MILLI else "devices"].format(count=f"{value / WHOLE_MILLI:g}")
    return gib(value) if name.endswith("_bytes") else str(value)


def _choice(parts: Sequence[str], texts: Catalogue) -> str:
    """``one or two or three``; of more, ``one, two, three or four``."""
    if len(parts) <= CHOICES_SHORT_MAX:
        return texts["join_ways"].join(parts)
    return texts["join_ways"].join([", ".join(parts[:-1]), parts[-1]])
