"""Clients and workers whose links broke: how long they are waited for."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.groups import Groups
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.workers.ending import Ending
from forebay_pool.machine.workers.failing import Failing
from forebay_pool.machine.workers.liveness import extend_deadlines
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import SessionAway, WorkerAway
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.records import QueuePlace
from forebay_pool.model.types import Session, Worker
from forebay_pool.placement.fleet import Fleet

GATHER_SECONDS = 2.0
"""A pool that starts waits for so long for sessions that were in the queue, before it grants leases to others."""


CUT_OFF_SECONDS = 5.0
"""A client that neither the pool nor its worker has a connection to is waited for so long: its process has most likely ended."""


class Absence:
    """Waits for clients and workers without a link, and gives them up in time."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        admission: Admission,
        limits: Limits,
        sessions: dict[str, Session],
        fleet: Fleet,
        leases: Leases,
        parked: ParkedSessions,
        granting: Granting,
        groups: Groups,
        ending: Ending,
        failing: Failing,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._admission = admission
        self._limits = limits
        self._sessions = sessions
        self._fleet = fleet
        self._leases = leases
        self._parked = parked
        self._granting = granting
        self._groups = groups
        self._ending = ending
        self._failing = failing
        self.away: dict[str, Session] = {}
        """At least the sessions whose clients are waited for. Those that ended or came back meanwhile leave at the next tick."""
        self._cut: dict[str, int] = {}
        """At least the workers that have lost the connection to their session's client and wait for it, and since when."""

    def session_away(self, event: SessionAway) -> None:
        session = self._sessions.get(event.session)
        if session is None:
            return
        if not self._limits.resume_seconds:
            self._ending.end(session, "released", None)
            return
        session.away_ns, session.stalled = self._step.now_ns, event.stalled
        self.away[session.id] = session
        request = session.request
        if request is not None and (request.number or event.stalled):
            session.waited = QueuePlace(request.number, request.arrived_unix_ns, request.order)
            self._granting.drop(session, None)
        if not event.stalled:
            self._let_go_if_cut_off(session)
        elif session.worker is None:
            return
        elif session.lease is not None:
            self._leases.give_back(session.lease)
        elif session.worker.opened:
            self._parked.park(session.worker)

    def client_cut(self, worker: Worker, message: wire.ClientCut) -> None:
        self.note_cut(worker, not message.back)
        if worker.session is not None:
            self._let_go_if_cut_off(worker.session)

    def note_cut(self, worker: Worker, is_cut: bool) -> None:
        """Whether the worker waits for its session's client, as it says."""
        if is_cut:
            self._cut.setdefault(worker.id, self._step.now_ns)
        else:
            self._cut.pop(worker.id, None)

    def _cut_off_ns(self, session: Session) -> int | None:
        """Since when the session's client has been connected neither to the pool nor to its worker."""
        cut_ns = None if session.worker is None else self._cut.get(session.worker.id)
        return None if cut_ns is None or session.away_ns is None else max(cut_ns, session.away_ns)

    def _let_go_if_cut_off(self, session: Session) -> None:
        """Nobody waits for what is computed: the lease is given back, and the session ends soon."""
        if self._cut_off_ns(session) is not None and session.lease is not None:
            self._leases.give_back(session.lease)

    def worker_away(self, event: WorkerAway) -> None:
        worker = self._fleet.workers.get(event.worker)
        if worker is None or worker.state == "ending":
            return
        if self._limits.resume_seconds:
            worker.away_ns = self._step.now_ns
        else:
            self._failing.fail(worker, "its link to the pool ended")

    def _patience_seconds(self, sleeps: bool) -> float:
        """``sleeps``: its link fell silent, and was not closed as that of a process is which has ended."""
        seconds = self._limits.resume_seconds
        return max(seconds, self._limits.outside_resume_seconds) if sleeps else seconds

    def give_up(self) -> None:
        """Ends the sessions whose clients did not come back in time."""
        cut_until_ns = self._step.now_ns - int(min(CUT_OFF_SECONDS, self._limits.resume_seconds) * SECOND)
        for session in list(self.away.values()):
            sleeps = session.client.outside and session.stalled
            if session.away_ns is None or self._sessions.get(session.id) is not session:
                del self.away[session.id]
            elif session.away_ns < self._step.now_ns - int(self._patience_seconds(sleeps) * SECOND):
                self._step.note("session_absent", session=session.id, tenant=session.tenant)
                self._ending.end(session, "released", None)
            elif not sleeps and (self._cut_off_ns(session) or cut_until_ns) < cut_until_ns:
                self._ending.end(session, "released", Cause("connection_ended"))
        for worker in self._cut.keys() - self._fleet.workers.keys():
            del self._cut[worker]

    def extend_deadlines(self, missed_ns: int) -> None:
        """The pool stood still for so long: all deadlines move by as much."""
        for worker in self._fleet.workers.values():
            extend_deadlines(worker, missed_ns, self._step.now_ns)
        self._cut = {worker: min(self._step.now_ns, since_ns + missed_ns) for worker, since_ns in self._cut.items()}
        for session in self.away.values():
            if session.away_ns is not None:
                session.away_ns = min(self._step.now_ns, session.away_ns + missed_ns)
        for group in self._groups.by_name.values():
            if group.until_ns is not None:
                group.until_ns += missed_ns
        for lease in self._leases.revoked.values():
            lease.revoke_ns += missed_ns
        self._admission.awaited_until_ns += missed_ns
        self._step.note("pool_stood_still", seconds=f"{missed_ns / SECOND:.1f}")

    def end_awaiting(self) -> None:
        """Lets leases open again once the sessions that waited before have asked again, or have had time to."""
        for session in list(self._admission.awaited.values()):
            if self._sessions.get(session.id) is not session or self._step.now_ns >= self._admission.awaited_until_ns:
                del self._admission.awaited[session.id]
                self._worklist.whole_queue = True
