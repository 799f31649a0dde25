"""Carries the state machine's instructions out, and brings it what happens."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections.abc import Callable, Collection
from typing import Any, Protocol

from forebay_wire.messages import Assign, Carry, Copy, Message, ProcessBounds, Refused

from forebay_pool.errors import InvariantBroken
from forebay_pool.hosts.image_folders import ImageFolders
from forebay_pool.hosts.launcher import Launcher
from forebay_pool.hosts.library_folders import LibraryFolders
from forebay_pool.hosts.probes import Probe
from forebay_pool.hosts.process_identity import process_space
from forebay_pool.machine.state_machine import StateMachine
from forebay_pool.model.attention import Attention
from forebay_pool.model.events import Event, Look, PricesSet, ShutDown, StoreChanged, Tick, WorkerAway, WorkerGone
from forebay_pool.model.instructions import (
    Attest,
    Confirm,
    DropImages,
    Forget,
    Instruction,
    Keep,
    Kill,
    Launch,
    Meter,
    MeterParked,
    Note,
    Scale,
    Show,
    TellClient,
    TellWorker,
)
from forebay_pool.model.node_events import DeviceHealth
from forebay_pool.model.snapshot import WorkerSnapshot, lease_snapshot, parking_snapshot, session_snapshot
from forebay_pool.model.types import Lease, Parking, Session
from forebay_pool.store.writer import Writer
from forebay_pool.views.event_stream import EventStream
from forebay_pool.views.metrics import Metrics
from forebay_pool.views.receipts import PriceVersion, Receipts

TICK_SECONDS = 0.25
LATE_SECONDS = 1.0
"""A tick that is later than this says that the pool stood still: its process was stopped, its host is overloaded or was moved."""
LINK_SECONDS_MAX = 1.0
"""How long an ended worker's last messages are waited for."""

log = logging.getLogger(__name__)


class Link(Protocol):
    """A WebSocket to a client or a worker."""

    def send(self, message: Message) -> None: ...

    def leave(self) -> None:
        """Closes the link; the peer finds whoever leads next."""

    def check(self) -> None:
        """Pings, and closes the link of a peer that was silent for too long."""


class ClientLink(Link, Protocol):
    """The link of a client, who came with a token."""

    prices_told: set[PriceVersion] | None
    """The receipts of prices that went over it; None where the client keeps no receipts."""

    async def check_token(self) -> None:
        """Ends the session if the token is no longer good."""


