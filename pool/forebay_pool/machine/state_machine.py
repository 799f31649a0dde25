"""The pool's brain: events in, instructions out; no I/O, no clock, no chance."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from forebay_wire import messages as wire

from forebay_pool.errors import InvariantBroken
from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.messages import END
from forebay_pool.machine.base.refusals import no_session
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.story import Story
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.scheduler import Scheduler
from forebay_pool.machine.operations import Operations
from forebay_pool.machine.outlooks import Outlooks
from forebay_pool.machine.scaling import Scaling
from forebay_pool.machine.sessions.absence import Absence
from forebay_pool.machine.sessions.client_returns import ClientReturns
from forebay_pool.machine.sessions.clients import Clients
from forebay_pool.machine.sessions.confirming import Confirming
from forebay_pool.machine.sessions.forks import Forks
from forebay_pool.machine.sessions.joining import Joining
from forebay_pool.machine.sessions.restoring import Restoring
from forebay_pool.machine.sessions.rules import Rules
from forebay_pool.machine.sessions.takeover import Takeover
from forebay_pool.machine.sessions.unconfined_hosts import UnconfinedHosts
from forebay_pool.machine.sessions.worker_returns import WorkerReturns
from forebay_pool.machine.workers.closing import Closing
from forebay_pool.machine.workers.draining import Draining
from forebay_pool.machine.workers.ending import Ending
from forebay_pool.machine.workers.evacuation import Evacuation
from forebay_pool.machine.workers.failing import Failing
from forebay_pool.machine.workers.kept_images import KeptImages
from forebay_pool.machine.workers.liveness import Liveness
from forebay_pool.machine.workers.moving import Moving
from forebay_pool.machine.workers.replays import Replays
from forebay_pool.machine.workers.workers import Workers
from forebay_pool.model.causes import Cause
from forebay_pool.model.elastic import NodeGroup
from forebay_pool.model.events import (
    BudgetSet,
    ClientSaid,
    Event,
    FlavorRemoved,
    FlavorSet,
    LeaseRevoked,
    Look,
    PricesSet,
    QuotaSet,
    Restored,
    SessionAway,
    SessionDismissed,
    SessionGrouped,
    SessionJoined,
    SessionLeft,
    SessionMoved,
    SessionOutside,
    SessionParked,
    SessionReplays,
    SessionRuns,
    ShutDown,
    StoreChanged,
    Tick,
    WorkerAway,
    WorkerGone,
    WorkerSaid,
    WorkerUnlinked,
)
from forebay_pool.model.instructions import Instruction, TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.node_events import DeviceHealth, DeviceSet, NodeDrain, NodeJoined, NodeLost, PolicySet
from forebay_pool.model.policies import Policy
from forebay_pool.model.types import Device, Flavor, Group, Session, Worker
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.forecast import Forecast
from forebay_pool.placement.lease_lengths import Outlook
from forebay_pool.placement.ranking import Ranking
from forebay_pool.queue.accounts import Accounts
from forebay_pool.queue.queue import Queue


class StateMachine:
    """Owns devices, flavors, sessions, leases and the queue. ``name`` makes worker ids unique among pools."""

    def __init__(
        self,
        devices: Iterable[Device],
        flavors: Mapping[str, Flavor],
        limits: Limits,
        name: str,
        unix_offset_ns: int,
        policy: Policy | None = None,
        ranking: Ranking | None = None,
        groups: Iterable[NodeGroup] = (),
    ) -> None:
        self.fleet = fleet = Fleet(devices, flavors, policy, ranking, groups)
        self.accounts = accounts = Accounts(limits.fair_share_half_life_seconds)
        self.sessions: dict[str, Session] = {}
        """All and only the sessions that live."""
        self.worklist = worklist = Worklist()
        self.step = step = Step(worklist, unix_offset_ns)
        self.admission = admission = Admission()
        self.scheduler = lends = Scheduler(step, worklist, admission, limits, self.sessions, fleet, accounts, name)
        sessions, queue, leases, parked, processes = self.sessions, lends.queue, lends.leases, lends.parked, lends.processes
        positions, preparing, granting = lends.positions, lends.preparing, lends.granting
        draining = Draining(step, fleet, leases, parked, processes, granting)
        images = KeptImages(step, fleet)
        evacuation = Evacuation(step, admission, limits, fleet, processes, preparing, images)
        ending = Ending(step, sessions, leases, parked, processes, granting, lends.groups)
        self._replays = replays = Replays(sessions, fleet, granting, ending)
        failing = Failing(step, worklist, admission, limits, fleet, leases, parked, processes, granting, draining, ending, replays)
        moving = Moving(step, admission, sessions, fleet, accounts, leases, parked, processes, preparing, granting, evacuation, images)
        closing = Closing(step, worklist, admission, fleet, leases, parked, positions, granting, lends.offering, draining, moving)
        workers = Workers(step, admission, fleet, leases, parked, granting, draining, evacuation, ending, failing, moving, images)
        liveness = Liveness(step, limits, fleet, queue, granting, failing)
        rules = Rules(step, worklist, sessions, fleet, queue, accounts, granting, lends.revoking)
        self._unconfined = UnconfinedHosts(step, worklist, limits, fleet, parked, lends.processes, granting, rules)
        self._rules, self._forks = rules, Forks(step, admission, sessions, fleet, positions, granting, ending, replays)
        joining = Joining(step, admission, limits, sessions, fleet, positions, lends.groups, ending, self._forks)
        clients = Clients(
            step, admission, limits, fleet, queue, accounts, leases, positions, granting, lends.revoking, failing, moving, rules
        )
        absence = Absence(step, worklist, admission, limits, sessions, fleet, leases, parked, granting, lends.groups, ending, failing)
        takeover = Takeover(step, fleet)
        clients_back = ClientReturns(step, sessions, fleet, leases, positions, lends.groups, ending, workers, takeover)
        workers_back = WorkerReturns(
            step, limits, sessions, fleet, parked, granting, draining, evacuation, ending, failing, moving, closing, workers, takeover,
            absence,
        )
        restoring = Restoring(step, admission, limits, sessions, fleet, accounts, leases, parked, granting, failing, absence, replays)
        operations = Operations(step, worklist, limits, fleet, draining, failing, moving, replays)
        self._evacuation, self._ending, self._liveness, self._absence, self._operations = evacuation, ending, liveness, absence, operations
        self._confirming = Confirming(step, sessions, leases, parked)
        self._outlooks = Outlooks(step, fleet, queue, lends.lengths, lends.arrivals, processes)
        self._scaling = Scaling(step, limits, sessions, fleet, queue, lends.lengths, lends.arrivals, operations)
        self.limits = limits
        self._on = self._event_handlers(joining, moving, clients_back, restoring, failing, rules)
        self._on_client = client_handlers(clients, clients_back)
        self._on_worker = worker_handlers(workers, closing, moving, workers_back, absence, self._forks, self._unconfined)

    # Where the rest of the pool looks

    @property
    def queue(self) -> Queue:
        return self.scheduler.queue

    @property
    def groups(self) -> list[Group]:
        return list(self.scheduler.groups.by_name.values())

    @property
    def accepting(self) -> bool:
        """True if leases may open, as far as the database is concerned."""
        return self.admission.accepting

    @property
    def line_changed(self) -> bool:
        """True if a look has anything to report."""
        return self.scheduler.positions.has_news

    @property
    def story(self) -> Story:
        return self.step.story

    @story.setter
    def story(self, story: Story) -> None:
        self.step.story = story

    def forecasts(self, now_ns: int) -> list[Forecast]:
        """What the demand on each flavor will come to, if it goes on."""
        return self._outlooks.forecasts(now_ns)

    def outlook(self, flavor: Flavor, tenant: str) -> Outlook:
        """How long a new session of the tenant would wait for the flavor, at the default priority and apart from quotas."""
        return self._outlooks.outlook(flavor, tenant)

    # What happens

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        """Handles the event and returns the instructions. ``now_ns`` never goes back. Raises InvariantBroken before it leases a device
        twice."""
        step, offering, parked = self.step, self.scheduler.offering, self.scheduler.parked
        if now_ns < step.now_ns:
            raise InvariantBroken(f"the clock went back from {step.now_ns} to {now_ns} ns with {event}")
        step.now_ns = now_ns
        out: list[Instruction] = []
        step.out = out
        step.story.add(now_ns, event, out)
        self._on[type(event)](event)
        offering.offer_all()
        while parked.overfull:
            self._ending.end_overfull()
            offering.offer_all()
        parked.follow_changes()
        return out

    def _event_handlers(
        self, joining: Joining, moving: Moving, clients_back: ClientReturns, restoring: Restoring, failing: Failing, rules: Rules
    ) -> dict[type[Any], Callable[[Any], None]]:
        """What handles an event, by its type."""
        return {
            Restored: restoring.restored,
            SessionAway: self._absence.session_away,
            WorkerAway: self._absence.worker_away,
            SessionJoined: joining.session_joined,
            ClientSaid: self._client_said,
            SessionGrouped: clients_back.session_grouped,
            SessionOutside: joining.session_outside,
            SessionReplays: joining.session_replays,
            SessionRuns: joining.session_runs,
            SessionLeft: joining.session_over,
            SessionDismissed: joining.session_over,
            SessionMoved: moving.session_moved,
            SessionParked: moving.session_parked,
            WorkerSaid: self._worker_said,
            WorkerUnlinked: failing.worker_unlinked,
            WorkerGone: failing.worker_gone,
            FlavorSet: rules.flavor_set,
            FlavorRemoved: rules.flavor_removed,
            QuotaSet: rules.quota_set,
            BudgetSet: rules.budget_set,
            LeaseRevoked: self.scheduler.revoking.lease_revoked,
            Look: self.scheduler.positions.looked,
            PricesSet: self._prices_set,
            PolicySet: rules.policy_set,
            NodeJoined: self._operations.node_joined,
            NodeLost: self._operations.node_lost,
            NodeDrain: self._operations.node_drain,
            DeviceSet: self._operations.device_set,
            DeviceHealth: self._operations.device_health,
            StoreChanged: self._store_changed,
            Tick: self._tick,
            ShutDown: self._shut_down,
        }

    def _client_said(self, event: ClientSaid) -> None:
        """Gives a client's message to its handler. A request of a session that is over is refused."""
        session = self.sessions.get(event.session)
        if session is not None:
            self._on_client[type(event.message)](session, event.message)
        elif isinstance(event.message, wire.Acquire):
            self.step.send(event.session, no_session(event.message.request))

    def _worker_said(self, event: WorkerSaid) -> None:
        """Gives a worker's message to its handler. A worker that comes back to a pool that has given it up is ended."""
        worker, message = self.fleet.workers.get(event.worker), event.message
        if worker is not None and worker.state != "ending":
            if self._liveness.hangs(worker) and not isinstance(message, wire.ResumeWorker):
                self._liveness.recovers(worker)
            worker.seen_ns = self.step.now_ns
            if isinstance(message, wire.Ready | wire.ResumeWorker):
                self._rules.runtimes_served(worker, message.runtimes)
            self._on_worker[type(message)](worker, message)
        elif isinstance(message, wire.ResumeWorker):
            self.step.out.append(TellWorker(event.worker, END))

    def _prices_set(self, event: PricesSet) -> None:
        self.fleet.set_tariff(event.tariff)

    def _store_changed(self, event: StoreChanged) -> None:
        self.admission.accepting = event.accepting
        if event.accepting:
            self.worklist.whole_queue = True

    def _tick(self, event: Tick) -> None:
        """Everything that time alone brings about, in this order."""
        step, lends = self.step, self.scheduler
        step.unix_offset_ns = event.unix_offset_ns
        if event.missed_ns:  # events that came meanwhile are handled before deadlines are checked
            self._absence.extend_deadlines(event.missed_ns)
        else:
            self._liveness.check()
            self._absence.give_up()
            self._absence.end_awaiting()
        self._replays.check()
        self._forks.check()
        lends.groups.check()
        lends.granting.end_crash_waits()
        self._unconfined.retry()
        self._confirming.write()
        lends.revoking.check()
        self._operations.check_deadlines()
        if lends.queue.waiting:
            lends.queue.promote(step.now_ns - int(self.limits.wait_seconds_max * SECOND))
            lends.offering.offer_again()
            lends.offering.move_waiting()
            lends.positions.send_all(anew=True)
        if not self.admission.stopping:
            self._evacuation.evacuate()
            lends.processes.dismiss_spare()
            lends.processes.prestart()
            self._scaling.scale()

    def _shut_down(self, event: ShutDown) -> None:
        self.admission.stopping = True
        for session in list(self.sessions.values()):
            self._ending.end(session, "revoked", Cause("pool_ends"))
        for worker in list(self.fleet.workers.values()):
            if worker.state != "ending":
                self.scheduler.processes.dismiss(worker, drains_milli=0)


