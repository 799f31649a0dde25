"""How long those who wait wait yet, as the pool told it and as much time has passed since."""

from __future__ import annotations

from forebay_service.languages import Text

from forebay_dashboards.rows import Session
from forebay_dashboards.text.quantities import NS_PER_SECOND, format_duration, seconds_text


def left(session: Session, now_ns: int) -> Text | None:
    """By now, or that it takes longer than usual; None where nobody knows."""
    low, high, told_ns = session.estimate_low_seconds, session.estimate_high_seconds, session.estimated_at_ns
    if low is None or high is None or told_ns is None:
        return None
    passed_ns = max(0, now_ns - told_ns)
    least, most = (max(0, round(seconds * NS_PER_SECOND) - passed_ns) for seconds in (low, high))
    if most == 0:
        return _longer(session, passed_ns)
    if least < NS_PER_SECOND:
        return Text("up to %(time)s", time=_rough(most))
    return Text("%(low)s to %(high)s", low=_rough(least), high=_rough(most))


def _longer(session: Session, passed_ns: int) -> Text:
    if not session.running:
        return Text("longer than usual")
    ran_ns = round((session.running_seconds or 0) * NS_PER_SECOND) + passed_ns
    return Text("longer than usual; before it %(count)s run, since %(time)s", count=f"{session.running}", time=_rough(ran_ns))


def _rough(duration_ns: int) -> Text:
    """To the second: an estimate is no finer."""
    seconds = -(-duration_ns // NS_PER_SECOND)
    return seconds_text(f"{seconds}") if seconds < 60 else format_duration(seconds * NS_PER_SECOND)
