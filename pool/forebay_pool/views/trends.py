"""How devices are used over time: a sample every few seconds, written down each minute, and told as rows."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal

from typing_extensions import TypedDict  # pydantic reads typing's own from Python 3.12 on

from forebay_pool.errors import StoreUnavailable
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.trends import MINUTE_NS, REACHES, Over, Sample, Trend, wait_seconds
from forebay_pool.model.types import WHOLE_MILLI, Seat, Session
from forebay_pool.placement.room import residents
from forebay_pool.store.trends import TrendStore
from forebay_pool.store.writer import Writer
from forebay_pool.views.metrics import Metrics

SAMPLE_SECONDS = 10.0
UNWRITTEN_MAX = 60
"""Minutes that wait for a database that cannot be written; older ones are lost."""

log = logging.getLogger(__name__)
Use = Literal["held", "idle", "free", "closed"]


class TrendRow(TypedDict):
    """A stretch of time. Devices, requests and efficiency are means over it; waits are of leases that were granted in it."""

    start_ns: int
    held: float
    idle: float
    free: float
    closed: float
    waiting: float
    waiting_max: int
    grants: int
    wait_p50_seconds: float | None
    wait_p95_seconds: float | None
    """Off by 9 % at most."""
    efficiency: float | None
    """Devices that all users' flavors add up to, for each that leases hold; None where none was held."""


class TrendRows(TypedDict):
    """``rows`` oldest first; a stretch of which nothing is known, as while the pool stood still, is left out."""

    over: Over
    step_seconds: int
    until_ns: int
    rows: list[TrendRow]


def trend_rows(over: Over, trends: list[Trend], now_ns: int) -> TrendRows:
    """What ``GET api/trends`` answers."""
    return {"over": over, "step_seconds": REACHES[over].step_ns // 10**9, "until_ns": now_ns, "rows": [_row(trend) for trend in trends]}


def _row(trend: Trend) -> TrendRow:
    return {
        "start_ns": trend.start_ns,
        "held": trend.mean(trend.held),
        "idle": trend.mean(trend.idle),
        "free": trend.mean(trend.free),
        "closed": trend.mean(trend.closed),
        "waiting": trend.mean(trend.waiting),
        "waiting_max": trend.waiting_max,
        "grants": sum(trend.waits.values()),
        "wait_p50_seconds": wait_seconds(trend.waits, 0.5),
        "wait_p95_seconds": wait_seconds(trend.waits, 0.95),
        "efficiency": trend.efficiency,
    }


def use_of(seat: Seat) -> Use:
    """A lease comes first: a closed device whose lease goes on is held."""
    if seat.state in ("leased", "placing"):
        return "held"
    if not seat.is_open or seat.state != "free":
        return "closed"
    return "idle" if residents(seat) else "free"


def sample(machine: StateMachine) -> Sample:
    """The pool as it is now."""
    uses: Counter[Use] = Counter(use_of(seat) for seat in machine.fleet.seats.values())
    sessions = machine.sessions.values()
    return Sample(
        held=uses["held"],
        idle=uses["idle"],
        free=uses["free"],
        closed=uses["closed"],
        waiting=sum(session.request is not None for session in sessions),
        asked_milli=sum(_asked_milli(machine, session) for session in sessions),
        held_milli=sum(session.lease.held_milli for session in sessions if session.lease is not None),
    )


def _asked_milli(machine: StateMachine, session: Session) -> int:
    """What the session's flavor has of devices: of the model that it is on, else of the first that serves it."""
    flavor = machine.fleet.flavors.get(session.flavor)
    if flavor is None or not flavor.equivalents:
        return WHOLE_MILLI
    model = None if session.worker is None else session.worker.device.model
    one = next((one for one in flavor.equivalents if one.model == model), flavor.equivalents[0])
    return one.count * one.share_milli


class TrendRecorder:
    """Takes a sample every SAMPLE_SECONDS, and writes down each minute that is over."""

    def __init__(self, machine: StateMachine, metrics: Metrics, store: TrendStore, writer: Writer, unix_ns: Callable[[], int]) -> None:
        self._machine = machine
        self._metrics = metrics
        self._store = store
        self._writer = writer
        self._unix_ns = unix_ns
        self._minute: Trend | None = None
        self._over: list[Trend] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(SAMPLE_SECONDS)
            self.take()
            if self._over:
                await self._write()

    def take(self) -> None:
        """One sample."""
        now_ns = self._unix_ns()
        waits, self._metrics.waits = self._metrics.waits, Counter()
        start_ns = now_ns - now_ns % MINUTE_NS
        minute = self._minute
        if minute is not None and minute.start_ns != start_ns:
            self._over = [*self._over, minute][-UNWRITTEN_MAX:]
            minute = None
        self._minute = (minute or Trend(start_ns)).with_sample(sample(self._machine)).with_all(Trend(start_ns, waits=waits))

    async def _write(self) -> None:
        over, now_ns = self._over, self._unix_ns()
        written: Future[None] = self._writer.call(lambda: self._store.add(over, now_ns))
        try:
            await asyncio.wrap_future(written)
        except StoreUnavailable as error:
            log.warning("%d minutes of trends wait: %s", len(over), error, extra={"action": "trends_wait", "minutes": len(over)})
        else:
            self._over = []

    def close(self) -> Future[None] | None:
        """Writes what is there; what a successor adds to the same minute comes on top."""
        over = [*self._over, *([] if self._minute is None else [self._minute])]
        self._over, self._minute = [], None
        return self._writer.call(lambda: self._store.add(over, self._unix_ns())) if over else None
