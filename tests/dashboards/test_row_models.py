"""Rows of the pages are those of the services' OpenAPI documents."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from forebay_dashboards.rows import pool
from pydantic import ValidationError

FOLDER = Path(__file__).parents[2] / "dashboards"
WRITER = runpy.run_path(str(FOLDER / "row_models.py"))


@pytest.mark.parametrize("service", WRITER["NAMES"])
def test_rows_are_as_the_service_describes_its_answers(service: str) -> None:
    written = (FOLDER / "forebay_dashboards" / "rows" / f"{service}.py").read_text(encoding="utf-8")
    assert WRITER["written"](service) == written, "run .venv/bin/python dashboards/row_models.py"


def test_what_is_hidden_or_may_be_missing_is_a_field_of_an_answer() -> None:
    described = {name: schema for service, names in WRITER["NAMES"].items() for schema, name in names.items()}
    documents = [document["components"]["schemas"] for document in WRITER["DOCUMENTS"].values()]
    for table in ("HIDDEN", "MISSING", "MAY_BE_NULL"):
        for name, fields in WRITER[table].items():
            known = set().union(*(document[described[name]]["properties"] for document in documents if described[name] in document))
            assert set(fields) <= known, (table, name)


def test_a_row_takes_what_is_new_and_does_without_what_may_be_missing() -> None:
    row = {"lease": "l", "session": "s", "tenant": "acme", "user": "ann", "flavor": "f", "device_model": "m", "opened_at_ns": 1}
    row |= {"duration_ns": 2, "span": {"id": "x", "kind": "cell", "label": "a.ipynb", "color": "new"}, "mood": "new"}
    lease = pool.Lease.model_validate(row)
    assert (lease.devices, lease.share_milli, lease.node, lease.price_nano_per_hour, lease.span.cell) == (1, 1000, "", None, None)
    assert lease.owner.tenant == "acme" and lease.key == "l" and pool.Session.model_fields["state"].annotation is str
    with pytest.raises(ValidationError):
        pool.Lease.model_validate({**row, "lease": None})
    with pytest.raises(ValidationError):
        pool.Lease.model_validate({**row, "span": {"id": "x", "kind": "neither", "label": ""}})
