"""An OpenAPI 3.1 description (https://spec.openapis.org/oas/v3.1.1) made of a table of routes and their types."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NotRequired

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from typing_extensions import TypedDict

from forebay_service import errors
from forebay_service.routes import AUDIENCES, JSON, Route

REF = "#/components/schemas/{model}"
KEY_CHARACTERS_MAX = 255
REFUSALS = {
    kind.status: " ".join(str(kind.__doc__).split())
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.RequestError)
} | {422: "What was sent can be read, but not be done with what is known.", 502: "A service of others did not answer, or refused."}
"""What each status means."""

Schema = dict[str, Any]

TAG: Schema = {"description": "Stands for what is set, whatever of it is used.", "required": True, "schema": {"type": "string"}}
CONDITIONS: list[Schema] = [
    {"name": name, "in": "header", "required": False, "description": what, "schema": {"type": "string"}}
    for name, what in (
        ("If-Match", "Tags, as in `ETag`: the change is done only while what stands has one of them; `*`: while anything stands."),
        ("If-None-Match", "Tags that what stands may not have; `*`: the change is done only where nothing stands."),
    )
]
IDEMPOTENCY: Schema = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "The same request under the same key is done once, and gets the same answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_CHARACTERS_MAX, "pattern": "^[ -~]+$"},
}
SECURITY: Schema = {
    "token": {"type": "apiKey", "in": "header", "name": "Authorization", "description": "`token …`, as JupyterHub gives them."}
}


class FaultRow(TypedDict):
    """What is wrong in what was sent; ``field`` is null where it is not one field's."""

    code: str
    field: str | None
    values: dict[str, Any]


class Refusal(TypedDict):
    """A word for programs and a sentence for people, and where something sent is wrong its fault."""

    code: str
    message: str
    fault: NotRequired[FaultRow]


class Error(TypedDict):
    """What every refusal carries."""

    error: Refusal


def describe(routes: Sequence[Route], base_path: str, info: Mapping[str, str]) -> Schema:
    """The whole document. ``info`` holds its title, version and description."""
    schemas = _Schemas(routes)
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault("/" + route.shown, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": dict(info),
        "servers": [{"url": base_path.rstrip("/") or "/"}],
        "tags": [{"name": name, "description": what} for name, what in AUDIENCES.items() if any(one.audience == name for one in routes)],
        "paths": paths,
        "components": {"schemas": schemas.definitions, "securitySchemes": SECURITY},
    }


class _Schemas:
    """The JSON schema of every type that the routes name."""

    def __init__(self, routes: Sequence[Route]) -> None:
        types: dict[tuple[int, JsonSchemaMode], Any] = {(id(Error), "serialization"): Error}
        for route in routes:
            types |= {(id(route.answer), "serialization"): route.answer} if route.answer is not None else {}
            types |= {(id(route.body), "validation"): route.body} if route.body is not None else {}
        inputs = [(key, mode, TypeAdapter(kind)) for (key, mode), kind in types.items()]
        self._found, extra = TypeAdapter.json_schemas(inputs, ref_template=REF)
        self.definitions: Schema = extra.get("$defs", {})
        for schema in self.definitions.values():
            if "properties" in schema:
                schema.setdefault("additionalProperties", False)

    def of(self, kind: Any, mode: JsonSchemaMode) -> Schema:
        return self._found[id(kind), mode]


def _operation(route: Route, schemas: _Schemas) -> Schema:
    refusal = {"content": {JSON: {"schema": schemas.of(Error, "serialization")}}}
    refused = {str(code): {"description": REFUSALS[code], **refusal} for code in route.statuses}
    described: Schema = {
        "tags": [route.audience],
        "summary": route.summary,
        "operationId": "_".join([route.method.lower(), *re.findall(r"\w+", route.shown.removeprefix("api/"))]),
        "responses": {str(route.status): _answer(route, schemas), **refused},
    }
    headers = [*(CONDITIONS if route.conditional else []), *([IDEMPOTENCY] if route.idempotent else [])]
    parameters = [*(_parameter(name) for name in route.parameters), *_query_parameters(route.query), *headers]
    if parameters:
        described["parameters"] = parameters
    if route.body is not None:
        described["requestBody"] = {"required": True, "content": {route.body_media: {"schema": schemas.of(route.body, "validation")}}}
    if route.scopes is not None:
        described["security"] = [{"token": []}]
    if route.who:
        described["description"] = f"For {route.who}."
    elif route.scopes:
        described["description"] = "Needs the scope " + " or ".join(f"`{scope}`" for scope in route.scopes) + "."
    return described


def _parameter(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameters(query: type[BaseModel] | None) -> list[Schema]:
    schema: Schema = {} if query is None else query.model_json_schema()
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": field} for name, field in schema.get("properties", {}).items()
    ]


def _answer(route: Route, schemas: _Schemas) -> Schema:
    if route.answer is None:
        return {"description": "Done."}
    text = {"type": "string"}
    content = {media: {"schema": schemas.of(route.answer, "serialization") if media == route.media[0] else text} for media in route.media}
    answer: Schema = {"description": "The answer.", "content": content}
    return {**answer, "headers": {"ETag": TAG}} if route.tagged else answer