def client_handlers(clients: Clients, back: ClientReturns) -> dict[type[Any], Callable[[Session, Any], None]]:
    """What handles a message of a session's client, by its type."""
    return {
        wire.ResumeSession: back.resume_session,
        wire.Acquire: clients.acquire,
        wire.Cancel: clients.cancel,
        wire.ChooseFlavor: clients.choose_flavor,
        wire.ChoosePriority: clients.choose_priority,
        wire.Arrived: clients.arrived,
        wire.Unreached: clients.unreached,
        wire.Release: clients.release,
    }


def worker_handlers(
    workers: Workers, closing: Closing, moving: Moving, back: WorkerReturns, absence: Absence, forks: Forks, hosts: UnconfinedHosts
) -> dict[type[Any], Callable[[Worker, Any], None]]:
    """What handles a message of a worker, by its type."""
    return {
        wire.ResumeWorker: back.resume_worker,
        wire.Ready: workers.ready,
        wire.Assigned: workers.assigned,
        wire.Unconfined: hosts.unconfined,
        wire.Drained: closing.drained,
        wire.Idle: closing.idle,
        wire.Starved: workers.starved,
        wire.Heartbeat: workers.heartbeat,
        wire.Parked: workers.parked,
        wire.Restored: workers.restored,
        wire.Left: moving.left,
        wire.Copied: forks.copied,
        wire.Kept: workers.kept,
        wire.Closed: closing.closed,
        wire.Waiting: closing.waiting,
        wire.Working: closing.working,
        wire.ClientCut: absence.client_cut,
        wire.ClientGone: workers.client_gone,
    }
