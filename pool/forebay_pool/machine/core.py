"""The state machine's lowest layer: what it owns, and how it tells the world."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from forebay_wire import messages as wire

from forebay_pool.machine.story import Story
from forebay_pool.model.elastic import NodeGroup
from forebay_pool.model.instructions import Instruction, Keep, Note, Show, TellClient
from forebay_pool.model.policies import Policy
from forebay_pool.model.types import (
    Device,
    Flavor,
    Group,
    Lane,
    Lease,
    Limits,
    Make,
    Node,
    Parking,
    Place,
    Request,
    Seat,
    Session,
    SessionState,
    Worker,
)
from forebay_pool.placement.fleet import Fleet
from forebay_pool.placement.forecast import Arrivals
from forebay_pool.placement.lease_lengths import LeaseLengths
from forebay_pool.placement.ranking import Ranking
from forebay_pool.queue.accounts import Account, Accounts
from forebay_pool.queue.fair_share import Turns
from forebay_pool.queue.preemptible import Preemptible
from forebay_pool.queue.queue import Queue, Rank
from forebay_pool.queue.reasons import Why


class Core:
    """What the pool knows, and the instructions of the event at hand. The layers above change it; none calls the one above itself."""

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
        self.limits = limits
        self.fleet = Fleet(devices, flavors, policy, ranking, groups)
        self.accounts = Accounts(limits.fair_share_half_life_seconds)
        self.queue = Queue(self.fleet, self.accounts)
        self.lengths = LeaseLengths()
        self.arrivals = Arrivals()
        self.sessions: dict[str, Session] = {}
        self.accepting = True
        self.stopping = False
        self.story = Story()
        self._name = name
        self._unix_offset_ns = unix_offset_ns
        self._now = 0
        self._out: list[Instruction] = []
        self._changed: dict[Session, None] = {}
        """Sessions that the event at hand may have changed."""
        self._loose: dict[str, Seat] = {}
        """Seats that the event at hand may have left something free on."""
        self._look_anew = False
        """Whether the event at hand may let anybody in the queue start, wherever that is."""
        self._promised: dict[str, Request] = {}
        """Devices with something free that are kept for a request whose session's tensors are there, and that request."""
        self._keepers: dict[Make, Request] = {}
        """By make, the first request without tensors that waits for its devices: what is free of the make is kept for that request."""
        self._unsettled: dict[Make, bool] = {}
        """Makes whose keeper may be another from now on, and whether the one there was is gone."""
        self._stopped: dict[Make, Turns[Rank]] = {}
        """Sessions that could start where their tensors are, if that was not kept for the make's keeper."""
        self._leases: dict[str, Lease] = {}
        """Leases that are open or closing."""
        self._parkings: dict[str, Parking] = {}
        """Stretches of parked time that go on."""
        self._revocable = Preemptible()
        """Leases that a higher priority may take."""
        self._revoked: dict[str, Lease] = {}
        """Leases that are being taken back."""
        self._roused: dict[Account, None] = {}
        """Accounts that the event at hand may have given room."""
        self._back: dict[Lane, int] = {}
        """By lane that requests returned to from a bench: a place is looked for there once the queue is shorter than this."""
        self._due: dict[str, Node] = {}
        """Nodes whose leases are taken back at a time."""
        self._overfull: dict[str, str] = {}
        """Sessions that end because they may not be parked, each with what it is told."""
        self._whys: dict[tuple[Lane, str], Why] = {}
        """Why those of a lane and a tenant wait, as of the event at hand."""
        self._awaited: dict[str, Session] = {}
        """Sessions that waited when the pool before this one stopped: nobody is given anything before they have asked again."""
        self._awaited_until_ns = 0
        self._groups: dict[str, Group] = {}
        """Of sessions whose leases are granted together, by name."""
        self._regroup: dict[Group, None] = {}
        """Groups that the event at hand may have changed."""
        self._orders = 0
        self._launches = 0
        self._on: dict[type[Any], Callable[[Any], None]] = {}
        """What handles an event, by its type."""
        self._on_client: dict[type[Any], Callable[[Session, Any], None]] = {}
        """What handles a message of a session's client."""
        self._on_worker: dict[type[Any], Callable[[Worker, Any], None]] = {}
        """What handles a message of a worker."""

    def _take_place(self, place: Place, session: Session, memory_bytes: int) -> None:
        self.fleet.take(place, session, memory_bytes)
        for account in self.accounts.both(session):
            account.hold(len(place.devices) * place.share_milli, self._now)

    def _give_place(self, place: Place, session: Session) -> None:
        self.fleet.leave(place, session)
        for account in self.accounts.both(session):
            account.hold(-len(place.devices) * place.share_milli, self._now)
            if account.benched:
                self._roused[account] = None

    def _touch(self, session: Session) -> None:
        self._set_state(session, session.doing)

    def _set_state(self, session: Session, state: SessionState) -> None:
        if session.state != state:
            session.state = state
            session.since_ns, session.since_unix_ns = self._now, self._now + self._unix_offset_ns
        self._show(session)

    def _show(self, session: Session) -> None:
        self._out.append(Show(session))
        self._changed[session] = None
        if session.group is not None:
            self._regroup[session.group] = None

    def _keep(self, session: Session) -> None:
        self._out.append(Keep(session))
        self._changed[session] = None

    def _tell(self, session: str, message: wire.ToClient) -> None:
        self._out.append(TellClient(session, message))

    def _note(self, action: str, **fields: str | int) -> None:
        self._out.append(Note(action, fields))
