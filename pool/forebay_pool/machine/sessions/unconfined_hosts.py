"""Hosts whose sandbox fails: they run no processes for a while."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.machine.sessions.rules import Rules
from forebay_pool.model.causes import Cause
from forebay_pool.model.instructions import Show
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import Worker
from forebay_pool.placement.fleet import Fleet


class UnconfinedHosts:
    """Sends processes elsewhere from a host that could not confine one, and has it tried again after ``process_retry_seconds``."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        limits: Limits,
        fleet: Fleet,
        parked: ParkedSessions,
        processes: WorkerProcesses,
        granting: Granting,
        rules: Rules,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._limits = limits
        self._fleet = fleet
        self._parked = parked
        self._processes = processes
        self._granting = granting
        self._rules = rules

    def unconfined(self, worker: Worker, message: wire.Unconfined) -> None:
        """The worker's session goes where a process is confined, or is refused if that is nowhere."""
        session = worker.session
        if session is None or worker.state != "assigning":
            return
        self._step.note("unconfined", worker=worker.id, device=worker.device.id, why=message.why)
        until_ns = self._step.now_ns + int(self._limits.process_retry_seconds * SECOND)
        for node in {seat.node.name: seat.node for seat in self._fleet.seats_under(worker)}.values():
            self._fleet.runtimes.fail_to_confine(worker, node, Cause("unconfined", why=message.why), until_ns)
            self._step.out.append(Show(node))
        self._parked.note_room(session)
        self._processes.dismiss(worker, drains_milli=0)
        self._rules.keep_to_runtimes()
        self._granting.show_and_settle(worker)

    def retry(self) -> None:
        """Hosts whose time is over may have a process again."""
        for node in self._fleet.runtimes.due(self._step.now_ns):
            self._fleet.runtimes.trust(node)
            self._step.note("process_retry", node=node.name)
            self._step.out.append(Show(node))
            self._worklist.whole_queue = True
