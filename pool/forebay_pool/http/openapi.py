"""An OpenAPI 3.1 description (https://spec.openapis.org/oas/v3.1.1) made of a table of operations and their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, NotRequired

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from typing_extensions import TypedDict

REF = "#/components/schemas/{model}"
JSON = "application/json"
BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT, PRECONDITION_FAILED = 400, 401, 403, 404, 409, 412
UPGRADE_REQUIRED, UNAVAILABLE = 426, 503
REFUSALS = {
    BAD_REQUEST: "The body or the path is no good; the message says which part.",
    UNAUTHORIZED: "No token, or one that is unknown, expired or revoked.",
    FORBIDDEN: "The token's scopes do not reach so far, or its user is in no tenant.",
    NOT_FOUND: "There is no such thing, or none that the bearer may know of.",
    CONFLICT: "It cannot be done in the present state; the message says why.",
    PRECONDITION_FAILED: "What stands is not what `If-Match` or `If-None-Match` expect: somebody changed it meanwhile. Nothing was done.",
    UPGRADE_REQUIRED: "It is a WebSocket, and the request opens none.",
    UNAVAILABLE: "JupyterHub or the database cannot be asked right now, a limit is reached, or another pool leads: try again.",
}
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


class FaultRow(TypedDict):
    """What is wrong in what was sent; ``field`` is null where it is not one field's."""

    code: str
    field: str | None
    values: dict[str, Any]


class Error(TypedDict):
    """What every refusal carries: a word for programs and a sentence for people, and where something sent is wrong its fault."""

    code: str
    message: str
    fault: NotRequired[FaultRow]


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    """Relative to the pool's base path, parameters in braces."""
    summary: str
    answer: Any = None
    """The type of the answer; None: no content."""
    body: type[BaseModel] | None = None
    query: type[BaseModel] | None = None
    """What may stand behind the question mark."""
    scopes: tuple[str, ...] | None = ()
    """Any one of these is needed; (): any token does; None: no token is needed."""
    refusals: tuple[int, ...] = ()
    """Beside those that follow from the rest."""
    status: int = 200
    media: str = JSON
    tagged: bool = False
    """Whether the answer has an ``ETag`` and a change heeds ``If-Match`` and ``If-None-Match`` (RFC 9110, section 13.1)."""

    @property
    def parameters(self) -> list[str]:
        """The names of what stands in the path."""
        return re.findall(r"{(\w+)}", self.path)

    @property
    def conditional(self) -> bool:
        """Whether it is done only while what stands is as expected."""
        return self.tagged and self.method != "GET"

    @property
    def statuses(self) -> list[int]:
        """Every refusal. What follows from a token, from scopes, from a body and from a path with parameters need not be listed."""
        found = {*self.refusals}
        if self.scopes is not None:
            found |= {UNAUTHORIZED, UNAVAILABLE, *((FORBIDDEN,) if self.scopes else ())}
        if self.body is not None or self.query is not None or self.parameters:
            found.add(BAD_REQUEST)
        if self.conditional:
            found.add(PRECONDITION_FAILED)
        return sorted(found)


def describe(operations: Sequence[Operation], base_path: str) -> Schema:
    """The whole document."""
    schemas = _Schemas(operations)
    paths: dict[str, Schema] = {}
    for operation in operations:
        paths.setdefault("/" + operation.path, {})[operation.method.lower()] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Forebay pool",
            "version": version("forebay-pool"),
            "description": "Sessions, leases, the queue, quotas, devices, nodes and flavors. What ends in `_ns` is whole nanoseconds.",
        },
        "servers": [{"url": base_path.rstrip("/") or "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {
                "token": {"type": "apiKey", "in": "header", "name": "Authorization", "description": "`token …`, as JupyterHub gives them."}
            },
        },
    }


class _Schemas:
    """The JSON schema of every type that the operations name."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        types: dict[tuple[int, JsonSchemaMode], Any] = {(id(Error), "serialization"): Error}
        for operation in operations:
            types |= {(id(operation.answer), "serialization"): operation.answer} if operation.answer is not None else {}
            types |= {(id(operation.body), "validation"): operation.body} if operation.body is not None else {}
        inputs = [(key, mode, TypeAdapter(kind)) for (key, mode), kind in types.items()]
        self._found, extra = TypeAdapter.json_schemas(inputs, ref_template=REF)
        self.definitions: Schema = extra.get("$defs", {})
        for schema in self.definitions.values():
            if "properties" in schema:
                schema["additionalProperties"] = False

    def of(self, kind: Any, mode: JsonSchemaMode) -> Schema:
        return self._found[id(kind), mode]


def _operation(operation: Operation, schemas: _Schemas) -> Schema:
    refusal = {"content": {JSON: {"schema": schemas.of(Error, "serialization")}}}
    refused = {str(code): {"description": REFUSALS[code], **refusal} for code in operation.statuses}
    described: Schema = {
        "summary": operation.summary,
        "operationId": "_".join([operation.method.lower(), *re.findall(r"\w+", operation.path.removeprefix("api/"))]),
        "responses": {str(operation.status): _answer(operation, schemas), **refused},
    }
    conditions = CONDITIONS if operation.conditional else []
    if operation.parameters or operation.query is not None or conditions:
        described["parameters"] = [*(_parameter(name) for name in operation.parameters), *_query_parameters(operation.query), *conditions]
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas.of(operation.body, "validation")}}}
    if operation.scopes is not None:
        described["security"] = [{"token": []}]
    if operation.scopes:
        described["description"] = "Needs the scope " + " or ".join(f"`{scope}`" for scope in operation.scopes) + "."
    return described


def _parameter(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameters(query: type[BaseModel] | None) -> list[Schema]:
    fields = {} if query is None else query.model_json_schema()["properties"]
    return [{"name": name, "in": "query", "required": False, "schema": schema} for name, schema in fields.items()]


def _answer(operation: Operation, schemas: _Schemas) -> Schema:
    if operation.answer is None:
        return {"description": "Done."}
    answer: Schema = {"description": "The answer.", "content": {operation.media: {"schema": schemas.of(operation.answer, "serialization")}}}
    return {**answer, "headers": {"ETag": TAG}} if operation.tagged else answer
