"""What is wrong in what a service was sent, for programs. It goes beside the English sentence of a refusal, which nobody need read then."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

_CHOICE = re.compile(r"'([^']*)'")
"""Of the choices that pydantic lists."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: ``code`` names it, and is pydantic's own where pydantic found it."""

    code: str
    field: str | None = None
    """Where it is, parts with dots between them; None where it is not one field's."""
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What stands in its sentence: numbers, texts, and lists of texts."""

    @property
    def row(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"code": self.code, "field": self.field, "values": dict(self.values)}


def fault_found(details: Mapping[str, Any]) -> Fault:
    """Of an entry of pydantic's ``errors()``. Choices, which pydantic writes as words, become a list."""
    found: dict[str, Any] = {name: _plain(value) for name, value in details.get("ctx", {}).items() if isinstance(value, str | int | float)}
    if details["type"] == "literal_error":
        found = {"choices": _CHOICE.findall(str(found.get("expected", "")))}
    return Fault(details["type"], ".".join(str(part) for part in details["loc"]) or None, found)


def _plain(value: str | int | float) -> str | int | float:
    """A bound of a number with decimals that has none, as people write it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
