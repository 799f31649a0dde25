"""The pool's brain: events in, instructions out; no I/O, no clock, no chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from forebay_wire import messages as wire

from forebay_pool.errors import InvariantBroken
from forebay_pool.machine.scaling import Scaling
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
    SessionParked,
    ShutDown,
    StoreChanged,
    Tick,
    WorkerAway,
    WorkerGone,
    WorkerSaid,
    WorkerUnlinked,
)
from forebay_pool.model.instructions import Instruction
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.node_events import DeviceHealth, DeviceSet, NodeDrain, NodeJoined, NodeLost, PolicySet
from forebay_pool.model.policies import Policy
from forebay_pool.model.types import Device, Flavor, Limits
from forebay_pool.placement.ranking import Ranking


class StateMachine(Scaling):
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
        super().__init__(devices, flavors, limits, name, unix_offset_ns, policy, ranking, groups)
        self._away = {}
        self._on |= {
            Restored: self._restored,
            SessionAway: self._session_away,
            WorkerAway: self._worker_away,
            SessionJoined: self._session_joined,
            ClientSaid: self._client_said,
            SessionGrouped: self._session_grouped,
            SessionLeft: self._session_over,
            SessionDismissed: self._session_over,
            SessionMoved: self._session_moved,
            SessionParked: self._session_parked,
            WorkerSaid: self._worker_said,
            WorkerUnlinked: self._worker_unlinked,
            WorkerGone: self._worker_gone,
            FlavorSet: self._flavor_set,
            FlavorRemoved: self._flavor_removed,
            QuotaSet: self._quota_set,
            BudgetSet: self._budget_set,
            LeaseRevoked: self._lease_revoked,
            Look: self._looked,
            PricesSet: self._prices_set,
            PolicySet: self._policy_set,
            NodeJoined: self._node_joined,
            NodeLost: self._node_lost,
            NodeDrain: self._node_drain,
            DeviceSet: self._device_set,
            DeviceHealth: self._device_health,
            StoreChanged: self._store_changed,
            Tick: self._tick,
            ShutDown: self._shut_down,
        }
        self._on_client |= {
            wire.ResumeSession: self._resume_session,
            wire.Acquire: self._acquire,
            wire.Cancel: self._cancel,
            wire.ChooseFlavor: self._choose_flavor,
            wire.ChoosePriority: self._choose_priority,
            wire.Arrived: self._arrived,
            wire.Unreached: self._unreached,
            wire.Release: self._release,
        }
        self._on_worker |= {
            wire.ResumeWorker: self._resume_worker,
            wire.Ready: self._ready,
            wire.Assigned: self._assigned,
            wire.Drained: self._drained,
            wire.Idle: self._idle,
            wire.Starved: self._starved,
            wire.Heartbeat: self._heartbeat,
            wire.Parked: self._parked,
            wire.Restored: self._back_on_device,
            wire.Left: self._left,
            wire.Closed: self._closed,
            wire.Waiting: self._waiting,
            wire.Working: self._working,
            wire.ClientGone: self._client_gone,
        }

    def handle(self, event: Event, now_ns: int) -> list[Instruction]:
        """What to do about the event. ``now_ns`` never goes back. Raises InvariantBroken before it leases a device twice."""
        if now_ns < self._now:
            raise InvariantBroken(f"the clock went back from {self._now} to {now_ns} ns with {event}")
        self._now = now_ns
        out: list[Instruction] = []
        self._out = out
        self.story.add(now_ns, event, out)
        self._on[type(event)](event)
        self._offer_seats()
        while self._overfull:
            self._end_overfull()
            self._offer_seats()
        self._note_parkings()
        return out

    def _prices_set(self, event: PricesSet) -> None:
        self.fleet.set_tariff(event.tariff)

    def _store_changed(self, event: StoreChanged) -> None:
        self.accepting = event.accepting
        if self.accepting:
            self._look_anew = True

    def _tick(self, event: Tick) -> None:
        self._unix_offset_ns = event.unix_offset_ns
        if event.missed_ns:  # what came meanwhile is heard before anybody is judged
            self._excuse(event.missed_ns)
        else:
            self._check_workers()
            self._give_up_absent()
            self._gather()
        self._check_groups()
        self._write_confirmations()
        self._check_revocations()
        self._check_deadlines()
        if self.queue.waiting:
            self.queue.promote(self._now - int(self.limits.wait_seconds_max * SECOND))
            self._offer_again()
            self._move_waiting()
            self._tell_queue(anew=True)
        if not self.stopping:
            self._evacuate()
            self._make_way()
            self._keep_warm()
            self._scale()

    def _shut_down(self, event: ShutDown) -> None:
        self.stopping = True
        for session in list(self.sessions.values()):
            self._end(session, "revoked", Cause("pool_ends"))
        for worker in list(self.fleet.workers.values()):
            if worker.state != "ending":
                self._dismiss(worker, drains_milli=0)
