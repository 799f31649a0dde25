"""How long those who wait wait yet, as the pool told it and as much time has passed since."""

from __future__ import annotations

from forebay_service.languages import Text, wait_of

from forebay_dashboards.rows.pool import Session
from forebay_dashboards.text.quantities import NS_PER_SECOND, format_duration, seconds_text


def left(session: Session, now_ns: int) -> Text | None:
    """By now, or that it takes longer than usual; None where nobody knows."""
    high, told_ns = session.estimate_high_seconds, session.estimated_at_ns
    if high is None or told_ns is None:
        return None
    passed_ns = max(0, now_ns - told_ns)
    most_ns = max(0, round(high * NS_PER_SECOND) - passed_ns)
    return wait_of(most_ns / NS_PER_SECOND) if most_ns else _longer(session, passed_ns)


def _longer(session: Session, passed_ns: int) -> Text:
    if not session.running:
        return Text("longer than usual")
    ran_ns = round((session.running_seconds or 0) * NS_PER_SECOND) + passed_ns
    ran = _whole(ran_ns // NS_PER_SECOND)
    return Text("longer than usual; before it %(count)s run, since %(time)s", count=f"{session.running}", time=ran)


def _whole(seconds: int) -> Text:
    return seconds_text(f"{seconds}") if seconds < 60 else format_duration(seconds * NS_PER_SECOND)
