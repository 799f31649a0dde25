"""Moments as people give them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)

Moment = datetime | int
"""A time with its zone, or Unix time in whole nanoseconds."""


def unix_ns(moment: Moment | None) -> int | None:
    """Unix time in nanoseconds, exact; None for None. Raises ValueError for a time without a zone."""
    if not isinstance(moment, datetime):
        return moment
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no time zone: give it one by tzinfo=UTC, or by astimezone() where it is this host's time.")
    return (moment - EPOCH) // MICROSECOND * 1000
