"""Durations, memory and periods as people read and type them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from forebay_dashboards.errors import FormError
from forebay_dashboards.text import times
from forebay_dashboards.text.quantities import (
    MEMORY_BYTES_MAX,
    MEMORY_BYTES_MIN,
    format_duration,
    format_energy,
    format_mass,
    format_memory,
    format_memory_exactly,
    parse_memory,
)
from hypothesis import given
from hypothesis import strategies as st

NOW_NS = times.nanoseconds(datetime(2026, 11, 21, 23, 30, tzinfo=UTC))
DAY_NS = 86_400 * 10**9


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 µs"),
        (420_499, "420 µs"),
        (1_000_000, "0.001 s"),
        (842_000_001, "0.842 s"),
        (59_999_400_000, "59.999 s"),
        (59_999_600_000, "1 min 00 s"),
        (3_723_000_000_000, "1 h 02 min 03 s"),
    ],
)
def test_durations_read_naturally(duration_ns: int, text: str) -> None:
    assert format_duration(duration_ns) == text


@given(st.integers(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX))
def test_the_memory_in_the_form_is_read_back_to_the_last_byte(memory_bytes: int) -> None:
    assert parse_memory(format_memory_exactly(memory_bytes)) == memory_bytes


@pytest.mark.parametrize(
    ("energy_mj", "text"),
    [(0, "0 mJ"), (999, "999 mJ"), (1_000, "1.00 J"), (3_599_999, "3,600 J"), (3_600_000, "1.00 Wh"), (45 * 10**9, "12.5 kWh")],
)
def test_energy_is_in_joules_and_from_a_watt_hour_on_in_watt_hours(energy_mj: int, text: str) -> None:
    assert format_energy(energy_mj) == text
    assert [format_mass(mass) for mass in (7, 2_500, 123_456_789, 4 * 10**9)] == ["7 mg", "2.50 g", "123 kg", "4.00 t"]


def test_memory_in_tables_is_in_gib() -> None:
    assert [format_memory(size) for size in (2**30, 65_520 * 2**20, 0, 300 * 2**20)] == ["1 GiB", "64.0 GiB", "0 MiB", "300 MiB"]
    assert parse_memory(" 1.5 gib ") == 3 * 2**29


@pytest.mark.parametrize(
    "text", ["64", "64 GB", "-1 GiB", "0 GiB", "2000 TiB", "0.3 B", "", "\N{ARABIC-INDIC DIGIT ONE} GiB", "9" * 40 + " GiB"]
)
def test_memory_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(FormError):
        parse_memory(text)


def test_today_is_the_viewers_day() -> None:
    seoul = times.today(NOW_NS, ZoneInfo("Asia/Seoul"))
    assert times.iso(seoul.since_ns) == "2026-11-21T15:00:00.000Z"
    assert seoul.until_ns - seoul.since_ns == DAY_NS


def test_a_day_on_which_the_clock_is_changed_has_its_own_length() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    changed = times.period("days", "2026-10-25", "2026-10-25", NOW_NS, berlin)
    assert changed.until_ns - changed.since_ns == 25 * 3600 * 10**9


def test_months_are_utc_and_follow_each_other_without_a_gap() -> None:
    months = times.recent_months(NOW_NS)
    assert [month.name for month in months][:2] == ["2026-11", "2026-10"]
    assert months[-1].name == "2025-12"
    assert all(later.since_ns == earlier.until_ns for later, earlier in pairwise(months))


@pytest.mark.parametrize("name", ["today", "week", "month"])
def test_current_periods_hold_now(name: str) -> None:
    chosen = times.period(name, "", "", NOW_NS, ZoneInfo("America/New_York"))
    assert chosen.since_ns <= NOW_NS < chosen.until_ns


@pytest.mark.parametrize(
    ("name", "first", "last", "says"),
    [
        ("days", "2026-11-02", "2026-11-01", "Exchange them"),
        ("days", "yesterday", "2026-11-01", "Choose the first day"),
        ("days", "2026-11-01", "9999-12-31", "must lie between"),
        ("decade", "", "", "not a period"),
    ],
)
def test_a_period_that_makes_no_sense_is_refused(name: str, first: str, last: str, says: str) -> None:
    with pytest.raises(FormError, match=says):
        times.period(name, first, last, NOW_NS, UTC)


@pytest.mark.parametrize("text", ["2026-13", "26-11", "2026-11-01", "1969-12", "\N{ARABIC-INDIC DIGIT TWO}026-11"])
def test_what_is_no_month_is_refused(text: str) -> None:
    with pytest.raises(FormError):
        times.month(text)


@pytest.mark.parametrize("name", [None, "", "../../etc/passwd", "Mars/Olympus", "A" * 200, "Europe", "Europe/Berlin\x00"])
def test_a_zone_that_no_browser_is_in_is_utc(name: str | None) -> None:
    assert times.zone_of(name) is UTC
