"""What callers send, read into pydantic's models: one sentence for the first thing that is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from forebay_service.errors import Fault, Invalid

B = TypeVar("B", bound=BaseModel)
_CHOICE = re.compile(r"'([^']*)'")
"""Of the choices that pydantic lists."""


def body_of(model: type[B], body: bytes) -> B:
    """The JSON body as ``model``. Raises Invalid with the first fault."""
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise invalid(error, "body") from None


def query_of(model: type[B], arguments: Mapping[str, str | Sequence[str]]) -> B:
    """The query arguments as ``model``. Raises Invalid with the first fault."""
    try:
        return model.model_validate(arguments)
    except ValidationError as error:
        raise invalid(error, "query") from None


def invalid(error: ValidationError, whole: str) -> Invalid:
    """The refusal for what pydantic found; ``whole`` is what it is called when it is everything."""
    return Invalid(first_fault(error, whole), fault_found(error))


def first_fault(error: ValidationError, whole: str) -> str:
    """The first thing that is wrong, and where; ``whole`` is what it is called when it is everything."""
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or whole
    return f"{where}: {first['msg']}."


def fault_found(error: ValidationError) -> Fault:
    """The first thing that is wrong, for programs. Choices, which pydantic writes as words, become a list."""
    details = error.errors(include_input=False, include_url=False)[0]
    found: dict[str, Any] = {name: _plain(value) for name, value in details.get("ctx", {}).items() if isinstance(value, str | int | float)}
    if details["type"] == "literal_error":
        found = {"choices": _CHOICE.findall(str(found.get("expected", "")))}
    return Fault(details["type"], ".".join(str(part) for part in details["loc"]) or None, found)


def _plain(value: str | int | float) -> str | int | float:
    """A bound of a number with decimals that has none, as people write it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
