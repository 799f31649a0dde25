"""The worker's side of the worker link: what the pool orders, and what it is told."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from forebay_wire import messages
from forebay_wire.messages import DeviceModel, FromWorker, MessageError, ToWorker
from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import broadcast
from websockets.exceptions import InvalidHandshake, InvalidStatus
from websockets.frames import Frame, Opcode

from forebay_worker import LinkLost, LinkRefused
from forebay_worker.energy import EnergyMeter
from forebay_worker.pytorch import SeenDevice
from forebay_worker.user_code.programs import NOT_OFFERED

if TYPE_CHECKING:
    from forebay_worker._executor import Event, Server
    from forebay_worker.remote.host import ProcessHost

LOG = logging.getLogger("forebay.worker")

CONNECT_SECONDS_MAX = 15.0
RELINK_SECONDS_MAX = 3.0
"""How long one pool of several is waited for when the link is to be made again."""
RETRY_SECONDS = 0.2
"""Between attempts to link up."""
PING_SECONDS = 1.0
PING_SECONDS_MAX = 4.0
"""A pool that answers no ping for so long is taken for stopped: another may lead by then."""
LATE_BEATS = 3
"""No more than so many heartbeats pass between two, unless the worker itself stands still."""
WORD_SECONDS = 5.0
"""How long a pool is given to end this worker once that of another member of a process group is gone."""
UNASSIGNED_HEARTBEAT_SECONDS = 5.0
"""Heartbeats of a worker that serves no session yet."""


@dataclass(frozen=True)
class Worker:
    """Who this worker is."""

    name: str
    device: SeenDevice
    torch: str
    runtimes: tuple[messages.Runtime, ...] | None = None
    """What it serves; None: all."""

    def ready(self, address: str, certificate: str) -> messages.Ready:
        """The link's first message. ``certificate``: empty where it has none."""
        model = DeviceModel(kind=self.device.kind, model=self.device.model)
        return messages.Ready(
            worker=self.name, address=address, torch=self.torch, device=model, pid=os.getpid(), certificate=certificate or None,
            runtimes=self.runtimes,
        )  # fmt: skip


def message_of(event: Event, memory_bytes: int, energy_mj: int | None) -> FromWorker | None:
    """What the pool is told of an event of the executor, and what it holds and has drawn by now; None for what only the log is told."""
    kind, epoch, number, spilled, _ = event
    match kind:
        case "drained":
            return messages.Drained(epoch=epoch, memory_bytes=memory_bytes, energy_mj=energy_mj)
        case "idle":
            return messages.Idle(epoch=epoch, idle_ns=number, memory_bytes=memory_bytes, energy_mj=energy_mj)
        case "starved":
            return messages.Starved()
        case "parked":
            return messages.Parked(bytes=number, spilled_bytes=spilled)
        case "restored":
            return messages.Restored()
        case "left":
            return left_of(event)
        case "kept":
            return messages.Kept(number=epoch, bytes=number)
        case "copied":
            session, _, why = event[-1].partition(" ")
            return messages.Copied(session=session, bytes=number, why=why)
        case "waiting":
            return messages.Waiting(epoch=epoch, idle_ns=number)
        case "working":
            return messages.Working(epoch=epoch)
        case "closed":
            return messages.Closed(epoch=epoch, memory_bytes=memory_bytes, idle_ns=number, energy_mj=energy_mj)
        case "client_away" | "client_back":
            return messages.ClientCut(back=kind == "client_back")
        case "client_gone":
            return messages.ClientGone()
        case "unconfined":
            return messages.Unconfined(why=event[-1])
    return None


def left_of(event: Event) -> messages.Left:
    """Where the image of a session is that left."""
    _, image, number, spilled, text = event
    address, ticket, certificate = text.rsplit(" ", 2)
    return messages.Left(bytes=number, spilled_bytes=spilled, image=image, address=address, ticket=ticket, certificate=certificate or None)


def source_of(source: messages.Source) -> tuple[str, bytes, str]:
    """As the executor takes it."""
    return source.address, bytes.fromhex(source.ticket), source.certificate or ""


