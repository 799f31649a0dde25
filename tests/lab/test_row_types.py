"""The extension's rows of the pool are as the pool describes them, and as it answers."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

LAB = Path(__file__).parents[2] / "lab"
WRITER = runpy.run_path(str(LAB / "row_types.py"))


def test_rows_are_as_the_pool_describes_its_answers() -> None:
    written = (LAB / "src" / "protocol" / "rows.ts").read_text(encoding="utf-8")
    assert WRITER["written"]() == written, "run .venv/bin/python lab/row_types.py"


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "number | null"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/CauseRow"}}, "Cause[]"),
        ({"type": "object", "additionalProperties": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "Record<string, string | null>"),
    ],
)
def test_a_schema_becomes_a_type(schema: dict[str, object], text: str) -> None:
    assert WRITER["type_of"](schema, {"CauseRow": "Cause"}) == text


def test_a_row_that_is_not_listed_is_an_error() -> None:
    with pytest.raises(KeyError):
        WRITER["type_of"]({"$ref": "#/components/schemas/QuotaRow"}, {"CauseRow": "Cause"})
