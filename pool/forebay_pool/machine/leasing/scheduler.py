"""The fleet, the queue, and the parts that bring both together."""

from __future__ import annotations

from forebay_pool.machine.base.admission import Admission
from forebay_pool.machine.base.step import Step
from forebay_pool.machine.base.worklist import Worklist
from forebay_pool.machine.leasing.granting import Granting
from forebay_pool.machine.leasing.groups import Groups
from forebay_pool.machine.leasing.leases import Leases
from forebay_pool.machine.leasing.offering import Offering
from forebay_pool.machine.leasing.parking import ParkedSessions
from forebay_pool.machine.leasing.place_finder import PlaceFinder
from forebay_pool.machine.leasing.preparing import Preparing
from forebay_pool.machine.leasing.queue_positions import QueuePositions
from forebay_pool.machine.leasing.reservations import Reservations
from forebay_pool.machine.leasing.revoking import Revoking
from forebay_pool.machine.leasing.worker_processes import WorkerProcesses
from forebay_pool.model.limits import Limits
from forebay_pool.model.types import Session
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.forecast import Arrivals
from forebay_pool.placement.lease_lengths import LeaseLengths
from forebay_pool.queue.accounts import Accounts
from forebay_pool.queue.queue import Queue


class Scheduler:
    """Lends the devices of one fleet to the requests of one queue. It does not own accounts and sessions: other schedulers may share
    them."""

    def __init__(
        self, step: Step, worklist: Worklist, admission: Admission, limits: Limits, sessions: dict[str, Session], fleet: Fleet,
        accounts: Accounts, name: str,
    ) -> None:  # fmt: skip
        self.fleet = fleet
        self.queue = queue = Queue(fleet, accounts, limits)
        self.lengths = lengths = LeaseLengths()
        self.arrivals = arrivals = Arrivals()
        self.leases = leases = Leases(step, worklist, limits, fleet, accounts, lengths)
        self.parked = parked = ParkedSessions(step, worklist, limits, fleet, accounts)
        self.positions = positions = QueuePositions(step, admission, limits, fleet, queue, accounts, lengths)
        self.processes = processes = WorkerProcesses(step, worklist, admission, limits, fleet, queue, name)
        self.reservations = reservations = Reservations(step, worklist, limits, fleet, queue, lengths)
        self.places = places = PlaceFinder(admission, limits, fleet, accounts, processes, reservations)
        self.preparing = preparing = Preparing(step, limits, fleet, accounts, parked, processes)
        self.granting = granting = Granting(
            step, worklist, admission, fleet, queue, accounts, arrivals, leases, positions, processes, reservations, places, preparing
        )
        self.groups = groups = Groups(step, worklist, admission, fleet, queue, accounts, leases, positions, places, granting)
        self.offering = Offering(step, worklist, admission, sessions, fleet, queue, accounts, reservations, places, granting, groups)
        self.revoking = Revoking(step, worklist, limits, sessions, fleet, queue, accounts, leases)
