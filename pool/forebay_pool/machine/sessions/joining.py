"""Sessions that join, and that leave."""

from __future__ import annotations

from collections.abc import Collection

from forebay_wire import messages as wire

from forebay_pool.errors import InvariantBroken
from forebay_pool.machine.base import refusals
from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.groups import Groups
from forebay_pool.machine.leasing.queue_positions import QueuePositions
from forebay_pool.machine.sessions.forks import Forks
from forebay_pool.machine.workers.ending import Ending
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import SessionDismissed, SessionJoined, SessionLeft, SessionOutside, SessionReplays, SessionRuns
from forebay_pool.model.limits import Limits
from forebay_pool.model.types import Session
from forebay_pool.placement.fleet import Fleet

SCARCE_PERCENT = 75
"""Beyond this part of the sessions, or of the places in the queue, only users who have few of them get more."""
FEW = 16


class Joining:
    """Takes on new sessions, and ends those that their clients or operators end."""

    def __init__(
        self,
        step: Step,
        admission: Admission,
        limits: Limits,
        sessions: dict[str, Session],
        fleet: Fleet,
        positions: QueuePositions,
        groups: Groups,
        ending: Ending,
        forks: Forks,
    ) -> None:
        self._step = step
        self._admission = admission
        self._limits = limits
        self._sessions = sessions
        self._fleet = fleet
        self._positions = positions
        self._groups = groups
        self._ending = ending
        self._forks = forks

    def session_joined(self, event: SessionJoined) -> None:
        refusal = self._refusal_of_session(event)
        if refusal is not None:
            self._step.send(event.session, refusal)
            return
        session = Session(
            id=event.session,
            secret=event.secret,
            tenant=event.tenant,
            user=event.user,
            process=event.process,
            flavor=event.flavor,
            priority=event.priority,
            since_unix_ns=self._step.unix_ns,
            used_ns=self._step.now_ns,
        )
        self._sessions[session.id] = session
        if event.group is not None:
            self._groups.join(session, event.group)
        if event.fork is None:
            self._positions.send_flavor(session)
            self._step.save(session)
        else:
            self._forks.begin(session, event.fork)
        self._step.show(session)

    def _refusal_of_session(self, event: SessionJoined) -> wire.Refused | None:
        """The refusal of a new session; None if it may join."""
        if event.session in self._sessions:
            raise InvariantBroken(f"session {event.session} joined twice")
        if self._admission.stopping:
            return refusals.shutting_down()
        if len(self._sessions) >= self._limits.sessions_max or is_left_to_others(event, self._sessions.values(), self._limits.sessions_max):
            return refusals.too_many_sessions(self._limits.sessions_max)
        flavor = self._fleet.flavors.get(event.flavor)
        if flavor is None:
            return refusals.unknown_flavor(event.flavor, self._fleet)
        why = self._fleet.why_not(flavor, event.tenant)
        return None if why is None else refusals.not_servable(Cause("choose_another", why))

    def session_replays(self, event: SessionReplays) -> None:
        session = self._sessions.get(event.session)
        if session is not None and not session.replay.possible:
            session.replay.possible = True
            self._step.save(session)

    def session_outside(self, event: SessionOutside) -> None:
        session = self._sessions.get(event.session)
        if session is not None:
            session.client.outside = True

    def session_runs(self, event: SessionRuns) -> None:
        session = self._sessions.get(event.session)
        if session is not None:
            session.client.runtime = "exec"

    def session_over(self, event: SessionLeft | SessionDismissed) -> None:
        session = self._sessions.get(event.session)
        if session is not None and isinstance(event, SessionDismissed):
            self._ending.end(session, event.reason, event.cause)
        elif session is not None:
            self._ending.end(session, "released", None)


def is_left_to_others(one: SessionJoined | Session, others: Collection[Session], most: int) -> bool:
    """True if most of the places are taken and this user has a few of them: the rest is left to other users."""
    if len(others) < most * SCARCE_PERCENT // 100:
        return False
    return sum(other.user == one.user and other.tenant == one.tenant for other in others) >= FEW
