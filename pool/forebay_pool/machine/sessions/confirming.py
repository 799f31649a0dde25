"""Until when workers have confirmed leases, written now and then."""

from __future__ import annotations

from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.model.instructions import Confirm
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Session

CONFIRM_SECONDS = 2.0
"""The period of these writes. A crash of the pool costs at most so much of a lease that ends with it."""


class Confirming:
    """Meters the segments that are over, and writes until when leases are confirmed, every ``CONFIRM_SECONDS``."""

    def __init__(self, step: Step, sessions: dict[str, Session], leases: Leases, parked: ParkedSessions) -> None:
        self._step = step
        self._sessions = sessions
        self._leases = leases
        self._parked = parked
        self._confirmed_ns = 0
        """When confirmations were written last."""

    def write(self) -> None:
        self._leases.end_long_replays()
        if self._step.now_ns - self._confirmed_ns < int(CONFIRM_SECONDS * SECOND):
            return
        since_ns, self._confirmed_ns = self._confirmed_ns, self._step.now_ns
        self._leases.meter_passed()
        self._parked.meter_passed()
        held = (session.lease for session in self._sessions.values())
        news = tuple(lease for lease in held if lease is not None and lease.confirmed_ns > max(since_ns, lease.opened_ns))
        if news:
            self._step.out.append(Confirm(news))
