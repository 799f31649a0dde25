"""Writes the types of the Python client's answers, ``forebay/client/models``, from the services' OpenAPI documents.

``python device/client_models.py``, after a change in what a service answers to tenants.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from datamodel_code_generator import DataModelType, InputFileType, LiteralType, PythonVersion, generate
from datamodel_code_generator.format import Formatter
from forebay_billing.http import routes as billing
from forebay_pool.http import routes as pool
from forebay_service.openapi import Schema, describe

FOLDER = Path(__file__).parent / "forebay" / "client" / "models"
DOCUMENTS = {"pool": describe(pool.ROUTES, "/", pool.INFO), "billing": describe(billing.ROUTES, "/", billing.INFO)}
HEADER = '"""What the service ``{service}`` answers to tenants. Written by ``device/client_models.py`` from its OpenAPI document."""'
NOT_FOR_CODE = ("title", "additionalProperties")
"""Names that repeat the fields', and a promise that a later release of a service need not keep."""


def operations(document: Schema) -> Iterator[tuple[str, str, Schema]]:
    """Method, path and description of all that is for tenants."""
    for path, methods in document["paths"].items():
        yield from ((method, path, one) for method, one in methods.items() if "tenants" in one["tags"])


def models_of(service: str) -> str:
    """The module's text."""
    document = DOCUMENTS[service]
    answers = [one["responses"] for _, _, one in operations(document)]
    names = reached([{status: answer for status, answer in one.items() if status < "300"} for one in answers], document)
    schemas = {name: for_code(schema) for name, schema in document["components"]["schemas"].items() if name in names}
    text = generate(
        {"openapi": document["openapi"], "info": document["info"], "paths": {}, "components": {"schemas": schemas}},
        input_file_type=InputFileType.OpenAPI,
        output_model_type=DataModelType.PydanticV2BaseModel,
        base_class="forebay.client.row.Row",
        target_python_version=PythonVersion.PY_311,
        enum_field_as_literal=LiteralType.All,
        formatters=[Formatter.BUILTIN],
        use_double_quotes=True,
        use_schema_description=True,
        use_single_line_docstring=True,
        use_field_description=True,
        custom_file_header=HEADER.format(service=service),
        disable_timestamp=True,
    )
    return re.sub(r"\n{3,}(?=class |\Z)", "\n\n\n", str(text)).rstrip() + "\n"


def reached(part: Any, document: Schema) -> set[str]:
    """The names of all schemas that are named below here, and in those."""
    found: set[str] = set()
    todo = set(re.findall(r"#/components/schemas/(\w+)", str(part)))
    while todo:
        found |= todo
        inner = [document["components"]["schemas"][name] for name in todo]
        todo = set(re.findall(r"#/components/schemas/(\w+)", str(inner))) - found
    return found


def for_code(schema: Any) -> Any:
    """The schema without what says nothing to a reader of code; properties keep their names whatever these are."""
    if isinstance(schema, list):
        return [for_code(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: one for key, one in schema.items() if key not in NOT_FOR_CODE or isinstance(one, dict)}
    return {key: for_code(one) for key, one in kept.items()}


if __name__ == "__main__":
    for service in DOCUMENTS:
        (FOLDER / f"{service}.py").write_text(models_of(service), encoding="utf-8")
