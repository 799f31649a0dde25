"""Days and months as stretches of Unix nanoseconds. Days are the viewer's; months are UTC's, as on the statement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from forebay_service.languages import Text, listed, month_name

from forebay_dashboards.errors import FormError

NS_PER_SECOND = 10**9
MONTHS_LISTED = 12
YEAR_MIN, YEAR_MAX = 1970, 2261
"""Nanoseconds of these years fit 64 bits."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ZONE = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,2}")
_MONTH = re.compile(r"([0-9]{4})-(0[1-9]|1[0-2])")


@dataclass(frozen=True)
class Period:
    """From ``since_ns`` up to, but without, ``until_ns``; ``name`` is the choice it came from."""

    name: str
    label: Text
    since_ns: int
    until_ns: int


PERIODS = {
    "today": Text("Today"),
    "week": Text("Last 7 days"),
    "month": Text("This month"),
    "last-month": Text("Last month"),
    "days": Text("Chosen days"),
}


def zone_of(name: str | None) -> tzinfo:
    """The IANA time zone a browser said it is in; UTC where it said nothing or nonsense."""
    if name is None or _ZONE.fullmatch(name) is None:
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC


def moment(time_ns: int) -> datetime:
    """The UTC second that holds a Unix time."""
    return _EPOCH + timedelta(seconds=time_ns // NS_PER_SECOND)


def nanoseconds(when: datetime) -> int:
    """Unix time of a moment, whole seconds."""
    return (when - _EPOCH) // timedelta(seconds=1) * NS_PER_SECOND


def start_of(text: str) -> int | None:
    """Unix time of a date and a time as a browser sends them, in UTC; None where nothing was typed. Raises FormError."""
    if not text.strip():
        return None
    try:
        when = datetime.fromisoformat(text.strip()).replace(tzinfo=UTC)
    except ValueError:
        raise FormError(
            Text("“%(typed)s” is not a date and a time, such as 2026-12-01T00:00.", typed=text.strip()[:32])
        ) from None
    if not YEAR_MIN <= when.year < YEAR_MAX:
        raise FormError(
            Text(
                "A price holds from a moment between %(first)s and %(last)s; %(typed)s is none.",
                first=YEAR_MIN,
                last=YEAR_MAX - 1,
                typed=when.date(),
            )
        )
    return (when - _EPOCH) // timedelta(microseconds=1) * 1000


def iso(time_ns: int) -> str:
    """The moment for ``<time datetime>``, to the millisecond."""
    return f"{moment(time_ns):%Y-%m-%dT%H:%M:%S}.{time_ns // 1_000_000 % 1000:03d}Z"


def today(now_ns: int, zone: tzinfo) -> Period:
    """The viewer's day."""
    day = moment(now_ns).astimezone(zone).date()
    return Period("today", PERIODS["today"], _midnight(day, zone), _midnight(day + timedelta(days=1), zone))


def month(text: str) -> Period:
    """The UTC month written ``YYYY-MM``. Raises FormError."""
    match = _MONTH.fullmatch(text)
    if match is None or not YEAR_MIN <= int(match[1]) <= YEAR_MAX:
        raise FormError(Text("“%(typed)s” is not a month. Write it as year and month, such as 2026-11.", typed=text[:20]))
    year, number = int(match[1]), int(match[2])
    first = datetime(year, number, 1, tzinfo=UTC)
    following = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)
    return Period(text, month_name(first.date()), nanoseconds(first), nanoseconds(following))


def month_of(now_ns: int) -> Period:
    """The UTC month that holds ``now_ns``."""
    return month(f"{moment(now_ns):%Y-%m}")


def recent_months(now_ns: int) -> list[Period]:
    """MONTHS_LISTED months, the current one first."""
    found = [month_of(now_ns)]
    while len(found) < MONTHS_LISTED:
        found.append(month_of(found[-1].since_ns - NS_PER_SECOND))
    return found


def period(name: str, first: str, last: str, now_ns: int, zone: tzinfo) -> Period:
    """A named choice of PERIODS, or the days ``first`` to ``last`` (both included). Raises FormError."""
    if name == "today":
        return today(now_ns, zone)
    if name == "week":
        day = today(now_ns, zone)
        start = moment(now_ns).astimezone(zone).date() - timedelta(days=6)
        return Period(name, PERIODS[name], _midnight(start, zone), day.until_ns)
    if name == "month":
        return _named(name, month_of(now_ns))
    if name == "last-month":
        return _named(name, month_of(month_of(now_ns).since_ns - NS_PER_SECOND))
    if name == "days":
        return _days(_date(first, Text("first day")), _date(last, Text("last day")), zone)
    raise FormError(Text("“%(typed)s” is not a period; choose one of %(known)s.", typed=name[:20], known=listed(PERIODS.values())))


def _named(name: str, found: Period) -> Period:
    return Period(name, found.label, found.since_ns, found.until_ns)


def _days(first: date, last: date, zone: tzinfo) -> Period:
    if last < first:
        raise FormError(Text("The last day, %(last)s, lies before the first, %(first)s. Exchange them.", last=last, first=first))
    return Period(
        "days", Text("%(first)s to %(last)s", first=first, last=last), _midnight(first, zone), _midnight(last + timedelta(days=1), zone)
    )


def _date(text: str, which: Text) -> date:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        raise FormError(Text("Choose the %(which)s; “%(typed)s” is not a date.", which=which, typed=text[:20])) from None
    if not YEAR_MIN < found.year < YEAR_MAX:
        raise FormError(
            Text(
                "The %(which)s must lie between %(first)s and %(last)s; %(typed)s does not.",
                which=which,
                first=YEAR_MIN + 1,
                last=YEAR_MAX - 1,
                typed=found,
            )
        )
    return found


def _midnight(day: date, zone: tzinfo) -> int:
    return nanoseconds(datetime(day.year, day.month, day.day, tzinfo=zone))
