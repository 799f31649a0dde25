"""What operators, probes and launchers say of nodes and devices: cordons, drains, losses, returns, health."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.workers.draining import Draining
from forebay_pool.machine.workers.failing import Failing
from forebay_pool.machine.workers.moving import Moving
from forebay_pool.machine.workers.replays import Replays
from forebay_pool.model.health import Cordon, judge
from forebay_pool.model.instructions import Kill, Show, TellWorker
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.node_events import DeviceHealth, DeviceSet, NodeDrain, NodeJoined, NodeLost
from forebay_pool.model.types import Node, Seat, Worker
from forebay_pool.placement.fleet import Fleet


class Operations:
    """Closes and opens devices, and empties them."""

    def __init__(
        self,
        step: Step,
        worklist: Worklist,
        limits: Limits,
        fleet: Fleet,
        draining: Draining,
        failing: Failing,
        moving: Moving,
        replays: Replays,
    ) -> None:
        self._step = step
        self._worklist = worklist
        self._limits = limits
        self._fleet = fleet
        self._draining = draining
        self._failing = failing
        self._moving = moving
        self._replays = replays
        self.due: dict[str, Node] = {}
        """All and only the nodes that drain with a deadline that is still to come."""

    def node_joined(self, event: NodeJoined) -> None:
        """A node that comes back after it was given up starts afresh: its old workers are ended."""
        node = self._fleet.nodes.get(event.node)
        if node is not None and node.lost is not None:
            for worker in self._workers_on(node):
                self._step.out += (TellWorker(worker.id, wire.End()), Kill(worker.id))
            node.lost = None
            self._fleet.runtimes.trust(node)
        self._fleet.join(event.devices)
        self._step.note("node_joined", node=event.node, devices=len(event.devices))
        self._replays.check()
        self.node_changed(self._fleet.nodes[event.node])

    def node_lost(self, event: NodeLost) -> None:
        node = self._fleet.nodes.get(event.node)
        if node is None or node.lost is not None:
            return
        node.lost = event.cause
        self._step.note("node_lost", node=node.name, cause=event.cause)
        for seat in node.seats:
            self._fleet.changed(seat)
        for worker in self._workers_on(node):
            if worker.state != "ending":
                self._failing.fail(worker, f"node {node.name} was lost: {event.cause}")
        self._replays.check()
        self.node_changed(node)

    def node_drain(self, event: NodeDrain) -> None:
        node = self._fleet.nodes.get(event.node)
        if node is None:
            return
        node.drains, node.releases, node.is_reclaimed = event.drains, False, event.reclaimed
        grace_seconds = event.grace_seconds if event.drains else None
        node.deadline_ns = None if grace_seconds is None else self._step.now_ns + int(grace_seconds * SECOND)
        if not event.drains:
            self._fleet.runtimes.trust(node)
        self._step.note("node_drains" if event.drains else "node_opened", node=node.name)
        self.due.pop(node.name, None)
        if node.deadline_ns is not None:
            self.due[node.name] = node
        self.node_changed(node)
        if node.drains:
            self._move_off(node)

    def _move_off(self, node: Node) -> None:
        """Moves sessions that compute on the node elsewhere, as far as there is room. Other leases end by themselves or at the deadline."""
        for worker in self._workers_on(node):
            session = worker.session
            if session is not None and session.lease is not None:
                flavor, room = self._fleet.flavors[session.flavor], len(self._fleet.workers) < self._limits.workers_max
                if self._fleet.choose(flavor, session.tenant, room) is not None:
                    self._moving.move(session)

    def node_changed(self, node: Node) -> None:
        """Leases may open on the node that could not before, or the other way round."""
        self._step.out.append(Show(node))
        for seat in node.seats:
            self._fleet.changed(seat)  # all of them first: sessions that leave one seat must not go to the next
        for seat in node.seats:
            self._seat_changed(seat)

    def _seat_changed(self, seat: Seat) -> None:
        if not seat.is_open:
            self._draining.close_seat(seat)
            return
        self._fleet.changed(seat)
        self._step.out.append(Show(seat))
        self._worklist.offer(seat)

    def _workers_on(self, node: Node) -> list[Worker]:
        return list({worker.id: worker for seat in node.seats for worker in seat.workers.values()}.values())

    def device_set(self, event: DeviceSet) -> None:
        seat = self._fleet.seats.get(event.device)
        if seat is None:
            return
        if event.cordoned:
            seat.cordon = Cordon((event.cause,), "operator", seat.cordon is not None and seat.cordon.drains)
        else:
            seat.cordon, seat.warning, seat.errors_known, seat.lies = None, None, seat.errors, 0
            self._fleet.found_dead(seat, 0)
        self._step.note("device_cordoned" if event.cordoned else "device_opened", device=event.device, cause=event.cause)
        self._seat_changed(seat)

    def device_health(self, event: DeviceHealth) -> None:
        reading = event.reading
        seat = self._fleet.seats.get(reading.device)
        if seat is None:
            return
        before = (seat.warning, seat.temperature_celsius)
        seat.temperature_celsius = reading.temperature_celsius
        seat.errors = seat.errors if reading.uncorrectable_errors is None else reading.uncorrectable_errors
        verdict = judge(reading, seat.errors_known)
        seat.warning = verdict.cause
        if verdict.cause is not None and verdict.level in ("cordon", "drain"):
            self._draining.cordon(seat, verdict.cause, drains=verdict.level == "drain", lasting=verdict.lasting)
        elif verdict.level == "good" and seat.cordon is not None and seat.cordon.by == "health" and not seat.cordon.lasting:
            seat.cordon = None
            self._step.note("device_opened", device=reading.device, cause="it has cooled down")
            self._seat_changed(seat)
        if (seat.warning, seat.temperature_celsius) != before:
            if verdict.cause is not None and verdict.level == "warning" and before[0] is None:
                self._step.note("device_alert", device=reading.device, cause=verdict.cause)
            self._step.out.append(Show(seat))

    def check_deadlines(self) -> None:
        """Takes back the leases that are still open when a node's grace period is over."""
        for node in [node for node in self.due.values() if node.deadline_ns is not None and self._step.now_ns >= node.deadline_ns]:
            del self.due[node.name]
            for seat in node.seats:
                self._draining.take_back(seat)
