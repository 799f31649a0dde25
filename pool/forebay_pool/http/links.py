"""The two WebSockets of the pool: session link and worker link."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
import time
from typing import TYPE_CHECKING, Any

from forebay_service.handler import token_in
from forebay_service.identity import COMPUTE, IdentityRefused, IdentityUnavailable
from forebay_service.peers.front import Front
from forebay_service.peers.rate_limit import Crowded, Peer
from forebay_service.peers.tls import is_open
from forebay_wire import messages as wire
from forebay_wire.message_parts import RECEIPTS_HEADER
from pydantic import ValidationError
from tornado.httputil import HTTPHeaders
from tornado.ioloop import IOLoop
from tornado.websocket import WebSocketClosedError, WebSocketProtocol

from forebay_pool.errors import RequestRefused
from forebay_pool.http.handler import Context
from forebay_pool.http.web_sockets import SocketApi
from forebay_pool.machine.base.messages import resume_key
from forebay_pool.model.causes import Cause, told
from forebay_pool.model.events import (
    ClientSaid,
    SessionAway,
    SessionDismissed,
    SessionGrouped,
    SessionJoined,
    SessionLeft,
    SessionOutside,
    SessionReplays,
    SessionRuns,
    WorkerSaid,
    WorkerUnlinked,
)
from forebay_pool.model.types import Session
from forebay_pool.views.receipts import PriceVersion

if TYPE_CHECKING:
    from tornado.concurrent import Future

SILENCE_PINGS = 3
HELLO_SECONDS_MAX = 30.0
"""How long a peer that links up has to say who it is."""
FRAME_SECONDS = 0.0002
"""What a frame takes of the pool's time beside what it has the pool do."""
CROWDED_SECONDS = 0.5
PENDING_MESSAGES_MAX = 1_000
"""A peer that leaves this many messages unread is disconnected."""
CLOSE_POLICY = 1008
CLOSE_GOING_AWAY = 1001
CLOSE_TOO_BIG = 1009
PROBLEM_CHARACTERS_MAX = 1024
"""Of what is wrong with a message that cannot be read."""
VERSION_DIGITS_MAX = 9

log = logging.getLogger(__name__)