class Shell:
    """Owns the state machine and the links. Everything here runs on the event loop's thread."""

    def __init__(
        self,
        machine: StateMachine,
        writer: Writer,
        metrics: Metrics,
        receipts: Receipts,
        on_broken: Callable[[], None],
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.machine = machine
        self.metrics = metrics
        self.receipts = receipts
        self.board = EventStream(clock_ns)
        self.clock_ns = clock_ns
        self._attention = Attention(clock_ns, TICK_SECONDS, LATE_SECONDS)
        self.clients: dict[str, ClientLink] = {}
        self.workers: dict[str, Link] = {}
        self.launcher: Launcher | None = None
        self.leads: Callable[[], bool] = lambda: True
        """Whether no other pool can lead at this moment: nobody is given up or killed while that is not sure."""
        self.on_scale: Callable[[Scale], None] = lambda scale: None
        """Hears how many nodes there should be, where some come and go."""
        self.process_bounds: ProcessBounds | None = None
        """What a process beside a device may take of its host."""
        self.library_folders: LibraryFolders | None = None
        """Where workers keep libraries; None: nowhere."""
        self.image_folders = ImageFolders({}, "")
        """Where workers keep images of sessions."""
        self.images_fill_max = 1.0
        """The part of the file system of an image that may be in use once it is there."""
        self._writer = writer
        self._on_broken = on_broken
        self._left = False
        self._tokens: dict[str, str] = {}
        self._gone: dict[str, asyncio.Event] = {}
        self._exits: set[asyncio.Task[None]] = set()
        self._do: dict[type[Any], Callable[[Any], None]] = {
            TellClient: self._tell_client,
            Attest: self._attest,
            TellWorker: self._tell_worker,
            Launch: self._launch,
            Kill: self._kill,
            Meter: self._meter,
            MeterParked: self._meter_parked,
            Keep: self._keep,
            Forget: self._forget,
            DropImages: lambda instruction: self._drop_images(instruction.secret, {instruction.node}),
            Confirm: self._confirm,
            Show: self._show,
            Scale: lambda instruction: self.on_scale(instruction),
            Note: self._note,
        }

    @property
    def attentive_seconds(self) -> float:
        """A clock that stands still while the pool does: by it others' silence is judged."""
        return self._attention.seconds

    def apply(self, event: Event, now_ns: int | None = None) -> None:
        """Hands the event to the state machine and does what it says. A broken invariant ends the pool: it must not go on billing."""
        if self._left:
            return
        try:
            instructions: list[Instruction] = self.machine.handle(event, self.clock_ns() if now_ns is None else now_ns)
        except InvariantBroken as error:
            log.critical("%s", error, extra={"action": "invariant_broken"})
            self._on_broken()
            return
        self.metrics.events.inc()
        for instruction in instructions:
            self._do[type(instruction)](instruction)

    # Instructions

    def _tell_client(self, instruction: TellClient) -> None:
        if isinstance(instruction.message, Refused):
            self.metrics.refusals.labels(instruction.message.code).inc()
        link = self.clients.get(instruction.session)
        if link is not None:
            link.send(instruction.message)

    def _attest(self, instruction: Attest) -> None:
        lease, tariff = instruction.lease, self.machine.fleet.tariff
        link, currency = self.clients.get(lease.session.id), tariff.currencies.get(lease.session.tenant, tariff.currency)
        if link is not None and link.prices_told is not None and currency is not None:
            link.send(self.receipts.of_lease(lease, instruction.closed, currency, link.prices_told))

    def _tell_worker(self, instruction: TellWorker) -> None:
        link = self.workers.get(instruction.worker)
        if link is not None:
            link.send(self._with_folders(instruction.worker, instruction.message))

    def _with_folders(self, worker: str, message: Message) -> Message:
        """A worker is told the folder of its session's images, and with an assignment that of the session's tenant, and what a process may
        take of its host."""
        session = self.machine.sessions.get(message.session) if isinstance(message, Assign | Carry | Copy) else None
        if session is None:
            return message
        fleet = self.machine.fleet
        policy = fleet.policy.images_of(fleet.flavors[session.flavor].images)
        assigned = fleet.workers.get(worker)
        hosts = len({device.node for device in assigned.devices}) if assigned is not None else 0
        images = self.image_folders.of(session.secret, policy, hosts)
        folders: dict[str, Any] = {"images": images, "images_fill_max": self.images_fill_max}
        if isinstance(message, Assign):
            folders["process"] = self._process_bounds_of(session) if session.client.runs_process else None
            folders["libraries"] = None if self.library_folders is None else self.library_folders.of(session.tenant)
        return message.model_copy(update=folders)

    def _process_bounds_of(self, session: Session) -> ProcessBounds | None:
        """Contents of files are one user's alone: who knows the hash of another's file is not to get it."""
        bounds, folders = self.process_bounds, self.library_folders
        if bounds is None:
            return None
        egress = self.machine.fleet.flavors[session.flavor].egress
        own = {} if egress is None else {"egress": egress}
        contents = {} if folders is None else {"contents": folders.of(f"{session.tenant}\n{session.user}")}
        return bounds.model_copy(update=own | contents)

    def _launch(self, instruction: Launch) -> None:
        token = secrets.token_hex(32)
        self._tokens[_digest(token)] = instruction.worker
        self._gone[instruction.worker] = asyncio.Event()
        self.metrics.worker_started(instruction.worker)
        if self.launcher is not None:
            self.launcher.start(instruction.worker, instruction.devices, token, instruction.programs)

    def worker_started(self, worker: str, devices: tuple[str, ...], token: str, pid: int, started: int) -> None:
        """The worker has a process: it is kept, so that a successor of this pool can take it over."""
        self._writer.keep_worker(worker, WorkerSnapshot(worker, devices, _digest(token), process_space(), pid, started))

    def adopt(self, worker: WorkerSnapshot) -> None:
        """A worker that another pool started may link up here."""
        self._tokens[worker.token] = worker.id
        self._gone[worker.id] = asyncio.Event()
        if self.launcher is not None:
            self.launcher.adopt(worker)

    def _kill(self, instruction: Kill) -> None:
        if self._left or self.launcher is None:
            return
        if self.leads():
            self.launcher.kill(instruction.worker)
        else:
            asyncio.get_running_loop().call_later(TICK_SECONDS, self._kill, instruction)

    def _meter(self, instruction: Meter) -> None:
        self._writer.put(instruction.record)
        self.metrics.metered(instruction.record)

    def _meter_parked(self, instruction: MeterParked) -> None:
        self._writer.put(instruction.record)

    def _forget(self, instruction: Forget) -> None:
        self._writer.keep_parking(instruction.parking, None)

    def _keep(self, instruction: Keep) -> None:
        record = instruction.record
        if isinstance(record, Parking):
            self._writer.keep_parking(record.id, parking_snapshot(record))
            return
        if isinstance(record, Lease):
            if record.state != "closed":
                self._writer.keep_lease(lease_snapshot(record))
            return
        over = record.state in ("lost", "ended")
        self._writer.keep_session(record.id, None if over else session_snapshot(record))
        if over:
            self._drop_images(record.secret, record.replay.nodes)

    def _drop_images(self, secret: bytes, nodes: Collection[str]) -> None:
        if self.launcher is not None:
            folders = self.image_folders.all_of(secret)
            for node in nodes:
                self.launcher.remove(node, folders)

    def _confirm(self, instruction: Confirm) -> None:
        self._writer.confirm({lease.id: lease.confirmed_ns - lease.opened_ns for lease in instruction.leases})

    def _show(self, instruction: Show) -> None:
        record = instruction.record
        if isinstance(record, Lease) and record.state == "open":
            self.metrics.lease_opened(record)
        self.board.mark(record)

    def _note(self, instruction: Note) -> None:
        if instruction.action == "worker_failed":
            self.metrics.workers_failed.inc()
        elif instruction.action == "worker_silent":
            self.metrics.heartbeats_lost.labels("worker").inc()
        elif instruction.action == "session_lost":
            self.metrics.sessions_lost.inc()
        elif instruction.action == "device_alert":
            self.metrics.device_alerts.labels(self.machine.fleet.seats[str(instruction.fields["device"])].device.model).inc()
        text = " ".join(f"{name}={value}" for name, value in instruction.fields.items())
        log.info("%s %s", instruction.action, text, extra={"action": instruction.action, **instruction.fields})

    # Workers' processes

    def worker_of(self, token: str) -> str | None:
        """The worker that was started with this token."""
        return self._tokens.get(_digest(token))

    def worker_linked(self, worker: str, link: Link) -> None:
        """The worker is heard on this link from here on."""
        self.workers[worker] = link
        if worker in self._gone:
            self._gone[worker].clear()

    def link_closed(self, worker: str, link: Link) -> None:
        """The worker's link ended, and all it said was heard. A link that another took the place of is nobody's loss."""
        if self.workers.get(worker) is not link:
            return
        del self.workers[worker]
        if worker in self._gone:
            self._gone[worker].set()
        self.apply(WorkerAway(worker))

    def worker_exited(self, worker: str, cause: str) -> None:
        """The worker's process ended; what it said before is heard first."""
        task = asyncio.create_task(self._bury(worker, cause))
        self._exits.add(task)
        task.add_done_callback(self._exits.discard)

    async def _bury(self, worker: str, cause: str) -> None:
        if worker in self.workers:
            try:
                await asyncio.wait_for(self._gone[worker].wait(), LINK_SECONDS_MAX)
            except TimeoutError:
                log.warning("the link of ended worker %s stays open", worker, extra={"action": "link_stays", "worker": worker})
        del self._gone[worker]
        self.metrics.worker_gone(worker)
        self._tokens = {digest: name for digest, name in self._tokens.items() if name != worker}
        self._writer.keep_worker(worker, None)
        log.info("%s %s", worker, cause, extra={"action": "worker_exited", "worker": worker})
        self.apply(WorkerGone(worker, cause))

    # Time

    async def tick(self) -> None:
        """Lets time pass for the state machine, until cancelled."""
        self._attention.begin()
        missed_ns = 0
        while True:
            now_ns, late_ns = self._attention.look()
            missed_ns += late_ns
            if self.leads():
                self.apply(Tick(time.time_ns() - time.monotonic_ns(), missed_ns), now_ns)
                missed_ns = 0
            await asyncio.sleep(TICK_SECONDS)

    async def watch_health(self, probe: Probe, period_seconds: float) -> None:
        """Tells the state machine what the probe reads, until cancelled."""
        while True:
            try:
                readings = await asyncio.to_thread(probe.read)
            except Exception as error:  # a driver's library may raise anything, and devices compute without it
                log.warning("devices cannot be read: %r", error, extra={"action": "probe_failed"})
                readings = []
            self.metrics.readings.hear(probe, readings)
            for reading in readings:
                self.apply(DeviceHealth(reading))
            await asyncio.sleep(period_seconds)

    async def check_links(self, period_seconds: float) -> None:
        while True:
            await asyncio.sleep(period_seconds)
            for link in list(self.clients.values()):
                link.check()

    async def check_tokens(self, period_seconds: float) -> None:
        while True:
            await asyncio.sleep(period_seconds)
            for link in list(self.clients.values()):
                await link.check_token()

    async def flush_board(self, period_seconds: float) -> None:
        while True:
            await asyncio.sleep(period_seconds)
            if self.machine.line_changed:
                self.apply(Look())
            self.board.flush()

    def prices_changed(self, event: PricesSet) -> None:
        if event.tariff != self.machine.fleet.tariff:
            self.apply(event)

    def store_changed(self, accepting: bool) -> None:
        action = "store_accepts" if accepting else "store_backlog_full"
        log.log(logging.INFO if accepting else logging.ERROR, "%s unwritten=%d", action, self._writer.backlog, extra={"action": action})
        self.apply(StoreChanged(accepting))

    def leave(self) -> None:
        """Says no more to anybody, and lets go of all links and workers."""
        self._left = True
        for link in (*self.clients.values(), *self.workers.values()):
            link.leave()
        if self.launcher is not None:
            self.launcher.leave()

    async def shut_down(self) -> None:
        """Closes every lease and ends every worker, within the workers' grace."""
        self.apply(ShutDown())
        deadline = time.monotonic() + self.machine.limits.end_grace_seconds
        while self.machine.fleet.workers and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        if self.launcher is not None:
            await self.launcher.close()


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
