"""``a[b][0]=c`` as nested values."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl


def decoded(text: str) -> dict[str, Any]:
    """Hashes of hashes and strings; arrays are hashes with numbers, or with an empty key repeated."""
    result: dict[str, Any] = {}
    for name, value in parse_qsl(text, keep_blank_values=True):
        keys = [name.split("[")[0], *re.findall(r"\[([^\]]*)\]", name)]
        place = result
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        last = keys[-1] or str(len(place))
        place[last] = value
    return result
