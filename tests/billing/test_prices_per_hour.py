"""Books of a release that kept prices per second and amounts in 1e-18 units say the same once they are migrated, to the last digit.

``books_of_revision_0016.json`` holds all rows that the last such release wrote, of two tenants in two currencies with surcharges, parked
bytes, corrections, late usage, a plan, credits, budgets, an open lease, invoices and a credit note; and what it answered about them.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import pytest
from forebay_billing.settings import Settings
from forebay_billing.tables.engines import Engines, open_engines, writing
from sqlalchemy import MetaData, Table, insert

OLD: dict[str, Any] = json.loads((Path(__file__).parent / "books_of_revision_0016.json").read_text(encoding="utf-8"))
PROJECTED = ("balances",)
"""What a trigger writes."""
IN_THIS_ORDER = (
    "accounts", "prices", "parked_prices", "transactions", "postings", "seals", "usage", "invoices", "credit_grants", "budgets",
)  # fmt: skip
"""What others point to; of the rest any order will do."""
BY_UNIT = ("PricingQuantity", "PricingUnit", "ListUnitPrice", "ContractedUnitPrice", "SkuPriceDetails", "SkuPriceId")
"""Columns of FOCUS that tell a price, or how much of what it is a price of."""


def write_old(books: Engines) -> None:
    config = alembic.config.Config()
    config.set_main_option("script_location", "forebay_billing:migrations")
    config.set_main_option("path_separator", "os")
    with writing(books) as connection:
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, "0016")
    names = [*IN_THIS_ORDER, *(name for name in OLD["tables"] if name not in (*IN_THIS_ORDER, *PROJECTED))]
    with writing(books) as connection:
        for name in names:
            table = Table(name, MetaData(), autoload_with=connection, resolve_fks=False)
            if name == "budget_marks":
                connection.execute(table.delete())
            kinds = {column.name: column.type.python_type for column in table.c}
            rows = [{key: bool(value) if kinds[key] is bool else value for key, value in row.items()} for row in OLD["tables"][name]]
            connection.execute(insert(table), rows)


@pytest.fixture
def service(database_url: str, settings: Settings, clock: Any, running_service: Any) -> Iterator[Any]:
    books = open_engines(database_url, 5)
    write_old(books)
    books.dispose()
    clock.now_ns = OLD["now_ns"]
    running = running_service(settings.model_copy(update={"database_url": database_url, "busy_seconds": 2.0}), clock)
    try:
        yield running
    finally:
        running.stop()


def hourly(value: Any) -> Any:
    """An answer of the former release with its prices per hour."""
    if isinstance(value, list):
        return [hourly(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name.replace("_per_second", "_per_hour"): one * 3600 if name.endswith("nano_per_second") and one is not None else hourly(one)
        for name, one in value.items()
    }


LATER = ("cell_id", "first_line", "code", "energy_mj", "energy_duration_ns", "co2_mg")


def keyless(found: Any) -> Any:
    """A draft's lines are named by their prices; an invoice's keep the names that they were given."""
    if isinstance(found, list) and found and "lines" in found[0]:
        return [one | {"lines": [line | {"key": ""} for line in one["lines"]]} for one in found]
    return found


def without_later(found: Any) -> Any:
    """Without what later releases tell as well."""
    if isinstance(found, list):
        return [without_later(one) for one in found]
    if not isinstance(found, dict):
        return found
    return {name: without_later(one) for name, one in found.items() if name not in LATER}


def table_of(text: str) -> list[dict[str, Any]]:
    """A CSV with its prices per hour; a quantity times its price stays."""
    found = []
    for row in csv.DictReader(io.StringIO(text)):
        numbers = {name: int(value) if name.endswith(("_per_second", "_per_hour")) and value else value for name, value in row.items()}
        found.append(hourly(numbers))
    return found


def without_units(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in BY_UNIT} for row in rows]


def check_units(old: dict[str, Any], new: dict[str, Any]) -> None:
    if old["PricingUnit"] != "Seconds":
        assert [old[name] for name in BY_UNIT] == [new[name] for name in BY_UNIT]
        return
    assert new["PricingUnit"] == "Hours" and new["ListUnitPrice"] == new["ContractedUnitPrice"]
    assert Decimal(new["ListUnitPrice"]) == Decimal(old["ListUnitPrice"]) * 3600
    assert abs(Decimal(new["PricingQuantity"]) * 3600 - Decimal(old["PricingQuantity"])) < Decimal("1e-8")
    cost = Decimal(new["PricingQuantity"]) * Decimal(new["ListUnitPrice"])
    assert abs(cost - Decimal(new["ListCost"])) < Decimal("1e-9")


def text_of(page: str) -> str:
    """What a reader of a page sees, however it is laid out."""
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"<style>.*?</style>", " ", page, flags=re.DOTALL)).split())


def test_statements_invoices_and_all_other_answers_say_what_they_said(service: Any) -> None:
    beaten = service.request("pool", "POST", "/api/heartbeats", json=OLD["heartbeat"])
    assert beaten.status_code == 200
    for path, before in OLD["answers"].items():
        if path == "preview":
            answer = service.request("operator", "POST", "/api/preview", json={"month": "2026-11"})
        else:
            answer = service.request("operator", "GET", f"/{path}")
        assert answer.status_code == 200, (path, answer.text)
        if before.startswith(("{", "[")):
            assert keyless(without_later(answer.json())) == keyless(hourly(json.loads(before))), path
        elif path.startswith("api/focus"):
            old, new = table_of(before), table_of(answer.text)
            assert without_units(new) == without_units(old), path
            for one, other in zip(old, new, strict=True):
                check_units(one, other)
        elif "format=csv" in path:
            assert table_of(answer.text) == table_of(before), path
        else:
            assert text_of(answer.text) == text_of(before), path


def test_a_month_that_was_open_is_finalised_as_it_was_drafted(service: Any) -> None:
    (draft,) = json.loads(OLD["answers"]["api/drafts?tenant=acme&month=2026-12"])
    service.clock.now_ns += 40 * 86_400 * 10**9
    made = service.request("operator", "POST", "/api/invoices", json={"tenant": "acme", "month": "2026-12"})
    assert made.status_code == 200, made.text
    (invoice,) = made.json()
    found = service.get("operator", f"/api/invoices/{invoice['number']}").json()
    told = ("kind", "label", "amount", "cost_exact")
    assert [[line[name] for name in told] for line in found["lines"]] == [[line[name] for name in told] for line in draft["lines"]]
    assert service.get("operator", "/api/check").json() == {"differences": []}
