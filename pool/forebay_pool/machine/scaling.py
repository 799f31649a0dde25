"""How many nodes there should be: what the autoscaler is asked for, and which nodes are given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from forebay_pool.machine.base.step import Step
from forebay_pool.machine.operations import Operations
from forebay_pool.model.elastic import Growth
from forebay_pool.model.instructions import Scale, Show
from forebay_pool.model.limits import Limits
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import WHOLE_MILLI, Flavor, Node, Session
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.forecast import MEMORY_SECONDS, Arrivals
from forebay_pool.placement.lease_lengths import LeaseLengths
from forebay_pool.placement.node_demand import FlavorDemand, nodes_needed
from forebay_pool.placement.room import is_empty, tensor_bytes
from forebay_pool.queue.queue import Queue

SCALE_SECONDS = 1.0
"""The period in which the demand is examined."""


class Scaling:
    """Asks for the nodes that demand and forecast need, and drains those that have not been needed for a while."""

    def __init__(
        self,
        step: Step,
        limits: Limits,
        sessions: dict[str, Session],
        fleet: Fleet,
        queue: Queue,
        lengths: LeaseLengths,
        arrivals: Arrivals,
        operations: Operations,
    ) -> None:
        self._step = step
        self._limits = limits
        self._sessions = sessions
        self._fleet = fleet
        self._queue = queue
        self._lengths = lengths
        self._arrivals = arrivals
        self._operations = operations
        self._scaled_ns: int | None = None
        """When the demand was last examined."""
        self._asked: Scale | None = None
        """What the autoscaler was last asked for."""

    def scale(self) -> None:
        growth = self._fleet.growth
        if not growth or (self._scaled_ns is not None and self._step.now_ns - self._scaled_ns < int(SCALE_SECONDS * SECOND)):
            return
        if self._scaled_ns is None:  # sessions that this pool does not know yet may need them
            for one in growth.values():
                one.need(len(self._nodes_of(one)), self._step.now_ns, int(self._limits.elastic_release_seconds * SECOND))
        self._scaled_ns = self._step.now_ns
        groups = [one.group for one in growth.values()]
        needed = nodes_needed(self._demands(), groups, self._fixed_milli(), self._limits.elastic_wait_share)
        for one in growth.values():
            one.need(needed[one.group.model], self._step.now_ns, int(self._limits.elastic_release_seconds * SECOND))
            self._adjust(one)
        living = {one.group.model: self._nodes_of(one) for one in growth.values()}
        self._forget_ended()
        asked = Scale(
            {model: _asked_of(growth[model], nodes) for model, nodes in living.items()},
            frozenset(node.name for nodes in living.values() for node in nodes if node.releases and is_empty(node)),
        )
        if asked != self._asked:
            self._asked = asked
            self._step.out.append(asked)
            self._step.note("nodes_asked", **asked.nodes)

    def _demands(self) -> list[FlavorDemand]:
        """The demand for each flavor. Requests that a quota or a budget stops do not count."""
        present: Counter[str] = Counter()
        for session in self._sessions.values():
            request = session.request
            if session.lease is not None:
                present[session.lease.flavor.name] += 1
            elif request is not None and (request.place is not None or not self._queue.is_barred(request, self._step.now_ns)):
                present[session.flavor] += 1
        return [self._demand(flavor, present[flavor.name]) for flavor in self._fleet.flavors.values()]

    def _demand(self, flavor: Flavor, present: int) -> FlavorDemand:
        rate = self._arrivals.seen_per_second(flavor.name, self._step.now_ns)
        return FlavorDemand(flavor, present, rate * self._mean_seconds(flavor.name), rate * self._limits.elastic_release_seconds)

    def _mean_seconds(self, flavor: str) -> float:
        """The mean length of the flavor's leases, bounded by how long arrivals are remembered: longer leases are counted as present
        instead."""
        return min(MEMORY_SECONDS, (self._lengths.mean_ns(flavor) or 0) / SECOND)

    def _fixed_milli(self) -> dict[str, int]:
        """Thousandths of open devices that no group starts or ends, by model."""
        fixed: Counter[str] = Counter()
        for seat in self._fleet.seats.values():
            if seat.is_open and seat.device.model not in self._fleet.growth:
                fixed[seat.device.model] += WHOLE_MILLI
        return fixed

    def _forget_ended(self) -> None:
        """Forgets nodes that the autoscaler has ended. They do not come back: a new node has a new name."""
        ended = [node for node in self._fleet.nodes.values() if node.lost is not None and is_empty(node) and self._is_elastic(node)]
        for node in ended:
            self._operations.due.pop(node.name, None)
            self._fleet.forget(node)
            self._step.note("node_forgotten", node=node.name)
            self._step.out += (Show(node), *map(Show, node.seats))

    def _is_elastic(self, node: Node) -> bool:
        return any(seat.device.model in self._fleet.growth for seat in node.seats)

    def _nodes_of(self, growth: Growth) -> list[Node]:
        """The group's nodes that are not lost."""
        model = growth.group.model
        return [node for node in self._fleet.nodes.values() if node.lost is None and any(seat.device.model == model for seat in node.seats)]

    def _adjust(self, growth: Growth) -> None:
        """Keeps nodes that were to be released, or releases nodes, as the demand has changed."""
        nodes = self._nodes_of(growth)
        there = [node for node in nodes if not node.drains]
        for node in [node for node in nodes if node.releases][: max(0, growth.wanted - len(there))]:
            there.append(node)
            self._set_release(node, False)
        idle = [node for node in there if not any(seat.holders or seat.draining for seat in node.seats)]
        for node in sorted(idle, key=_tensor_bytes)[: max(0, len(there) - growth.wanted)]:
            there.remove(node)
            self._set_release(node, True)
        growth.await_nodes(max(0, growth.wanted - len(there)), self._step.now_ns)

    def _set_release(self, node: Node, over: bool) -> None:
        """With ``over`` nothing starts on the node any more, and residents leave it; without, it is needed again."""
        node.releases = node.drains = over
        self._step.note("node_released" if over else "node_kept", node=node.name)
        self._operations.node_changed(node)


def _asked_of(growth: Growth, nodes: Iterable[Node]) -> int:
    """The number of nodes to ask for. The autoscaler counts drained nodes, but not those that are reclaimed. It starts none if it may not
    start all, so this never exceeds the maximum."""
    drained = sum(node.drains and not (node.releases or node.is_reclaimed) for node in nodes)
    return min(growth.group.nodes_max, growth.wanted + drained)


def _tensor_bytes(node: Node) -> int:
    """What has to be moved off the node before it may end."""
    workers = {worker.id: worker for seat in node.seats for worker in seat.workers.values()}
    owners = (worker.session or worker.keeps for worker in workers.values())
    return sum(tensor_bytes(owner) for owner in owners if owner is not None)
