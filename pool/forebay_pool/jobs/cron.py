"""When a schedule comes due. Pure.

Fields and daylight-saving time are as Debian's cron has them: https://manpages.debian.org/stable/cron/crontab.5.en.html
"""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from forebay_pool.errors import ScheduleUnreadable

FIELDS = 5
"""Minute, hour, day of month, month, day of week; cronsim would take a sixth, of seconds."""
_NS = 10**9


def next_time(cron: str, zone: str, after_ns: int) -> int:
    """The first time after this one, both as Unix time in nanoseconds. Raises ScheduleUnreadable."""
    if len(cron.split()) != FIELDS:
        fields = "five fields, as in '30 2 * * 1-5' (minute, hour, day, month, weekday)"
        raise ScheduleUnreadable(f"{cron!r} is no cron expression: it has {fields}.")
    try:
        after = datetime.fromtimestamp(after_ns // _NS, UTC).astimezone(ZoneInfo(zone))
        found = next(CronSim(cron, after), None)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ScheduleUnreadable(f"{zone!r} is no time zone; give a name as Asia/Seoul or UTC.") from None
    except CronSimError as error:
        raise ScheduleUnreadable(f"{cron!r} is no cron expression: {error}.") from None
    if found is None:
        raise ScheduleUnreadable(f"{cron!r} never comes due.")
    return int(found.timestamp()) * _NS