@dataclass
class Standing:
    """How the worker stands with its session: what it says when it comes back from a broken link."""

    session: str | None = None
    ticket: str | None = None
    """What the session's client shows."""
    memory_limit_bytes: int | None = None
    epoch: int | None = None
    """Of the lease that is open, from the order to open it until the executor says that it is over."""
    ended: tuple[int, Literal["drained", "idle"], int, int] | None = None
    """The last lease that is over: its epoch, why, for how long it was idle, and when it ended, in monotonic nanoseconds."""
    starved: bool = False
    client_away: bool = False
    client_gone: bool = False
    parked_bytes: int | None = None
    assigned: bool = False
    left: messages.Left | None = None
    leader: int = 0
    """The highest epoch of a leading pool that was seen."""

    def opened(self, order: messages.Open) -> None:
        self.epoch, self.starved, self.parked_bytes = order.epoch, False, None
        self.memory_limit_bytes = order.memory_limit_bytes

    def heard(self, event: Event, now_ns: int) -> None:
        """Notes what the executor said."""
        kind, epoch, number, _, _ = event
        match kind:
            case "assigned":
                self.assigned = True
            case "drained":
                self.epoch, self.ended = None, (epoch, "drained", 0, now_ns)
            case "idle":
                self.epoch, self.ended = None, (epoch, "idle", number, now_ns)
            case "closed":
                if self.epoch is not None:
                    self.ended = (self.epoch, "drained", 0, now_ns)
                self.epoch = None
            case "starved":
                self.starved = True
            case "parked" if self.epoch is None:  # else an order to open came since, which brings them back
                self.parked_bytes = number
            case "restored":
                self.parked_bytes = None
            case "left":
                self.epoch, self.left = None, left_of(event)
            case "client_away" | "client_back":
                self.client_away = kind == "client_away"
            case "client_gone":
                self.client_gone = True


