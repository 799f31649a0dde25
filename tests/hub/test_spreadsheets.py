"""No cell of a table is a formula, whoever named it; numbers are numbers."""

from __future__ import annotations

import csv
import io

import pytest
from forebay_service.spreadsheets import FORMULA_STARTS, cell, csv_text
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("start", FORMULA_STARTS)
def test_what_begins_as_a_formula_does_is_text(start: str) -> None:
    assert cell(f"{start}1+1") == f"'{start}1+1"
    assert cell(f"  {start}x") == f"'  {start}x"


@pytest.mark.parametrize("number", ["-0.50", "0", "12.000000001", -3, 4, ""])
def test_numbers_stay_numbers(number: object) -> None:
    assert cell(number) == number


@given(st.lists(st.lists(st.text(), min_size=2, max_size=2), max_size=5))
def test_a_table_is_read_as_it_was_written_and_no_cell_calculates(rows: list[list[str]]) -> None:
    found = list(csv.reader(io.StringIO(csv_text(("a", "b"), rows), newline="")))
    assert found[0] == ["a", "b"]
    assert [[value.removeprefix("'") if cell(was) != was else value for value, was in zip(read, row, strict=True)]
            for read, row in zip(found[1:], rows, strict=True)] == rows  # fmt: skip