class _LinkHandler(SocketApi):
    """What both links share: sending without waiting, bounded, and without Nagle's delay."""

    def initialize(self, context: Context) -> None:
        super().initialize(context)
        self._pending = 0
        self._over = False
        self._opened = False
        self._breach = False
        self._peer: Peer | None = None
        """Whose turn it must be; None: of one that is not slowed down."""
        self._worked_seconds = 0.0
        """Since its last turn."""

    def open(self, *args: str, **kwargs: str) -> None:
        self.set_nodelay(True)
        self._opened = True

    def on_close(self) -> None:
        self._over = True
        if self._opened:  # a peer may go before
            self.closed()

    def closed(self) -> None:
        """The link that was open is over."""
        raise NotImplementedError

    def get_websocket_protocol(self) -> WebSocketProtocol | None:
        """Tornado's, which ends a link by itself when a message is far too long: that is a breach, and no accident of the network."""
        protocol = super().get_websocket_protocol()
        if protocol is not None:
            close = protocol.close

            def noted(code: int | None = None, reason: str | None = None) -> None:
                self._breach = self._breach or code == CLOSE_TOO_BIG
                close(code, reason)

            protocol.close = noted  # type: ignore[method-assign]
            receive = protocol._receive_frame  # type: ignore[attr-defined]

            async def received() -> None:
                await receive()
                await self._take_turn()

            protocol._receive_frame = received  # type: ignore[attr-defined] # frames of all kinds, which Tornado gives no hook for
        return protocol

    async def _take_turn(self) -> None:
        """Waits for the turn that what it has just sent took; no more is read of it meanwhile."""
        front: Front | None = self.settings.get("front")
        if front is None or front.rate_limit is None or self._peer is None:
            return
        seconds, self._worked_seconds = FRAME_SECONDS + self._worked_seconds, 0.0
        while not self._over:
            try:
                await front.rate_limit.turn(self._peer, seconds)
            except Crowded:
                await asyncio.sleep(CROWDED_SECONDS)
            else:
                return

    def on_message(self, text: str | bytes) -> None:
        began = time.thread_time()
        try:
            self.hear(text)
        finally:
            self._worked_seconds += time.thread_time() - began

    def hear(self, text: str | bytes) -> None:
        """The peer says something."""
        raise NotImplementedError

    def send(self, message: wire.Message) -> None:
        if self._over:
            return
        try:
            sent: Future[None] = self.write_message(self.encoded(message))
        except WebSocketClosedError:
            return
        self._pending += 1
        sent.add_done_callback(self._sent)
        if self._pending > PENDING_MESSAGES_MAX:
            self.end(CLOSE_POLICY, "too many messages unread")
            IOLoop.current().add_callback(self.stalled)

    def encoded(self, message: wire.Message) -> str:
        """The message as this peer reads it."""
        return message.encode()

    def _sent(self, future: Future[None]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()

    def stalled(self) -> None:
        """The peer does not read: its link is closed."""

    def leave(self) -> None:
        self.end(CLOSE_GOING_AWAY, "another pool leads")

    def end(self, code: int, why: str) -> None:
        self._over = True
        self.close(code, why)


def causes_in(headers: HTTPHeaders) -> int:
    """The version of the catalogue of causes that a client says it has; 0 where it says none, or nothing that we understand."""
    offered = headers.get(wire.CAUSES_HEADER, "")
    return int(offered) if offered.isascii() and offered.isdigit() and len(offered) <= VERSION_DIGITS_MAX else 0


def group_in(headers: HTTPHeaders) -> wire.GroupMember | None:
    """Which one of a program's processes a client says it is; None where it says nothing, or nothing that we understand."""
    try:
        member = wire.GroupMember.model_validate_json(headers.get(wire.GROUP_HEADER, ""))
    except ValidationError:
        return None
    return member if member.rank < member.size else None


def _is_open(address: str) -> bool:
    """Whether a command stream goes over a network, if its worker speaks no TLS."""
    return address.startswith("tcp:") and is_open(f"http://{address.removeprefix('tcp:')}")


def _without_first_line(message: wire.FromClient) -> wire.FromClient:
    if not isinstance(message, wire.Acquire | wire.ResumeSession) or message.span is None or message.span.first_line is None:
        return message
    return message.model_copy(update={"span": message.span.model_copy(update={"first_line": None})})


class SessionLink(_LinkHandler):
    """``GET api/session``: one process, one session at a time."""

    async def prepare(self) -> None:
        super().prepare()
        self.identity = await self.bearer(COMPUTE)
        front: Front | None = self.settings.get("front")
        if front is not None and front.rate_limit is not None and self.identity.kind == "user":
            self._peer = front.rate_limit.peer(self.identity.tenant, self.identity.name)
        if self.identity.tenant is None:
            raise RequestRefused(403, "no_tenant", f"{self.identity.name} belongs to no tenant; ask an operator to add you to one.")
        self.tenant = self.identity.tenant
        self.session: str | None = None
        self._causes = causes_in(self.request.headers)
        self._group = group_in(self.request.headers)
        self._replays = self.request.headers.get(wire.REPLAYS_HEADER) == "1"
        self._outside = self.request.headers.get(wire.OUTSIDE_HEADER) == "1"
        self._runs = self.request.headers.get(wire.RUNS_HEADER) == "process"
        self.prices_told: set[PriceVersion] | None = set() if self.request.headers.get(RECEIPTS_HEADER) == "1" else None
        self._silent = True
        self._heard = self.shell.attentive_seconds

    def open(self, *args: str, **kwargs: str) -> None:
        super().open(*args, **kwargs)
        IOLoop.current().call_later(HELLO_SECONDS_MAX, self._check_hello)

    def encoded(self, message: wire.Message) -> str:
        return message.encode(self._causes) if isinstance(message, wire.Explained) else message.encode()

    def _check_hello(self) -> None:
        if self._silent and not self._over:
            self._refuse("bad_message", Cause("said_nothing", seconds=f"{HELLO_SECONDS_MAX:g}"))

    def hear(self, text: str | bytes) -> None:
        self._silent = False
        self._heard = self.shell.attentive_seconds
        try:
            message = wire.from_client(text)
        except wire.MessageError as error:
            self._refuse("bad_message", Cause("unreadable", problem=str(error)[:PROBLEM_CHARACTERS_MAX]))
            return
        if not self.context.settings.cell_lines:
            message = _without_first_line(message)
        if isinstance(message, wire.Hello):
            self._hello(message)
        elif isinstance(message, wire.ResumeSession):
            self._resume(message)
        elif self.session is None:
            self._refuse("bad_message", Cause("no_hello"))
        else:
            self.shell.apply(ClientSaid(self.session, message))

    def _speaks_as_we_do(self, protocol: int) -> bool:
        spoken = wire.speaks(protocol)
        if not spoken:
            self._refuse("protocol", Cause("protocol", theirs=protocol, ours=wire.PROTOCOL))
        return spoken

    def _hello(self, hello: wire.Hello) -> None:
        if not self._speaks_as_we_do(hello.protocol):
            return
        if self.session in self.shell.machine.sessions:
            self._refuse("bad_message", Cause("hello_twice"))
            return
        if self._runs and not self.context.settings.processes:
            self._refuse("not_servable", Cause("no_processes"))
            return
        origin = None if hello.fork is None else self._own_session(hello.fork.session, hello.fork.key)
        if hello.fork is not None and (origin is None or origin.client.runs_process):
            self._refuse("no_session", Cause("fork_gone"))
            return
        self._forget()
        self.session = secrets.token_hex(16)
        self.shell.clients[self.session] = self
        choice = self.context.choices.get((self.tenant, self.identity.name), self.context.settings.default_flavor)
        joined = SessionJoined(
            session=self.session,
            secret=secrets.token_bytes(32),
            tenant=self.tenant,
            user=self.identity.name,
            process=hello.process,
            flavor=origin.flavor if origin is not None else hello.flavor or choice,
            priority=hello.priority,
            group=self._group,
            fork=hello.fork,
        )
        self.shell.apply(joined)
        self._say_what_it_does(self.session)

    def _resume(self, message: wire.ResumeSession) -> None:
        """Takes the place of a link that broke, or that is about to be found broken."""
        if not self._speaks_as_we_do(message.protocol):
            return
        session = self._own_session(message.session, message.key)
        if session is None:
            self._refuse("no_session", Cause("session_gone"))
            return
        if self.session in self.shell.machine.sessions and self.session != session.id:
            self._refuse("bad_message", Cause("link_taken"))
            return
        before = self.shell.clients.get(session.id)
        if isinstance(before, SessionLink):
            before.session = None
            before.end(CLOSE_GOING_AWAY, "resumed")
        self._forget()
        self.session = session.id
        self.shell.clients[session.id] = self
        if self._group is not None:
            self.shell.apply(SessionGrouped(session.id, self._group))
        self._say_what_it_does(session.id)
        self.shell.apply(ClientSaid(session.id, message))

    def _own_session(self, name: str, key: str) -> Session | None:
        """The session of this name, if it is this user's, and who speaks knows its key."""
        session = self.shell.machine.sessions.get(name)
        if session is None or (session.tenant, session.user) != (self.tenant, self.identity.name):
            return None
        return session if hmac.compare_digest(resume_key(session), key) else None

    def _say_what_it_does(self, session: str) -> None:
        if self._outside:
            self.shell.apply(SessionOutside(session))
        if self._replays:
            self.shell.apply(SessionReplays(session))
        if self._runs:
            self.shell.apply(SessionRuns(session))

    def _refuse(self, code: Any, cause: Cause) -> None:
        """Says why, and closes the link: that ends this session alone."""
        self.shell.metrics.bad_messages.labels("session").inc()
        log.warning("%s", cause, extra={"action": "bad_message", "user": self.identity.name, "session": self.session})
        self.send(wire.Refused(code=code, message=cause, cause=told(cause)))
        self.end(CLOSE_POLICY, code)
        self._leave()

    def on_pong(self, data: bytes) -> None:
        self._heard = self.shell.attentive_seconds

    def on_ping(self, data: bytes) -> None:
        self._heard = self.shell.attentive_seconds

    def check(self) -> None:
        if self.shell.attentive_seconds - self._heard > SILENCE_PINGS * self.context.settings.session_heartbeat_seconds:
            self.shell.metrics.heartbeats_lost.labels("session").inc()
            log.warning("session %s is silent", self.session, extra={"action": "session_silent", "session": self.session})
            self.end(CLOSE_GOING_AWAY, "silent")
            self.stalled()
            return
        try:
            self.ping(b"")
        except WebSocketClosedError:
            self._away(stalled=False)

    async def check_token(self) -> None:
        if await self._still_allowed() or self.session is None:
            return
        log.warning("the token of session %s is no longer good", self.session, extra={"action": "token_ended", "session": self.session})
        self.shell.apply(SessionDismissed(self.session, "revoked", Cause("sign_in_again")))
        self.end(CLOSE_POLICY, "token")
        self._leave()

    async def _still_allowed(self) -> bool:
        """Whether the token still names the same person; as long as nobody can be asked, it does."""
        try:
            identity = await self.context.authenticator.identify(token_in(self.request.headers))
        except IdentityUnavailable:
            return True
        except IdentityRefused:
            return False
        known = (self.identity.name, self.tenant)
        return identity is not None and (identity.name, identity.tenant) == known and identity.may(COMPUTE)

    def closed(self) -> None:
        if self.close_code is None and not self._breach:
            self._away(stalled=False)
        else:
            self._leave()

    def stalled(self) -> None:
        self._away(stalled=True)

    def _away(self, stalled: bool) -> None:
        session = self.session
        self._forget()
        if session is not None:
            self.shell.apply(SessionAway(session, stalled))

    def _leave(self) -> None:
        session = self.session
        self._forget()
        if session is not None:
            self.shell.apply(SessionLeft(session))

    def _forget(self) -> None:
        if self.session is not None:
            self.shell.clients.pop(self.session, None)
            self.session = None


class WorkerLink(_LinkHandler):
    """``GET api/worker``: one worker, known by the token it was started with."""

    async def prepare(self) -> None:
        super().prepare()
        worker = self.shell.worker_of(token_in(self.request.headers))
        if worker is None:
            raise RequestRefused(401, "unauthorized", "This is no token of a worker that this pool started.")
        self.worker = worker
        self._ready = False

    def open(self, *args: str, **kwargs: str) -> None:
        super().open(*args, **kwargs)
        self.send(wire.Lead(epoch=self.context.epoch))
        self.shell.worker_linked(self.worker, self)

    def hear(self, text: str | bytes) -> None:
        try:
            message = wire.from_worker(text)
        except wire.MessageError as error:
            self._refuse(f"a message that cannot be read: {error}")
            return
        if isinstance(message, wire.Ready | wire.ResumeWorker):
            if not wire.speaks(message.protocol):
                self._refuse(f"it speaks protocol {message.protocol}, the pool {wire.PROTOCOL}")
                return
            if message.worker != self.worker:
                self._refuse(f"it calls itself {message.worker!r}")
                return
            if self._is_in_clear(message.address, message.certificate):
                return
            self._ready = True
        elif not self._ready:
            self._refuse("it was not ready yet when it spoke")
            return
        if isinstance(message, wire.Assigned) and message.door is not None and self._is_in_clear(message.door, message.certificate):
            return
        if not self._over:
            if isinstance(message, wire.Heartbeat):
                worker = self.shell.machine.fleet.workers.get(self.worker)
                self.shell.metrics.beat(self.worker, None if worker is None else worker.session, message)
            self.shell.apply(WorkerSaid(self.worker, message))

    def _is_in_clear(self, address: str, certificate: str | None) -> bool:
        """True of a worker that is reached over a network in clear, and may not be: it is refused."""
        refused = certificate is None and _is_open(address) and not self.context.settings.plaintext
        if refused:
            self._refuse(f"it is reached at {address} without TLS, and the setting plaintext does not allow that")
        return refused

    def _refuse(self, cause: str) -> None:
        self.shell.metrics.bad_messages.labels("worker").inc()
        log.error("worker %s: %s", self.worker, cause, extra={"action": "bad_message", "worker": self.worker})
        self.end(CLOSE_POLICY, "bad message")
        self.shell.apply(WorkerUnlinked(self.worker, cause))

    def check(self) -> None:
        """Workers' silence is the state machine's to judge, by their heartbeats."""

    def closed(self) -> None:
        if self._breach:
            self.shell.apply(WorkerUnlinked(self.worker, "a message that is far too long"))
        self.shell.link_closed(self.worker, self)
