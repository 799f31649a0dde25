"""Changes that hold only while nobody else has changed the same: ``ETag``, ``If-Match`` and ``If-None-Match`` (RFC 9110, section 13.1).

A tag stands for what was *set*, not for what of it is used or held by now: that changes all the time, and no writer would ever win.
So an equal tag says that nothing anybody decided is lost. No I/O.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

HEADERS_CHARACTERS_MAX = 4096
MISMATCH = "Somebody else changed this in the meantime, and nothing was saved; read it again."
_TAG = r'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"'
_TAGS = re.compile(rf"[ \t,]*{_TAG}(?:[ \t]*,[ \t,]*{_TAG})*[ \t,]*")


class InvalidPrecondition(ValueError):
    """A header that is neither ``*`` nor a list of tags; the message is a sentence."""


@dataclass(frozen=True, slots=True)
class Precondition:
    """What a request expects. None: the header was not sent; empty: ``*``, whichever tag it is."""

    match: frozenset[str] | None = None
    none_match: frozenset[str] | None = None

    def holds(self, tag: str | None) -> bool:
        """Whether it is as expected; ``tag`` is of what stands now, None where there is nothing."""
        if self.match is not None and (tag is None or (self.match and tag not in self.match)):
            return False
        if self.none_match is None or tag is None:
            return True
        return bool(self.none_match) and tag not in {one.removeprefix("W/") for one in self.none_match}


ANYHOW = Precondition()
"""Whatever stands there."""


def precondition_in(headers: Mapping[str, str]) -> Precondition:
    """What the headers of a request expect. Raises InvalidPrecondition."""
    return Precondition(_tags(headers, "If-Match"), _tags(headers, "If-None-Match"))


def tag_of(content: Mapping[str, Any]) -> str:
    """A strong tag, with its quotation marks, of content that goes into JSON."""
    return f'"{sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]}"'


def _tags(headers: Mapping[str, str], name: str) -> frozenset[str] | None:
    text = headers.get(name)
    if text is None:
        return None
    if text.strip() == "*":
        return frozenset()
    if len(text) > HEADERS_CHARACTERS_MAX or _TAGS.fullmatch(text) is None:
        raise InvalidPrecondition(f'{name}: send * or tags in quotation marks, such as "a1", as they came in ETag.')
    return frozenset(re.findall(_TAG, text))
