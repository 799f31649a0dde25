"""Writes the tables of endpoints into ``http.md``, from the services' own tables of routes: ``python docs/reference/endpoints.py``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from forebay_billing.http.routes import INFO as BILLING_INFO
from forebay_billing.http.routes import ROUTES as BILLING
from forebay_pool.http.routes import INFO as POOL_INFO
from forebay_pool.http.routes import ROUTES as POOL
from forebay_service.openapi import Schema, describe
from forebay_service.routes import JSON, Route

PAGE = Path(__file__).with_name("http.md")
SERVICES = {"pool": (POOL, POOL_INFO), "billing": (BILLING, BILLING_INFO)}
DEPTH_MAX = 3
"""Rows within rows are named, not shown, below this."""


def page_of(text: str) -> str:
    """The page with its tables made anew. Raises ValueError where the place of one is missing."""
    for service, (routes, info) in SERVICES.items():
        mark = re.compile(rf"(<!-- endpoints of {service} -->\n).*?(\n<!-- end of endpoints -->)", re.DOTALL)
        if mark.search(text) is None:
            raise ValueError(f"{PAGE.name} has no place for the endpoints of {service}")
        table = table_of(service, routes, describe(routes, "/", info))
        text = mark.sub(lambda found, table=table: found[1] + table + found[2], text)  # type: ignore[misc] # bound in the loop
    return text


def table_of(service: str, routes: Iterable[Route], document: Schema) -> str:
    """A row for each method of each path."""
    rows = [f"| {service} | who | what |", "|---|---|---|"]
    for route in routes:
        operation = document["paths"]["/" + route.shown][route.method.lower()]
        rows.append(f"| `{route.method} {route.shown}{_query(route)}` | {_who(route)} | {_what(route, operation, document)} |")
    return "\n".join(rows)


def _query(route: Route) -> str:
    names = [] if route.query is None else list(route.query.model_fields)
    return "?" + "&".join(f"{name}=" for name in names) if names else ""


def _who(route: Route) -> str:
    if route.who:
        return route.who
    if route.scopes is None:
        return "anyone, without a token"
    return ", ".join(scope.rpartition(":")[2] for scope in route.scopes) or "anyone signed in"


def _what(route: Route, operation: Schema, document: Schema) -> str:
    body = _content(operation.get("requestBody", {}), document)
    answer = _content(operation["responses"][str(route.status)], document)
    others = [f"`{media}`" for media in route.media if media != JSON and route.answer is not None]
    parts = [
        " ".join([*([f"`{body}`"] if body else []), *([f"→ `{answer}`"] if answer else [])]),
        "as " + ", ".join(others) if others else "",
        "heeds `If-Match` and `If-None-Match`" if route.conditional else "",
    ]
    return ": ".join([route.summary, *(["; ".join(filter(None, parts))] if any(parts) else [])])


def _content(described: Schema, document: Schema) -> str:
    """The shape of a JSON body or answer; empty where there is none."""
    content = described.get("content", {}).get(JSON)
    return "" if content is None else _shape(content["schema"], document)


def _shape(schema: Schema, document: Schema, depth: int = 0) -> str:
    """The names in a schema, as ``{name, rows: [{name}]}``; empty where it says nothing. ``?``: may be left out."""
    schema = _resolved(schema, document)
    if "anyOf" in schema:
        return next((shape for one in schema["anyOf"] if (shape := _shape(one, document, depth))), "")
    if schema.get("type") == "array":
        inner = _shape(schema.get("items", {}), document, depth)
        return f"[{inner}]" if inner else ""
    fields: dict[str, Any] = schema.get("properties", {})
    if not fields:
        return ""
    if depth == DEPTH_MAX:
        return "…"
    return "{" + ", ".join(_field(name, schema, document, depth) for name in fields) + "}"


def _field(name: str, schema: Schema, document: Schema, depth: int) -> str:
    inner = _shape(schema["properties"][name], document, depth + 1)
    left_out = "" if name in schema.get("required", []) else "?"
    return f"{name}{left_out}: {inner}" if inner else name + left_out


def _resolved(schema: Schema, document: Schema) -> Schema:
    if "$ref" not in schema:
        return schema
    found: Schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


if __name__ == "__main__":
    PAGE.write_text(page_of(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
