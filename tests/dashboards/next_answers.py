"""Pool or billing as a release after this one would be, for tests of upgrades: ``python -m next_answers``, of what NEXT_RELEASE_OF names.

Its answers, and each row in them, have fields that no peer of today knows. All else is today's service.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from typing import Any

from forebay_service.handler import JsonHandler

LATER = {"of_a_later_release": {"kind": "granted", "n": [1, None]}, "also": 1}


def widened(value: Any) -> Any:
    """With more fields in what is a row or an answer; what maps names to values has no more names."""
    if isinstance(value, list):
        return [widened(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {**LATER, **{name: widened(part) if isinstance(part, list) else part for name, part in value.items()}}


def become_next() -> None:
    """Makes this process answer so."""
    today = JsonHandler.write_json_text

    def write(self: JsonHandler, text: str, etag: str | None = None) -> None:
        today(self, json.dumps(widened(json.loads(text))), etag)

    JsonHandler.write_json_text = write  # type: ignore[method-assign]


if __name__ == "__main__":
    become_next()
    package = os.environ.pop("NEXT_RELEASE_OF")
    sys.argv[0] = package
    runpy.run_module(package, run_name="__main__", alter_sys=True)
