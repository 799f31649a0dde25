"""Months are UTC."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from forebay_billing.errors import InvalidRequest
from forebay_billing.model.months import Month
from hypothesis import given
from hypothesis import strategies as st

STARTS = st.integers(0, Month(2200, 1).start_ns)


@given(STARTS)
def test_a_moment_lies_in_its_month(time_ns: int) -> None:
    month = Month.of(time_ns)
    moment = datetime.fromtimestamp(time_ns // 10**9, UTC)
    assert (month.year, month.month) == (moment.year, moment.month)
    assert month.start_ns <= time_ns < month.end_ns
    assert Month.parse(str(month)) == month


def test_months_follow_each_other_over_new_year_and_leap_days() -> None:
    assert Month(2026, 12).next == Month(2027, 1)
    assert Month(2028, 2).end_ns - Month(2028, 2).start_ns == 29 * 86_400 * 10**9


@pytest.mark.parametrize("text", ["2026-13", "2026-00", "2026-1", "26-11", "2026-11-01", "1969-12", "2262-01", "", "٢٠٢٦-11"])
def test_what_is_not_a_month_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="YYYY-MM"):
        Month.parse(text)
