"""Writes the rows of the pool that a kernel passes on to the extension, ``src/protocol/rows.ts``, from the pool's OpenAPI document.

``.venv/bin/python lab/row_types.py``, after a change in what the pool answers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay_pool.http import routes
from forebay_service.openapi import describe

PAGE = Path(__file__).parent / "src" / "protocol" / "rows.ts"
HEADER = "// Rows of the pool, as a kernel passes them on. Written by lab/row_types.py from the pool's OpenAPI document."
ROWS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "Cause": ("CauseRow", ("code", "message", "values", "parts")),
    "Equivalent": ("EquivalentRow", ("model", "count", "share_milli", "devices", "speed")),
    "FlavorRow": (
        "FlavorRow", ("name", "memory_bytes", "price_nano_per_hour", "currency", "equivalents", "servable", "reason", "cause"),
    ),
    "Span": ("SpanRow", ("label",)),
    "Image": ("ImageRow", ("bytes", "at_ns")),
    "SessionRow": ("SessionRow", ("session", "flavor", "state", "process", "span", "memory_bytes", "image")),
    "Shared": ("NewSharedNotebookRow", ("id", "key", "name", "tenant", "expires_at_ns")),
}  # fmt: skip
"""By the extension's name, the schema and the fields that it uses."""
ABSENT = {("Cause", "message"), ("Equivalent", "devices"), ("Equivalent", "speed"), ("FlavorRow", "cause"), ("SessionRow", "image")}
"""Fields that pools and kernels of older releases do not send."""
PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}


def type_of(schema: Any, names: Mapping[str, str]) -> str:
    """The TypeScript type. Raises KeyError for a row that is not in ROWS."""
    if "$ref" in schema:
        return names[schema["$ref"].rsplit("/", 1)[1]]
    if "anyOf" in schema:
        return " | ".join(type_of(one, names) for one in schema["anyOf"])
    if schema["type"] == "array":
        return f"{type_of(schema['items'], names)}[]"
    if schema["type"] == "object":
        return f"Record<string, {type_of(schema['additionalProperties'], names)}>"
    return PLAIN[schema["type"]]


def written() -> str:
    """The module's text."""
    schemas = describe(routes.ROUTES, "/", routes.INFO)["components"]["schemas"]
    names = {schema: name for name, (schema, _) in ROWS.items()}
    rows = []
    for name, (schema, fields) in ROWS.items():
        properties = schemas[schema]["properties"]
        lines = [f"  {field}{'?' if (name, field) in ABSENT else ''}: {type_of(properties[field], names)};" for field in fields]
        rows.append("\n".join([f"export interface {name} {{", *lines, "}"]))
    return "\n\n".join([HEADER, *rows]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
