"""Workers that fall silent, are late, or are not back in time."""

from __future__ import annotations

from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.workers.failing import Failing
from forebay_pool.model.causes import Cause
from forebay_pool.model.instructions import Kill
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Worker
from forebay_pool.placement.fleet import Fleet, computes_on, lateness
from forebay_pool.queue.queue import Queue

SILENCE_HEARTBEATS = 3
"""A worker that is silent for so many heartbeats hangs. One that has a session's tensors may recover, and is waited for."""
UNASSIGNED_HEARTBEAT_SECONDS = 5.0
"""The period of a worker's heartbeats before it has been told one."""


class Liveness:
    """Fails workers that are silent or late, and kills those that do not end."""

    def __init__(self, step: Step, limits: Limits, fleet: Fleet, queue: Queue, granting: Granting, failing: Failing) -> None:
        self._step = step
        self._limits = limits
        self._fleet = fleet
        self._queue = queue
        self._granting = granting
        self._failing = failing

    def hangs(self, worker: Worker) -> bool:
        """True if the worker fell silent, whether or not it has a link. Other workers that are away have lost their link alone."""
        return worker.away_ns is not None and worker.away_ns - worker.seen_ns > self._silence_ns(worker)

    def _silence_ns(self, worker: Worker) -> int:
        """A worker that has been silent for longer than this hangs."""
        own_period = worker.state in ("bound", "left")
        beat_seconds = self._limits.heartbeat_seconds
        return int(SILENCE_HEARTBEATS * (beat_seconds if own_period else max(beat_seconds, UNASSIGNED_HEARTBEAT_SECONDS)) * SECOND)

    def recovers(self, worker: Worker) -> None:
        """A worker that hung is heard again. Messages to it waited in its link, so it goes on with them."""
        silent_ns = self._step.now_ns - worker.seen_ns
        extend_deadlines(worker, silent_ns, self._step.now_ns)
        worker.away_ns = None
        for own in (worker.session, worker.keeps, worker.carries):
            if own is not None:
                self._step.show(own)  # bytes that it holds off its device are metered from now on at the latest
        self._step.note("worker_heard_again", worker=worker.id, node=worker.device.node, seconds=f"{silent_ns / SECOND:.0f}")
        self._granting.show_and_settle(worker)

    def check(self) -> None:
        """Fails workers that are silent or late, and kills dismissed workers that do not exit."""
        soon_ns = int(SILENCE_HEARTBEATS * self._limits.heartbeat_seconds * SECOND)
        for worker in list(self._fleet.workers.values()):
            quiet_ns = self._step.now_ns - worker.seen_ns
            if quiet_ns <= soon_ns and worker.deadline_ns is worker.away_ns is worker.leave_by_ns is None:
                continue  # nearly all workers end here
            silent = worker.state != "starting" and quiet_ns > self._silence_ns(worker)
            late = worker.deadline_ns is not None and self._step.now_ns > worker.deadline_ns
            if worker.state == "ending":
                if late:
                    worker.deadline_ns = None
                    self._step.out.append(Kill(worker.id))
            elif worker.away_ns is not None:
                self._check_absent(worker, worker.away_ns, self.hangs(worker))
            elif not silent and worker.session is not None and worker.leave_by_ns is not None and self._step.now_ns > worker.leave_by_ns:
                self._step.note("session_stays", session=worker.session.id, tenant=worker.session.tenant, worker=worker.id)
                self._granting.stay(worker, worker.session)
            elif silent:
                self._falls_silent(worker)
            elif late:
                self._failing.fail(worker, lateness(worker, self._limits), by_program=computes_on(worker))

    def _falls_silent(self, worker: Worker) -> None:
        """The worker or its host hangs. If it has a session's tensors it is waited for; otherwise another worker takes its place."""
        self._step.note("worker_silent", worker=worker.id, node=worker.device.node)
        if worker.keeps is not None or (worker.session is not None and worker.opened):
            worker.away_ns = self._step.now_ns
            self._granting.show_and_settle(worker)
        else:
            self._failing.fail(worker, Cause("silent", heartbeats=SILENCE_HEARTBEATS))

    def _check_absent(self, worker: Worker, away_ns: int, hangs: bool) -> None:
        """Gives the worker up in time. A worker that hangs is waited for as long as one call may run, unless requests wait."""
        patience_seconds = self._limits.resume_seconds
        if hangs and not self._queue.waiting:
            patience_seconds = max(patience_seconds, self._limits.call_seconds_max)
        if self._step.now_ns - away_ns <= int(patience_seconds * SECOND):
            return
        if hangs:
            beats = (self._step.now_ns - worker.seen_ns) // int(self._limits.heartbeat_seconds * SECOND)
            self._failing.fail(worker, Cause("silent", heartbeats=beats))
        else:
            self._failing.fail(worker, Cause("not_back", seconds=f"{patience_seconds:g}"))


def extend_deadlines(worker: Worker, missed_ns: int, now_ns: int) -> None:
    """Moves all of the worker's deadlines by the time that was missed."""
    worker.seen_ns = min(now_ns, worker.seen_ns + missed_ns)
    worker.away_ns = None if worker.away_ns is None else min(now_ns, worker.away_ns + missed_ns)
    worker.deadline_ns = None if worker.deadline_ns is None else worker.deadline_ns + missed_ns
    worker.leave_by_ns = None if worker.leave_by_ns is None else worker.leave_by_ns + missed_ns
