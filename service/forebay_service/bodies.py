"""What callers send, read into pydantic's models: one sentence for the first thing that is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from forebay_service.errors import Invalid
from forebay_service.faults import fault_found

B = TypeVar("B", bound=BaseModel)


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
    return Invalid(first_fault(error, whole), fault_found(error.errors(include_input=False, include_url=False)[0]))


def first_fault(error: ValidationError, whole: str) -> str:
    """The first thing that is wrong, and where; ``whole`` is what it is called when it is everything."""
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or whole
    return f"{where}: {first['msg']}."
