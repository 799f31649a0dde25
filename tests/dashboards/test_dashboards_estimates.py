"""What the queue's page says of how long somebody waits yet."""

from __future__ import annotations

import pytest
from forebay_dashboards.rows.pool import Session
from forebay_dashboards.text.estimates import left

SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("passed_seconds", "running", "text"),
    [
        (0, 2, "about 40 s"),
        (12, 2, "about 30 s"),
        (37, 2, "a few seconds"),
        (50, 2, "longer than usual; before it 2 run, since 1 min 20 s"),
        (50, 0, "longer than usual"),
    ],
)
def test_an_estimate_counts_down_from_when_it_was_told(passed_seconds: int, running: int, text: str) -> None:
    estimate = {"estimate_seconds": 9.0, "estimate_low_seconds": 5.0, "estimate_high_seconds": 40.0, "estimated_at_ns": 7 * SECOND}
    known = {"session": "s", "tenant": "t", "user": "u", "flavor": "f", "state": "queued", "since_ns": 1}
    row = Session.model_validate(known | estimate | {"running": running, "running_seconds": 30.0})
    assert str(left(row, (7 + passed_seconds) * SECOND)) == text


def test_where_nobody_knows_nothing_is_said() -> None:
    known = {"session": "s", "tenant": "t", "user": "u", "flavor": "f", "state": "queued", "since_ns": 1}
    assert left(Session.model_validate(known), SECOND) is None
