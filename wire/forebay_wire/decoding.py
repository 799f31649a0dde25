"""Reads the JSON messages of the links, also those of a later release than this one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

MESSAGE_BYTES_MAX = 64 * 1024
"""Longest message either side accepts."""

UNKNOWN = "extra_forbidden"
"""What pydantic calls a field that a message does not have."""

T = TypeVar("T")


class MessageError(ValueError):
    """A message that is not one of this link's, or has a field that is missing, unknown or out of range."""


def decode(adapter: TypeAdapter[T], text: str | bytes, later: bool = False) -> T:
    """The message. With ``later`` its sender may be of a later release: fields that are unknown here are left out. Raises MessageError."""
    if len(text) > MESSAGE_BYTES_MAX:
        raise MessageError(f"a message of {len(text)} bytes; at most {MESSAGE_BYTES_MAX} are accepted")
    try:
        return adapter.validate_json(text)
    except ValidationError as error:
        found = error.errors(include_input=False, include_url=False)
        known = _without(text, [one["loc"] for one in found]) if later and all(one["type"] == UNKNOWN for one in found) else None
        if known is not None:
            return decode(adapter, known)
        where = ".".join(str(part) for part in found[0]["loc"]) or "message"
        raise MessageError(f"{where}: {found[0]['msg']}") from None


def _without(text: str | bytes, places: Sequence[tuple[int | str, ...]]) -> str | None:
    """The message without the fields at these places, each of which begins with the message's type; None where they are not found."""
    message = json.loads(text)
    try:
        for _, *path, name in places:
            part = message
            for step in path:
                part = part[step]
            part.pop(name, None)  # JSON may name a field twice
    except (KeyError, IndexError, TypeError, AttributeError):
        return None
    return json.dumps(message)
