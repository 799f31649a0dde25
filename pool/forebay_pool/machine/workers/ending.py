"""Sessions that end, or are lost with their worker."""

from __future__ import annotations

from forebay_pool.machine.base.messages import lost
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.groups import Groups
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.model.causes import Cause
from forebay_pool.model.types import CloseReason, Session, SessionState


class Ending:
    """Ends sessions, with their leases, requests and workers."""

    def __init__(
        self,
        step: Step,
        sessions: dict[str, Session],
        leases: Leases,
        parked: ParkedSessions,
        processes: WorkerProcesses,
        granting: Granting,
        groups: Groups,
    ) -> None:
        self._step = step
        self._sessions = sessions
        self._leases = leases
        self._parked = parked
        self._processes = processes
        self._granting = granting
        self._groups = groups

    def _remove(self, session: Session, state: SessionState) -> None:
        """Removes the session from all lists."""
        del self._sessions[session.id]
        self._processes.drop_carrier(session)
        self._groups.leave(session)
        self._step.set_state(session, state)
        self._step.save(session)
        group = session.group
        if session.replay.due and group is not None:
            for other in group.computed:
                if other.replay.due and other.id in self._sessions:
                    self.end(other, "failed", Cause("worker_gone", "another process of its group could not go on"))

    def lose(self, session: Session, cause: Cause) -> None:
        """The session is lost: its tensors are gone with its worker."""
        self._granting.forget(session)
        self._step.send(session.id, lost(cause))
        self._step.note("session_lost", session=session.id, tenant=session.tenant, cause=cause)
        self._remove(session, "lost")

    def end(self, session: Session, reason: CloseReason, cause: str | None) -> None:
        """Ends the session. Its open lease is billed until now, or until it was last confirmed if its worker has no link. Its device waits
        for the worker to exit."""
        lease, worker = session.lease, session.worker
        if lease is not None:
            until_ns = self._step.now_ns if worker is None or worker.away_ns is None else lease.confirmed_ns
            self._leases.close(lease, lease.ending if lease.state == "closing" else reason, until_ns)
        if reason == "failed":
            self._parked.drop(session)
        self._granting.forget(session)
        self._parked.note_room(session)
        for holder in (worker, session.image):
            if holder is not None and holder.state != "ending":
                self._processes.dismiss(holder, lease.place.share_milli if lease is not None and holder is worker else 0)
        if cause is not None:
            self._step.send(session.id, lost(cause))
        self._remove(session, "ended")
        if worker is not None:
            self._granting.show_and_settle(worker)

    def end_overfull(self) -> None:
        """Ends sessions whose room is needed and that may not be parked."""
        overfull, self._parked.overfull = self._parked.overfull, {}
        for name, cause in overfull.items():
            session = self._sessions.get(name)
            if session is not None and session.lease is None:
                self.end(session, "released", cause)
