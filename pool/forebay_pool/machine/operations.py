"""What operators, probes and launchers say of nodes and devices: cordons, drains, losses, returns, health, policies."""

from __future__ import annotations

from forebay_wire import messages as wire

from forebay_pool.machine import refusals
from forebay_pool.machine.resuming import Resuming
from forebay_pool.model.events import FlavorRemoved, FlavorSet
from forebay_pool.model.health import judge
from forebay_pool.model.instructions import Kill, Show, TellWorker
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.node_events import DeviceHealth, DeviceSet, NodeDrain, NodeJoined, NodeLost, PolicySet
from forebay_pool.model.types import ALONE, WHOLE_MILLI, Cordon, Flavor, Lane, Node, Seat, Worker
from forebay_pool.placement.forecast import Forecast, Load, forecast
from forebay_pool.placement.lease_lengths import Outlook
from forebay_pool.placement.wait_estimates import Foresight


class Operations(Resuming):
    """Closes and opens devices, and empties them."""

    def _flavor_set(self, event: FlavorSet) -> None:
        self.fleet.set_flavor(event.flavor)
        self._reconsider(event.flavor.name)

    def _flavor_removed(self, event: FlavorRemoved) -> None:
        """Of a flavor that a session has, nothing comes: whoever asks looks at ``sessions`` first."""
        if all(session.flavor != event.name for session in self.sessions.values()):
            self.fleet.remove_flavor(event.name)
            self._reconsider(None)

    def _policy_set(self, event: PolicySet) -> None:
        self.fleet.set_policy(event.policy)
        self._reconsider(None)

    def _reconsider(self, changed: str | None) -> None:
        """Refuses those who wait for what is served no more, and places anew whom that concerns: a flavor's requests, or all."""
        self.queue.rebuild()
        for session in list(self.sessions.values()):
            request = session.request
            if request is None:
                continue
            why = refusals.why_not(session, self.fleet.flavors[session.flavor], self.fleet)
            if why is not None:
                self._drop_request(session, refusals.not_servable(why, request.number))
            elif self._refuse_if_hopeless(request):
                continue
            elif request.place is not None and changed in (None, session.flavor):
                self._place_again(request)
        self._look_anew = True

    def forecasts(self, now_ns: int) -> list[Forecast]:
        """What the demand on each flavor will come to, if it goes on."""
        fleet, loads = self.fleet, []
        for flavor in fleet.flavors.values():
            length_ns = self.lengths.mean_ns(flavor.name) or 0
            census = fleet.census(flavor)
            devices = float(census.total - census.closed)
            rate, each = self.arrivals.per_second(flavor.name, now_ns), fleet.demand_milli(((), flavor.name, (), ALONE)) / WHOLE_MILLI
            loads.append(Load(flavor.name, rate, length_ns / SECOND, each, devices, fleet.rivals_of(flavor.name) or (flavor.name,)))
        return forecast(loads)

    def outlook(self, flavor: Flavor, tenant: str) -> Outlook:
        """How long a new session of the tenant would wait for the flavor, at the usual priority and its quotas aside."""
        lane: Lane = ((), flavor.name, (), ALONE)
        waiting = self.queue.competition.rivals(lane, 0)
        if not waiting and self.fleet.choose(flavor, tenant, self.has_room_for_workers) is not None:
            return Outlook(0, 0.0)
        starts, mean_ns = self._start_seconds(flavor, tenant), self.lengths.mean_ns(flavor.name) or 0
        estimate = Foresight(self.fleet, self.lengths, self._now, 0).estimate(lane, waiting, waiting * mean_ns)
        usual = None if estimate is None else estimate.high or None
        return Outlook(waiting, starts if usual is None else usual if starts is None or waiting else min(usual, starts))

    def _start_seconds(self, flavor: Flavor, tenant: str) -> float | None:
        """Until a node is there that would be started for the flavor; None where no more can be."""
        left = [left_ns / SECOND for _, left_ns in self.fleet.starting(flavor, tenant, self._now)]
        more = [one for one in self.fleet.grows_for(flavor, tenant) if one.wanted < one.group.nodes_max]
        return min([*left, *(one.group.start_seconds for one in more)], default=None)

    # Nodes

    def _node_joined(self, event: NodeJoined) -> None:
        """A node that comes back after it was given up starts afresh: its old workers serve nobody any more."""
        node = self.fleet.nodes.get(event.node)
        if node is not None and node.lost is not None:
            for worker in self._workers_on(node):
                self._out += (TellWorker(worker.id, wire.End()), Kill(worker.id))
            node.lost = None
        self.fleet.join(event.devices)
        self._note("node_joined", node=event.node, devices=len(event.devices))
        self._node_changed(self.fleet.nodes[event.node])

    def _node_lost(self, event: NodeLost) -> None:
        node = self.fleet.nodes.get(event.node)
        if node is None or node.lost is not None:
            return
        node.lost = event.cause
        self._note("node_lost", node=node.name, cause=event.cause)
        for seat in node.seats:
            self.fleet.changed(seat)
        for worker in self._workers_on(node):
            if worker.state != "ending":
                self._fail(worker, f"node {node.name} was lost: {event.cause}")
        self._node_changed(node)

    def _node_drain(self, event: NodeDrain) -> None:
        node = self.fleet.nodes.get(event.node)
        if node is None:
            return
        node.drains, node.releases, node.is_reclaimed = event.drains, False, event.reclaimed
        grace_seconds = event.grace_seconds if event.drains else None
        node.deadline_ns = None if grace_seconds is None else self._now + int(grace_seconds * SECOND)
        self._note("node_drains" if event.drains else "node_opened", node=node.name)
        self._due.pop(node.name, None)
        if node.deadline_ns is not None:
            self._due[node.name] = node
        self._node_changed(node)
        if node.drains:
            self._move_off(node)

    def _move_off(self, node: Node) -> None:
        """Has sessions that compute on the node go on elsewhere, as far as there is room; others end by themselves or at the deadline."""
        for worker in self._workers_on(node):
            session = worker.session
            if session is not None and session.lease is not None:
                flavor, room = self.fleet.flavors[session.flavor], len(self.fleet.workers) < self.limits.workers_max
                if self.fleet.choose(flavor, session.tenant, room) is not None:
                    self.move(session)

    def _node_changed(self, node: Node) -> None:
        """Whether leases may open on the node is not as it was."""
        self._out.append(Show(node))
        for seat in node.seats:
            self.fleet.changed(seat)  # all of them first: who leaves one of them does not go to the next
        for seat in node.seats:
            self._seat_changed(seat)

    def _seat_changed(self, seat: Seat) -> None:
        if not seat.is_open:
            self._close_seat(seat)
            return
        self.fleet.changed(seat)
        self._out.append(Show(seat))
        self._free_up(seat)

    def _workers_on(self, node: Node) -> list[Worker]:
        return list({worker.id: worker for seat in node.seats for worker in seat.workers.values()}.values())

    # Devices

    def _device_set(self, event: DeviceSet) -> None:
        seat = self.fleet.seats.get(event.device)
        if seat is None:
            return
        if event.cordoned:
            seat.cordon = Cordon((event.cause,), "operator", seat.cordon is not None and seat.cordon.drains)
        else:
            seat.cordon, seat.warning, seat.errors_known, seat.lies = None, None, seat.errors, 0
            self.fleet.found_dead(seat, 0)
        self._note("device_cordoned" if event.cordoned else "device_opened", device=event.device, cause=event.cause)
        self._seat_changed(seat)

    def _device_health(self, event: DeviceHealth) -> None:
        reading = event.reading
        seat = self.fleet.seats.get(reading.device)
        if seat is None:
            return
        before = (seat.warning, seat.temperature_celsius)
        seat.temperature_celsius = reading.temperature_celsius
        seat.errors = seat.errors if reading.uncorrectable_errors is None else reading.uncorrectable_errors
        verdict = judge(reading, seat.errors_known)
        seat.warning = verdict.cause
        if verdict.cause is not None and verdict.level in ("cordon", "drain"):
            self._cordon(seat, verdict.cause, drains=verdict.level == "drain", lasting=verdict.lasting)
        elif verdict.level == "good" and seat.cordon is not None and seat.cordon.by == "health" and not seat.cordon.lasting:
            seat.cordon = None
            self._note("device_opened", device=reading.device, cause="it has cooled down")
            self._seat_changed(seat)
        if (seat.warning, seat.temperature_celsius) != before:
            if verdict.cause is not None and verdict.level == "warning" and before[0] is None:
                self._note("device_alert", device=reading.device, cause=verdict.cause)
            self._out.append(Show(seat))

    def _check_deadlines(self) -> None:
        """Takes back the leases that are still open when a node's grace is over."""
        for node in [node for node in self._due.values() if node.deadline_ns is not None and self._now >= node.deadline_ns]:
            del self._due[node.name]
            for seat in node.seats:
                self._take_back(seat)
