"""Usage by notebook, cell and day, and what a month will come to, on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from zoneinfo import ZoneInfo

import pytest
from forebay_billing.documents.usage import co2_mg
from forebay_billing.model.months import Month
from forebay_billing.model.types import Span, UsageRecord
from running_billing import Running

HOUR_NS = 3600 * 10**9
DAY_NS = 24 * HOUR_NS
NOVEMBER = Month(2026, 11)
NOW_NS = NOVEMBER.start_ns + 20 * DAY_NS
"""By the clock of the running service."""
RATE = 2_000_000_000
"""Nano-units per second of the flavor of ``usage``."""

Make = Callable[..., UsageRecord]


def cell(number: int | None, label: str = "a.ipynb") -> Span:
    return Span(f"{label} {number}", "process" if number is None else "cell", label, number)


def test_usage_is_summed_by_notebook_and_cell(running_anywhere: Running, usage: Make) -> None:
    running_anywhere.post_usage(
        usage("a/1", span=cell(3), duration_ns=10**9),
        usage("b/1", span=cell(3), duration_ns=2 * 10**9),
        usage("c/1", span=cell(4), duration_ns=4 * 10**9),
        usage("d/1", span=cell(None, "python train.py"), duration_ns=8 * 10**9),
    )
    rows = running_anywhere.get("acme-member", "/api/summary", by="kind,notebook,cell").json()
    found = [(row["kind"], row["notebook"], row["cell"], row["duration_ns"] // 10**9, row["leases"]) for row in rows]
    assert found == [("cell", "a.ipynb", 3, 3, 2), ("cell", "a.ipynb", 4, 4, 1), ("process", "python train.py", None, 8, 1)]
    assert all(row["cost_nano"] == round(Fraction(row["duration_ns"] * RATE, HOUR_NS)) and "tenant" not in row for row in rows)
    (row,) = running_anywhere.get("acme-member", "/api/summary", by="flavor", notebook="a.ipynb").json()
    assert row["leases"] == 3
    page = running_anywhere.get("acme-member", "/api/usage", notebook="a.ipynb", cell=3).json()
    assert {record["id"] for record in page["records"]} == {"a/1", "b/1"}


def test_cells_are_told_apart_by_their_ids_and_without_by_session_and_number(running_anywhere: Running, usage: Make) -> None:
    """A kernel that starts anew counts from 1 again: its cell 3 may be another one, and a cell keeps its id whatever its number."""
    running_anywhere.post_usage(
        usage("a/1", session="one", span=replace(cell(3), cell_id="load", first_line="x = load()"), duration_ns=10**9),
        usage("b/1", session="two", span=replace(cell(3), cell_id="train", first_line="train(x)"), duration_ns=2 * 10**9),
        usage("c/1", session="two", span=replace(cell(5), cell_id="load", first_line="x = load(2)"), duration_ns=4 * 10**9),
        usage("d/1", session="old one", span=cell(3), duration_ns=8 * 10**9),
        usage("e/1", session="old two", span=cell(3), duration_ns=16 * 10**9),
        usage("f/1", session="old two", span=cell(3), duration_ns=32 * 10**9),
    )
    rows = running_anywhere.get("acme-member", "/api/summary", by="notebook,cell").json()
    found = {row["cell_id"]: (row["cell"], row["first_line"], row["duration_ns"] // 10**9) for row in rows}
    assert found == {
        "load": (5, "x = load(2)", 5), "train": (3, "train(x)", 2), "old one/3": (3, None, 8), "old two/3": (3, None, 48),
    }  # fmt: skip
    assert len(rows) == 4
    for cell_id, ids in (("load", {"a/1", "c/1"}), ("old two/3", {"e/1", "f/1"})):
        page = running_anywhere.get("acme-member", "/api/usage", notebook="a.ipynb", cell_id=cell_id).json()
        assert {record["id"] for record in page["records"]} == ids
    assert {record["span"]["first_line"] for record in page["records"]} == {None}


@pytest.mark.parametrize(("zone", "days"), [("UTC", ["2026-11-09", "2026-11-10"]), ("Asia/Seoul", ["2026-11-10"])])
def test_a_day_is_the_viewers_and_what_lasts_over_midnight_counts_on_both(
    running_anywhere: Running, usage: Make, zone: str, days: list[str]
) -> None:
    midnight_ns = NOVEMBER.start_ns + 9 * DAY_NS
    running_anywhere.post_usage(usage("a/1", started_at_ns=midnight_ns - HOUR_NS, duration_ns=3 * HOUR_NS))
    window = {"since_ns": midnight_ns - 3 * DAY_NS, "until_ns": midnight_ns + 3 * DAY_NS}
    rows = running_anywhere.get("pool", "/api/summary", by="day", zone=zone, **window).json()
    assert [row["day"] for row in rows] == days
    assert sum(row["duration_ns"] for row in rows) == 3 * HOUR_NS
    assert [row["leases"] for row in rows] == [1, 0][: len(days)], "the lease counts where it began"


def test_days_of_25_and_23_hours_are_whole_days(running_anywhere: Running, usage: Make) -> None:
    berlin = ZoneInfo("Europe/Berlin")
    moments = ((24, 23), (25, 0), (25, 23), (26, 0))
    starts = [int(datetime(2026, 10, day, hour, 30, tzinfo=berlin).timestamp()) * 10**9 for day, hour in moments]
    running_anywhere.post_usage(*(usage(f"{n}/1", started_at_ns=at, duration_ns=10**9) for n, at in enumerate(starts)))
    window = {"since_ns": starts[0] - DAY_NS, "until_ns": starts[-1] + DAY_NS}
    rows = running_anywhere.get("pool", "/api/summary", by="day,user", zone="Europe/Berlin", **window).json()
    assert [(row["day"], row["leases"]) for row in rows] == [("2026-10-24", 1), ("2026-10-25", 2), ("2026-10-26", 1)]


def test_a_month_is_forecast_from_its_last_days(running_anywhere: Running, usage: Make) -> None:
    assert running_anywhere.get("acme-member", "/api/forecast").json() == []
    for day in range(1, 20):
        running_anywhere.post_usage(usage(f"{day}/1", started_at_ns=NOVEMBER.start_ns + day * DAY_NS, duration_ns=HOUR_NS))
    (row,) = running_anywhere.get("acme-member", "/api/forecast").json()
    daily = RATE
    assert row == {
        "currency": "USD", "spent_nano": 19 * daily, "forecast_nano": 29 * daily,
        "forecast_low_nano": 29 * daily, "forecast_high_nano": 29 * daily,
    }  # fmt: skip
    (other,) = running_anywhere.get("operator", "/api/forecast", tenant="acme").json()
    assert other == row
    assert running_anywhere.get("globex-owner", "/api/forecast").json() == []


def test_energy_is_summed_where_drivers_told_it_and_not_guessed_where_not(running_anywhere: Running, usage: Make) -> None:
    """A record that is rated in two segments, since it lasts over an hour, counts its energy once."""
    running_anywhere.post_usage(
        usage("a/1", started_at_ns=NOVEMBER.start_ns + HOUR_NS // 2, duration_ns=HOUR_NS, energy_mj=7_200_000_000, user="ada"),
        usage("b/1", started_at_ns=NOVEMBER.start_ns, duration_ns=HOUR_NS, user="ada"),
        usage("c/1", started_at_ns=NOVEMBER.start_ns, duration_ns=HOUR_NS, user="bob"),
    )
    rows = running_anywhere.get("acme-owner", "/api/summary", by="user").json()
    told = {row["user"]: (row["energy_mj"], row["energy_duration_ns"], row["duration_ns"], row["co2_mg"]) for row in rows}
    assert told == {"ada": (7_200_000_000, HOUR_NS, 2 * HOUR_NS, None), "bob": (None, 0, HOUR_NS, None)}
    page = running_anywhere.get("acme-owner", "/api/usage").json()
    assert {record["id"]: record["energy_mj"] for record in page["records"]} == {"a/1": 7_200_000_000, "b/1": None, "c/1": None}


@pytest.mark.parametrize(("grams", "told"), [(None, None), (0.0, 0), (415.5, 831_000)])
def test_co2_is_the_operator_s_grams_for_each_kilowatt_hour(grams: float | None, told: int | None) -> None:
    assert co2_mg(7_200_000_000, grams) == told
    assert co2_mg(None, grams) is None
