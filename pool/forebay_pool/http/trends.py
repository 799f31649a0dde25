"""How devices were used over time, and who held which when."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from forebay_service.errors import Invalid
from forebay_service.identity import OPERATE, SERVICE
from pydantic import BaseModel, ConfigDict, Field

from forebay_pool.http.handler import Api
from forebay_pool.model.timeline import stretches
from forebay_pool.model.trends import DAY_NS, Over
from forebay_pool.store import timeline
from forebay_pool.store.trends import TrendStore
from forebay_pool.views.timeline import Timeline, open_holdings, stretch_row
from forebay_pool.views.trends import trend_rows

DEVICES_ASKED_MAX = 64
DEVICES_CHARACTERS_MAX = 8_000
SHOWN_NS_MAX = 31 * DAY_NS
SHOWN_NS_MIN = 10**6
_Moment = Annotated[int, Field(ge=0, lt=2**62)]


class TrendQuery(BaseModel):
    """What ``GET api/trends`` may be asked."""

    model_config = ConfigDict(extra="forbid")

    over: Over = "day"


class TimelineQuery(BaseModel):
    """Of which devices, by id with commas between them, and from when to when, as Unix time."""

    model_config = ConfigDict(extra="forbid")

    devices: Annotated[str, Field(max_length=DEVICES_CHARACTERS_MAX)]
    since_ns: _Moment
    until_ns: _Moment


class Trends(Api):
    """``GET api/trends``."""

    async def get(self) -> None:
        await self.bearer(SERVICE, OPERATE)
        over, now_ns = self.query(TrendQuery).over, time.time_ns()
        found = await asyncio.to_thread(TrendStore(self.context.store).over, over, now_ns)
        self.write_json(trend_rows(over, found, now_ns))


class DeviceTimeline(Api):
    """``GET api/timeline``."""

    async def get(self) -> None:
        await self.bearer(SERVICE, OPERATE)
        asked = self.query(TimelineQuery)
        devices = frozenset(asked.devices.split(",")) - {""}
        if len(devices) > DEVICES_ASKED_MAX:
            raise Invalid(f"devices: at most {DEVICES_ASKED_MAX} at once; {len(devices)} were asked for.")
        if not SHOWN_NS_MIN <= asked.until_ns - asked.since_ns <= SHOWN_NS_MAX:
            raise Invalid("until_ns: it comes after since_ns by a millisecond at least and 31 days at most.")
        now, leases = open_holdings(self.shell.machine.sessions.values(), devices, time.time_ns())
        kept = await asyncio.to_thread(timeline.holdings, self.context.store, sorted(devices), asked.since_ns, asked.until_ns)
        drawn = stretches([*kept, *now], asked.since_ns, asked.until_ns)
        single = [stretch.last.segment for stretch in drawn if stretch.leases == 1 and stretch.last.segment is not None]
        segments = await asyncio.to_thread(timeline.segments, self.context.store, single)
        rows = [stretch_row(stretch, segments, leases) for stretch in drawn]
        more = len(kept) == timeline.HOLDINGS_MAX
        self.write_json(Timeline(since_ns=asked.since_ns, until_ns=asked.until_ns, more=more, stretches=rows))
