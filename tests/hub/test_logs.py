"""A name that somebody chose makes no line of the log that is not there."""

from __future__ import annotations

import io
import logging

from forebay_service.logs import FORMAT, OneLine, one_line
from hypothesis import given
from hypothesis import strategies as st


def written(message: str, *values: object, failure: Exception | None = None) -> list[str]:
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    handler.setFormatter(OneLine(FORMAT))
    log = logging.Logger("service")
    log.addHandler(handler)
    log.error(message, *values, exc_info=failure)
    return out.getvalue().split("\n")[:-1]


@given(st.text(st.characters(codec=None, exclude_categories=())))
def test_a_record_is_one_line(name: str) -> None:
    (line,) = written("action=login user=%s", name)
    assert line.endswith(one_line(f"action=login user={name}")) and len(line.splitlines()) == 1


def test_a_forged_line_is_part_of_the_one_that_is_there() -> None:
    (line,) = written("action=login user=%s", "eve\r\n2026-11-22 ERROR pool action=lease.free\x1b[2K")
    assert line.endswith(r"user=eve\r\n2026-11-22 ERROR pool action=lease.free\x1b[2K")


def test_what_an_exception_says_begins_no_line() -> None:
    lines = written("action=failed", failure=ValueError("bad\n2026 ERROR pool action=forged\rx"))
    assert "action=failed" in lines[0] and all(line.startswith("  | ") for line in lines[1:])
