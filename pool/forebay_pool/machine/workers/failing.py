"""Workers that fail, or are gone."""

from __future__ import annotations

from forebay_pool.machine.base import refusals
from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.messages import worker_lost
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.machine.workers.draining import Draining
from forebay_pool.machine.workers.ending import Ending
from forebay_pool.machine.workers.replays import Replays
from forebay_pool.model.causes import Cause
from forebay_pool.model.events import WorkerGone, WorkerUnlinked
from forebay_pool.model.instructions import Kill
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Lease, Loss, Request, Session, Worker
from forebay_pool.placement.choice import in_want, spares_for
from forebay_pool.placement.fleet import Fleet

RETRY_SECONDS_MAX = 60
"""The longest pause between attempts to start a worker on a device where workers die."""
FAULTS = ("SIGSEGV", "SIGBUS", "SIGILL", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
"""Signals of a process's own faults. The pool, and a host that is short of memory, send SIGKILL instead."""
REPLAYS_MAX = 2
"""A session is lost after so many workers in a row that died while they did its work again: its own calls kill them."""
LIES_MAX = 3
"""A device is closed after so many workers in a row that exceeded their memory."""


class Failing:
    """Separates workers from their sessions when they fail or are gone."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        admission: Admission,
        limits: Limits,
        fleet: Fleet,
        leases: Leases,
        parked: ParkedSessions,
        processes: WorkerProcesses,
        granting: Granting,
        draining: Draining,
        ending: Ending,
        replays: Replays,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._admission = admission
        self._limits = limits
        self._fleet = fleet
        self._leases = leases
        self._parked = parked
        self._processes = processes
        self._granting = granting
        self._draining = draining
        self._ending = ending
        self._replays = replays

    def worker_unlinked(self, event: WorkerUnlinked) -> None:
        worker = self._fleet.workers.get(event.worker)
        if worker is not None and worker.state != "ending":
            self.fail(worker, event.cause)

    def worker_gone(self, event: WorkerGone) -> None:
        worker = self._fleet.workers.get(event.worker)
        if worker is None:
            return
        if worker.state != "ending":
            self._step.note("worker_failed", worker=worker.id, device=worker.device.id, cause=event.cause)
            crashed, session = self._crashed(worker, event.cause), worker.session
            self._part(worker, event.cause, drains=False, by_program=crashed)
            self._count_crash(session if crashed else None)
        if not self._processes.has_room:
            self._worklist.review(self._fleet.makes, gone=True)
        self._fleet.remove(worker)
        self._granting.show_and_settle(worker)

    def _crashed(self, worker: Worker, cause: str) -> bool:
        """True if the process ended by a fault of its own within a lease. Within a lease it carries out its session's calls alone."""
        session = worker.session
        lease = None if session is None else session.lease
        if session is None or lease is None or not (isinstance(cause, Cause) and cause.code == "killed"):
            return False
        crashed = cause.values["signal"] in FAULTS
        if crashed:
            whose = {"session": session.id, "tenant": session.tenant, "user": session.user}
            self._step.note("worker_crashed", worker=worker.id, lease=lease.id, signal=str(cause.values["signal"]), **whose)
        return crashed

    def _count_crash(self, session: Session | None) -> None:
        """A call of the session ended its worker. After some of them its user waits before the next worker."""
        wait = None if session is None else self._granting.count_crash(session)
        if session is None or wait is None:
            return
        whose = {"session": session.id, "tenant": session.tenant, "user": session.user}
        self._step.note("crashes_wait", count=wait.crashes, seconds=wait.seconds, **whose)

    def fail(self, worker: Worker, cause: str, by_program: bool = False) -> None:
        """The worker is given up and killed. Its device is not leased again before the process is gone.

        ``by_program``: its program computes for too long, which is no failure of the pool. The lease is billed.
        """
        session = worker.session
        held = session is not None and session.lease is not None
        self._step.note("worker_failed", worker=worker.id, device=worker.device.id, cause=cause)
        self._part(worker, cause, drains=held, by_program=by_program)
        self._step.out.append(Kill(worker.id))
        self._granting.show_and_settle(worker)

    def _part(self, worker: Worker, cause: str, drains: bool, by_program: bool = False) -> None:
        """Separates a dead worker from its session. The session is lost if it ever had a lease; otherwise it tries another worker."""
        session, seat, kept = worker.session, self._fleet.seats[worker.device.id], worker.keeps
        lease = None if session is None else session.lease
        if lease is not None:
            until_ns = lease.confirmed_ns if worker.away_ns is None else max(lease.confirmed_ns, worker.away_ns)
            self._leases.close(lease, lease.ending if by_program else "failed", until_ns)
        opened, carried = worker.opened, worker.carries is not None
        for of_session in (session, kept):
            if of_session is not None:
                self._parked.note_room(of_session)
        self._fleet.retire(worker, lease.place.share_milli if lease is not None and drains else 0)
        if not opened:
            self._fleet.found_dead(seat, seat.failures + 1)
            pause_seconds = min(RETRY_SECONDS_MAX, 2 ** min(seat.failures - 1, 10))
            seat.retry_ns = self._step.now_ns + pause_seconds * SECOND
        if kept is not None and kept.worker is not None and kept.worker.state == "bound":
            kept.worker.opened = True  # it has the tensors
            self._step.touch(kept)
            self._step.save(kept)
        elif kept is not None:
            self._lose_holder(kept, Cause("worker_gone", cause, device=worker.device.id))
        elif session is None and not carried:
            wanting = in_want(seat, worker.devices)
            request = wanting[-1].request if len(wanting) > len(spares_for(seat, worker.devices)) else None
            if request is not None:
                self._retry(request, cause)
        elif session is None:
            return  # its session's tensors are still where they were
        elif opened and session.image is not None and lease is not None and not self._admission.stopping:
            self._refetch(session, lease, cause)
        elif opened and not by_program and self._can_replay(session, lease):
            self._replay_or_lose(session, lease, _loss_of(worker, session, cause, self._tries(session, lease)))
        elif opened:
            self._ending.lose(session, Cause("worker_gone", cause, device=worker.device.id))
        elif session.request is not None:
            self._retry(session.request, cause)

    def _lose_holder(self, session: Session, cause: Cause) -> None:
        """The worker is gone that alone had the tensors of a session. Another one reads them from the session's image, if there is one."""
        if session.worker is not None:
            self._processes.dismiss(session.worker, drains_milli=0)
        if not session.stored or self._admission.stopping or self._replays.why_never(session, None) is not None:
            self._ending.lose(session, cause)
            return
        self._parked.drop(session)
        self._replays.add(session)
        self._step.note("session_stored", session=session.id, tenant=session.tenant, cause=cause)
        if session.request is not None:
            self._granting.place_again(session.request)
        self._step.touch(session)
        self._step.save(session)

    def _can_replay(self, session: Session, lease: Lease | None) -> bool:
        """True if its client, and those of its group, can have other workers do what theirs did, and that did not take too long. ``lease``
        died with it."""
        group = session.group
        together = [session] if group is None else group.computed
        if self._admission.stopping or (group is not None and group.is_broken) or not all(map(self._has_short_replay, together)):
            return False
        return self._tries(session, lease) < REPLAYS_MAX

    def _tries(self, session: Session, lease: Lease | None) -> int:
        """How many workers in a row died while they did the session's work again. ``lease`` died with the last of its workers."""
        loss = session.replay.loss
        if loss is None or not loss.undone:
            return 0
        return loss.tries + (lease is not None and lease.replays)

    def _has_short_replay(self, session: Session) -> bool:
        lease = session.lease
        replay, image = session.replay, session.replay.image
        node = None if image is None else self._fleet.nodes.get(image.node or "")
        gone = (node is not None and node.lost is not None) or (session.left and image is None)
        begun_ns = 0 if lease is None else max(lease.opened_ns, 0 if image is None else image.at_ns)
        open_ns = 0 if lease is None or lease.replays else max(0, self._step.now_ns - begun_ns)
        return replay.possible and not gone and replay.worked_ns + open_ns <= int(self._limits.replay_seconds_max * SECOND)

    def _replay_or_lose(self, session: Session, lease: Lease | None, loss: Loss) -> None:
        """The session goes on at another worker, if there is a device for it."""
        why = self._replays.why_never(session, loss)
        if why is None:
            self._replay(session, lease, loss)
        else:
            self._ending.lose(session, Cause("worker_gone", loss.cause, why))

    def _replay(self, session: Session, lease: Lease | None, loss: Loss) -> None:
        """The session goes on at another worker, and each member of its group does: they carry out their collectives again, in order."""
        self._go_on(session, lease, loss)
        group = session.group
        if group is None:
            return
        group.meeting = max(group.meeting + 1, self._step.unix_ns)
        for other in group.computed:
            if other is not session:
                self._break_off(other, loss)
        self._worklist.groups[group] = None

    def _break_off(self, session: Session, loss: Loss) -> None:
        """What the session's worker did is done again at another one, although it lives. Its lease is free, as that of the dead one, which
        ``loss`` names."""
        worker, lease = session.worker, session.lease
        if worker is None or not worker.opened:
            return  # nothing has been done again yet
        if lease is not None:
            self._leases.close(lease, "failed", lease.confirmed_ns)
        self._processes.dismiss(worker, drains_milli=0 if lease is None else lease.place.share_milli)
        self._go_on(session, lease, _loss_of(worker, session, loss.cause, loss.tries))
        self._granting.show_and_settle(worker)

    def _go_on(self, session: Session, lease: Lease | None, loss: Loss) -> None:
        """The session goes on at another worker: at once if ``lease`` was open, or another member of its group asks."""
        session.replay.loss = loss
        self._replays.add(session)
        self._parked.drop(session)
        self._step.send(session.id, worker_lost(loss))
        self._step.note("session_replayed", session=session.id, tenant=session.tenant, cause=loss.cause)
        if session.request is not None:
            self._granting.place_again(session.request)
        elif lease is not None and not session.stalled:
            self._granting.request(session, 0, lease.span, lease.priority, lease.order)
        else:
            session.due = session.group is not None
        self._step.touch(session)
        self._step.save(session)

    def _refetch(self, session: Session, lease: Lease, cause: str) -> None:
        """The worker died before its client used it. Another one fetches the tensors, which are still where they were."""
        if lease.attempts + 1 >= self._limits.worker_attempts_max:
            self._ending.end(session, "failed", Cause("workers_died_moving", cause, attempts=lease.attempts + 1))
            return
        self._granting.request(session, lease.number, lease.span, lease.priority, lease.order)
        if session.request is not None:
            session.request.attempts = lease.attempts + 1
        self._step.save(session)

    def _retry(self, request: Request, cause: str) -> None:
        """A worker died before the grant. Another one is tried, a bounded number of times; the user pays nothing for it."""
        request.attempts += 1
        if request.attempts < self._limits.worker_attempts_max:
            self._granting.place_again(request)
            return
        self._granting.drop(request.session, refusals.workers_die(request.number, request.attempts, cause))

    def exceeds_call_time(self, worker: Worker, operator: str, seconds: float) -> bool:
        """Fails the worker if one call runs for too long, since nothing interrupts a call. True if it did."""
        if seconds <= self._limits.call_seconds_max:
            return False
        session = worker.session
        cause = Cause("endless_call", operator=operator, seconds=f"{self._limits.call_seconds_max:g}")
        self.fail(worker, cause, by_program=True)
        self._count_crash(session)
        return True

    def exceeds_memory(self, worker: Worker, memory_bytes: int) -> bool:
        """Fails the worker if it reports more memory than was reserved for it: it cannot be trusted. True if it did."""
        if not worker.reserved_bytes or memory_bytes <= worker.reserved_bytes:
            return False
        seat = self._fleet.seats[worker.device.id]
        seat.lies += 1
        if seat.lies >= LIES_MAX:
            self._draining.cordon(seat, Cause("workers_over_memory", count=seat.lies), drains=False, lasting=True)
        self.fail(worker, Cause("over_its_memory", held=str(memory_bytes), most=str(worker.reserved_bytes)))
        return True


def _loss_of(worker: Worker, session: Session, cause: str, tries: int) -> Loss:
    return Loss(worker.id, session.epoch, cause, worker.device.model, len(worker.devices), tries=tries)
