"""What the usage records on disk tell of the time before a pool began.

Short segments are summed up by the slot of time that they ended in, so that a long history is read in few rows; long ones come one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, Select, func, select

from forebay_pool.model.history import History, Spent
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Quota
from forebay_pool.store.tables import SEGMENTS

HALF_LIVES = 20
"""Use so many half-lives ago counts for a millionth."""
SLOTS_PER_HALF_LIFE = 100
SLOTS_PER_WINDOW = 1_000

_ENDED = SEGMENTS.c.started_at_unix_ns + SEGMENTS.c.duration_ns


def read(connection: Connection, half_life_seconds: float, quotas: Iterable[tuple[str, str | None, Quota]], now_unix_ns: int) -> History:
    """The history by Unix time."""
    half_life_ns = int(half_life_seconds * SECOND)
    shares = _spent(connection, HALF_LIVES * half_life_ns, max(1, half_life_ns // SLOTS_PER_HALF_LIFE), now_unix_ns)
    windows = {}
    for tenant, user, quota in quotas:
        if quota.window_seconds is not None:
            length_ns = quota.window_seconds * SECOND
            of_whom = {"tenant": tenant} if user is None else {"tenant": tenant, "user": user}
            windows[tenant, user] = tuple(_spent(connection, length_ns, length_ns // SLOTS_PER_WINDOW, now_unix_ns, **of_whom))
    return History(tuple(shares), windows)


def _spent(connection: Connection, reach_ns: int, slot_ns: int, now_ns: int, **of_whom: str) -> Iterator[Spent]:
    """What was used within ``reach_ns``, in no order. Only what lies within it is told of a segment that began before."""
    since_ns = now_ns - reach_ns
    whose = (SEGMENTS.c.tenant, SEGMENTS.c.user, SEGMENTS.c.devices, SEGMENTS.c.share_milli)

    def those(*columns: Any) -> Select[Any]:
        found = select(*whose, *columns).where(_ENDED > since_ns, SEGMENTS.c.parked_bytes.is_(None))
        return found.where(*(SEGMENTS.c[name] == value for name, value in of_whom.items()))

    slot = (_ENDED // slot_ns).label("slot")
    short = those(slot, func.sum(SEGMENTS.c.duration_ns).label("total_ns")).where(SEGMENTS.c.duration_ns <= slot_ns)
    for row in connection.execute(short.group_by(*whose, slot)):
        end_ns = min(now_ns, (int(row.slot) + 1) * slot_ns)
        yield Spent(row.tenant, row.user, end_ns, end_ns, amount=int(row.total_ns) * row.devices * row.share_milli)
    long = those(SEGMENTS.c.started_at_unix_ns, _ENDED.label("ended_ns")).where(SEGMENTS.c.duration_ns > slot_ns)
    for row in connection.execute(long):
        start_ns = max(since_ns, row.started_at_unix_ns)
        yield Spent(row.tenant, row.user, start_ns, min(now_ns, row.ended_ns), milli=row.devices * row.share_milli)
