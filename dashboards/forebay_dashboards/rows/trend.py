"""What pool and billing answer of the time that lies behind, as typed rows: how devices were used, who held which, and revenue."""

from __future__ import annotations

from typing import Literal

from forebay_dashboards.rows.answers import Count, Currency, Row, Span

Over = Literal["day", "week", "month"]


class Trend(Row):
    """A stretch of time. Devices, requests and efficiency are means over it; waits are of leases that were granted in it."""

    start_ns: Count
    held: float
    idle: float
    free: float
    closed: float
    waiting: float
    waiting_max: Count
    grants: Count
    wait_p50_seconds: float | None = None
    wait_p95_seconds: float | None = None
    efficiency: float | None = None


class Trends(Row):
    """Oldest first; a stretch of which nothing is known is left out."""

    step_seconds: Count
    until_ns: Count
    rows: tuple[Trend, ...]


class RevenueHour(Row):
    """What usage was posted in an hour, less what was taken back."""

    hour_ns: Count
    currency: Currency
    amount_nano: int


class EnergyHour(Row):
    """What leases that began in an hour drew, None where no driver told; ``energy_duration_ns`` of ``duration_ns`` were told of."""

    hour_ns: Count
    energy_mj: Count | None = None
    energy_duration_ns: Count = 0
    duration_ns: Count = 0
    co2_mg: Count | None = None


class Holder(Row):
    """Whose lease it was, and for what."""

    lease: str
    tenant: str
    user: str
    flavor: str
    span: Span


class Stretch(Row):
    """``leases`` of them held the device for ``held_ns`` within the time; ``holder`` is told where it is one."""

    device: str
    lane: Count
    started_ns: Count
    ended_ns: Count
    held_ns: Count
    leases: Count
    is_open: bool
    holder: Holder | None = None


class Timeline(Row):
    """With ``more`` there was too much to read, and the oldest of it is not there."""

    since_ns: Count
    until_ns: Count
    more: bool
    stretches: tuple[Stretch, ...]