class Connection(ClientConnection):
    """A WebSocket that hands on each message in the turn of the loop that read it: no task waits for it, since an order that has to wake
    one costs as much again."""

    def __init__(self, hear: Callable[[Connection, str | bytes], None], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.over: asyncio.Future[None] = self.loop.create_future()
        """Done when a pool ended the session, or with what it did wrong."""
        self._hear = hear

    def process_event(self, event: Any) -> None:
        if not isinstance(event, Frame) or event.opcode not in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            super().process_event(event)
        elif not self.over.done():
            try:
                self._hear(self, bytes(event.data))
            except Exception as error:  # to whoever converses here; raised, it would end in the loop's log
                self.over.set_exception(error)

    def say(self, message: FromWorker) -> None:
        """Sends it, unless the link is about to end. Never waits: a pool that does not read answers no ping either."""
        broadcast((self,), message.encode())


class Calls:
    """For how long one call of an operator has been running, by looks at it now and then.

    A look that comes late tells that the worker itself stood still, with its call: that does not count.
    """

    def __init__(self) -> None:
        self._number = 0
        self._lasts = 0.0
        self._looked = 0.0

    def seen(self, running: tuple[int, str] | None, now: float, pause_seconds_max: float) -> tuple[str, float]:
        """The operator whose call also ran at the look before, and for how long it has been seen; empty where there is none.

        Looks come within ``pause_seconds_max``.
        """
        number, operator = running or (0, "")
        passed, self._looked = min(pause_seconds_max, now - self._looked), now
        self._lasts = self._lasts + passed if number and number == self._number else 0.0
        self._number = number
        return (operator, self._lasts) if self._lasts else ("", 0.0)


class WorkerLink:
    """Carries orders to the executor and its events to the pool, until the session ends, or the link is lost for good.

    While there is no link the executor goes on with what it was ordered, and :class:`Standing` remembers what the pool must hear.
    """

    def __init__(
        self,
        worker: Worker,
        executor: Server,
        energy: EnergyMeter,
        resume_seconds: float = 0.0,
        heard: Callable[[], None] | None = None,
        keepers: Sequence[Callable[[Path], None]] = (),
        process_host: Callable[[messages.ProcessBounds, str], ProcessHost] | None = None,
        ready: Callable[[], None] | None = None,
    ) -> None:
        """``heard`` is called whenever the executor rings; ``keepers`` before a session, with the folder of its tenant's libraries.
        ``process_host`` makes what takes the executor's place for a session that is a process, of its bounds and its ticket; ``ready`` is
        called once the pool was first told that the worker is."""
        self._worker = worker
        self._server = executor
        self._hosted: ProcessHost | None = None
        self._executor: Server | ProcessHost = executor
        """Who carries out the pool's orders: the server of calls, or in its place what runs a process."""
        self._process_host = process_host
        self._energy = energy
        self._heard = heard
        self._keepers = keepers
        self._ready = ready
        self._resume_seconds = resume_seconds
        self._heartbeat_seconds = UNASSIGNED_HEARTBEAT_SECONDS
        self._calls = Calls()
        self._assigned = asyncio.Event()
        self._standing = Standing()
        self._connection: Connection | None = None
        self._linked = False
        """Whether it ever had a link."""
        self._failed: asyncio.Future[None]
        """Done where the executor failed."""

    async def run(self, urls: Sequence[str], token: str) -> None:
        """Returns when the pool ends the session. Raises LinkLost when no pool took the worker back in time, or the executor failed.

        ``urls``: where pools may be; they are tried in turn.
        """
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        links = asyncio.create_task(self._keep_linked(urls, token))
        loop.add_reader(self._executor.event_descriptor, self._tell_events)
        try:
            done, _ = await asyncio.wait((self._failed, links), return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            loop.remove_reader(self._executor.event_descriptor)
            if self._hosted is not None:
                self._hosted.finish()
            self._failed.cancel()
            links.cancel()
            await asyncio.gather(links, return_exceptions=True)

    async def _keep_linked(self, urls: Sequence[str], token: str) -> None:
        """Links up again and again; returns when a pool ended the session."""
        lost_at = time.monotonic()
        for url in itertools.cycle(urls):
            try:
                connection = await self._connect(url, token)
                async with connection:
                    await self._converse(connection)
                    return
            except LinkRefused:
                raise
            except LinkLost as lost:
                if self._connection is not None:
                    LOG.warning("%s", lost, extra={"action": "link_lost", "worker": self._worker.name})
                    self._connection, lost_at = None, time.monotonic()
                if time.monotonic() - lost_at >= self._resume_seconds:
                    raise
            await asyncio.sleep(RETRY_SECONDS)

    async def _connect(self, url: str, token: str) -> Connection:
        try:
            connection = await connect(
                url,
                additional_headers={"Authorization": f"token {token}"},
                open_timeout=RELINK_SECONDS_MAX if self._linked else CONNECT_SECONDS_MAX,
                max_size=messages.MESSAGE_BYTES_MAX,
                compression=None,
                proxy=None,
                ping_interval=PING_SECONDS if self._resume_seconds else None,
                ping_timeout=PING_SECONDS_MAX,
                create_connection=partial(Connection, self._hear),  # type: ignore[arg-type]  # whatever makes one will do
            )
        except InvalidStatus as error:
            status = error.response.status_code
            if status == HTTPStatus.UNAUTHORIZED:
                raise LinkRefused(f"the pool at {url} does not know this worker any more") from None
            raise LinkLost(f"the pool at {url} does not take the worker link: HTTP status {status}") from None
        except (OSError, InvalidHandshake, TimeoutError) as error:
            raise LinkLost(f"the pool at {url} cannot be reached: {error}") from None
        return cast(Connection, connection)

    def _resume(self) -> messages.ResumeWorker:
        standing, now_ns = self._standing, time.monotonic_ns()
        ended = None
        if standing.ended is not None:
            epoch, reason, idle_ns, at_ns = standing.ended
            ended = messages.Ended(epoch=epoch, reason=reason, idle_ns=idle_ns, ago_ns=now_ns - at_ns)
        return messages.ResumeWorker(
            worker=self._worker.name,
            address=self._executor.address,
            certificate=self._executor.certificate or None,
            runtimes=self._worker.runtimes,
            session=standing.session,
            epoch=standing.epoch,
            ended=ended,
            starved=standing.starved,
            client_away=standing.client_away,
            client_gone=standing.client_gone,
            memory_bytes=self._executor.statistics()[1],
            parked_bytes=standing.parked_bytes,
            assigned=standing.assigned,
            left=standing.left,
            memory_limit_bytes=standing.memory_limit_bytes,
            ticket=standing.ticket,
        )

    async def _converse(self, connection: Connection) -> None:
        """Returns when the pool ended the session. Raises LinkLost, LinkRefused."""
        tasks = [asyncio.create_task(connection.wait_closed()), asyncio.create_task(self._heartbeat(connection))]
        try:
            await asyncio.wait((connection.over, *tasks), return_when=asyncio.FIRST_COMPLETED)
            if not connection.over.done():
                raise LinkLost(f"the pool closed the worker link: {connection.protocol.close_exc}")
            connection.over.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _hear(self, connection: Connection, text: str | bytes) -> None:
        try:
            message = messages.to_worker(text)
        except MessageError as error:
            raise LinkLost(f"the pool sent what is not the worker link: {error}") from None
        if isinstance(message, messages.Lead):
            self._follow(message, connection)
        elif self._connection is not connection:
            raise LinkLost(f"the pool sent {message.type} before it said that it leads")
        elif isinstance(message, messages.End):
            LOG.info("the session is over", extra={"action": "end", "worker": self._worker.name})
            connection.over.set_result(None)
        else:
            self._obey(message)

    def _follow(self, lead: messages.Lead, connection: Connection) -> None:
        """A pool whose time is over gets neither a word nor obedience."""
        if lead.epoch < self._standing.leader:
            raise LinkLost(f"this pool led with epoch {lead.epoch}, and {self._standing.leader} was seen")
        self._standing.leader = lead.epoch
        self._connection = connection  # what happens from here on is sent, what happened before is in the first message
        first = self._resume() if self._linked else self._worker.ready(self._executor.address, self._executor.certificate)
        connection.say(first)
        if not self._linked and self._ready is not None:
            self._ready()
        self._linked = True

    def _obey(self, message: ToWorker) -> None:
        executor = self._executor
        match message:
            case messages.Assign():
                self._refuse_second()
                if message.process is None:
                    self._assign(message)
                else:
                    self._host(message.process, message.ticket)
                self._heartbeat_seconds = message.heartbeat_seconds
                self._standing.session, self._standing.ticket = message.session, message.ticket
                self._standing.memory_limit_bytes = message.memory_limit_bytes
                self._assigned.set()
            case messages.Carry():
                self._refuse_second()
                images = (message.images or "", message.images_fill_max, message.image)
                self._server.carry(source_of(message.source), message.bytes_max, message.bytes_per_second_max, *images)
                self._heartbeat_seconds, self._standing.session = message.heartbeat_seconds, message.session
                self._assigned.set()
            case _ if not self._assigned.is_set():
                raise LinkRefused(f"the pool sent {message.type} to a worker without a session")
            case messages.Open():
                self._standing.opened(message)
                self._energy.turn(opened=True)
                executor.open(message.epoch, message.memory_limit_bytes)
            case messages.Close():
                executor.close(message.epoch)
            case messages.Copy():
                self._server.copy(message.session, message.checkpoint, message.images or "", message.images_fill_max)
            case messages.Park():
                executor.park(message.host_bytes_max, message.spill_bytes_max)
            case messages.Restore():
                self._standing.parked_bytes = None
                executor.restore()
            case messages.End() | messages.Lead():
                pass

    def _assign(self, order: messages.Assign) -> None:
        """The session sends calls."""
        if order.runtimes is not None and "xla" not in order.runtimes:
            self._server.take_programs(NOT_OFFERED, None)
        if order.libraries is not None:
            for keep_in in self._keepers:
                keep_in(Path(order.libraries))
        source = None if order.source is None else source_of(order.source)
        if order.rates is not None:
            with contextlib.suppress(RuntimeError, ValueError):  # these are none: it measures
                self._server.take_rates(bytes.fromhex(order.rates))
        images = (order.images or "", order.images_fill_max, order.image)
        seconds = order.idle_release_seconds
        self._server.assign(bytes.fromhex(order.ticket), order.memory_limit_bytes, seconds, source, *images, WORD_SECONDS, order.outside)

    def _host(self, bounds: messages.ProcessBounds, ticket: str) -> None:
        """The session is a process."""
        if self._process_host is None:
            raise LinkRefused("the pool gave a process to a worker that runs none")
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._executor.event_descriptor)
        self._executor = self._hosted = host = self._process_host(bounds, ticket)
        loop.add_reader(host.event_descriptor, self._tell_events)
        host.begin()

    def _refuse_second(self) -> None:
        if self._assigned.is_set():
            raise LinkRefused("the pool gave this worker a second session")

    def _tell_events(self) -> None:
        events = self._executor.take_events()  # before anything else is taken: what comes after it rings again
        if self._heard is not None:
            self._heard()
        for event in events:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        kind, text = event[0], event[-1]
        LOG.info(kind if kind == "left" else text or kind, extra={"action": kind, "worker": self._worker.name})
        if kind == "failed":
            if not self._failed.done():
                self._failed.set_exception(LinkLost(f"the executor failed: {text}"))
            return
        self._standing.heard(event, time.monotonic_ns())
        if self._standing.epoch is None:
            self._energy.turn(opened=False)
        message = self._message_of(event)
        if message is not None and self._connection is not None:
            self._connection.say(message)  # what a link that ends does not carry is noted, and said by the next

    def _message_of(self, event: Event) -> FromWorker | None:
        if event[0] == "assigned":
            session, hosted = self._standing.session or "", self._hosted
            if hosted is not None:
                return messages.Assigned(session=session, door=hosted.address, certificate=hosted.certificate or None)
            return messages.Assigned(session=session, rates=self._server.rates.hex() or None)
        return message_of(event, self._executor.statistics()[1], self._energy.drawn_mj)

    async def _heartbeat(self, connection: Connection) -> None:
        while True:
            try:
                async with asyncio.timeout(self._heartbeat_seconds):  # wait_for of Python 3.11 may swallow a cancellation
                    await self._assigned.wait()
                await asyncio.sleep(self._heartbeat_seconds)
            except TimeoutError:
                pass
            if self._connection is connection:
                connection.say(self._beat())

    def _beat(self) -> messages.Heartbeat:
        epoch, memory_bytes, busy_ns, commands = self._executor.statistics()
        operator, seconds = self._calls.seen(self._executor.running(), time.monotonic(), LATE_BEATS * self._heartbeat_seconds)
        return messages.Heartbeat(
            epoch=epoch,
            memory_bytes=memory_bytes,
            busy_ns=busy_ns,
            commands=commands,
            operator=operator,
            operator_seconds=seconds,
            energy_mj=self._energy.drawn_mj,
        )
