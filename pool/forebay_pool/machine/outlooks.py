"""What may be expected of the pool: how long a new session would wait, and what the demand will come to."""

from __future__ import annotations

from forebay_pool.machine.base.step import Step
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.model.metering import SECOND_NS as SECOND
from forebay_pool.model.types import ALONE, WHOLE_MILLI, Flavor, Lane
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.forecast import Arrivals, Forecast, Load, forecast
from forebay_pool.placement.lease_lengths import LeaseLengths, Outlook
from forebay_pool.placement.wait_estimates import Foresight
from forebay_pool.queue.queue import Queue


class Outlooks:
    """Looks at the fleet and the queue, and changes nothing."""

    def __init__(
        self,
        step: Step,
        fleet: Fleet,
        queue: Queue,
        lengths: LeaseLengths,
        arrivals: Arrivals,
        processes: WorkerProcesses,
    ) -> None:
        self._step = step
        self._fleet = fleet
        self._queue = queue
        self._lengths = lengths
        self._arrivals = arrivals
        self._processes = processes

    def forecasts(self, now_ns: int) -> list[Forecast]:
        """What the demand on each flavor will come to, if it goes on."""
        fleet, loads = self._fleet, []
        for flavor in fleet.flavors.values():
            length_ns = self._lengths.mean_ns(flavor.name) or 0
            census = fleet.census(flavor)
            devices = float(census.total - census.closed)
            rate, each = self._arrivals.per_second(flavor.name, now_ns), fleet.demand_milli(lane_of_new(flavor)) / WHOLE_MILLI
            loads.append(Load(flavor.name, rate, length_ns / SECOND, each, devices, fleet.rivals_of(flavor.name) or (flavor.name,)))
        return forecast(loads)

    def outlook(self, flavor: Flavor, tenant: str) -> Outlook:
        """How long a new session of the tenant would wait for the flavor, at the default priority and apart from quotas."""
        lane = lane_of_new(flavor)
        waiting = self._queue.competition.rivals(lane, 0)
        if not waiting and self._fleet.choose(flavor, tenant, self._processes.has_room) is not None:
            return Outlook(0, 0.0)
        starts, mean_ns = self._start_seconds(flavor, tenant), self._lengths.mean_ns(flavor.name) or 0
        estimate = Foresight(self._fleet, self._lengths, self._step.now_ns, 0).estimate(lane, waiting, waiting * mean_ns)
        usual = None if estimate is None else estimate.high or None
        return Outlook(waiting, starts if usual is None else usual if starts is None or waiting else min(usual, starts))

    def _start_seconds(self, flavor: Flavor, tenant: str) -> float | None:
        """Seconds until a node is there that would be started for the flavor; None if no node can be started."""
        left = [left_ns / SECOND for _, left_ns in self._fleet.starting(flavor, tenant, self._step.now_ns)]
        more = [one for one in self._fleet.grows_for(flavor, tenant) if one.wanted < one.group.nodes_max]
        return min([*left, *(one.group.start_seconds for one in more)], default=None)


def lane_of_new(flavor: Flavor) -> Lane:
    """Where a new session would wait that any device will do for."""
    return (), flavor.name, (), ALONE, "torch"
