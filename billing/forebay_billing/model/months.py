"""Calendar months in UTC, and moments as people read them."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from forebay_service.errors import Fault

from forebay_billing.errors import InvalidRequest

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HOUR_NS = 3600 * 10**9
_HOURS_REMEMBERED_MAX = 10_000
_TEXT = re.compile(r"(\d{4})-(0[1-9]|1[0-2])", re.ASCII)


class Month(NamedTuple):
    """A month of the proleptic Gregorian calendar in UTC; its end is the next one's start."""

    year: int
    month: int

    @classmethod
    def parse(cls, text: str) -> Month:
        """The month written ``YYYY-MM``. Raises InvalidRequest outside 1970-01 to 2261-12, where nanoseconds fit 64 bits."""
        match = _TEXT.fullmatch(text)
        if match is None or not 1970 <= int(match[1]) <= 2261:
            sentence = f"month: {text!r} is not a month; write it as YYYY-MM, for example 2026-11."
            raise InvalidRequest(sentence, Fault("no_month", "month", {"given": f"{text!r}"}))
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def of(cls, time_ns: int) -> Month:
        """The month that holds a Unix time in nanoseconds."""
        return _of_hour(time_ns // _HOUR_NS)

    @property
    def next(self) -> Month:
        return Month(self.year + 1, 1) if self.month == 12 else Month(self.year, self.month + 1)

    @property
    def previous(self) -> Month:
        return Month(self.year - 1, 12) if self.month == 1 else Month(self.year, self.month - 1)

    @property
    def start_ns(self) -> int:
        """Unix time of the first nanosecond."""
        return (datetime(self.year, self.month, 1, tzinfo=UTC) - _EPOCH) // timedelta(seconds=1) * 10**9

    @property
    def end_ns(self) -> int:
        """Unix time of the first nanosecond that is no longer in it."""
        return self.next.start_ns

    def __str__(self) -> str:
        return f"{self.year:04d}-{self.month:02d}"


@lru_cache(maxsize=_HOURS_REMEMBERED_MAX)
def _of_hour(hour: int) -> Month:
    """The month of an hour since the epoch."""
    moment = _EPOCH + timedelta(hours=hour)
    return Month(moment.year, moment.month)


def time_text(time_ns: int) -> str:
    """Unix time in nanoseconds as ISO 8601 in UTC, exactly."""
    seconds, rest = divmod(time_ns, 10**9)
    fraction = f".{rest:09d}" if rest else ""
    return f"{_EPOCH + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%S}{fraction}Z"
