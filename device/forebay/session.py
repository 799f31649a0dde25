"""The session link: opens a session at the pool when it is first needed, and gets leases for it.

Two kinds of threads meet here: one that needs a device waits in :meth:`Session.acquire`, and the link's reader turns the
pool's messages into state. All state is guarded by one condition; nothing that can block runs under it.

A link that breaks is made again by the reader: the session, its worker and an open lease outlive it, so recording goes on meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol, TextIO

from forebay_wire import messages
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection

from forebay.devices import Rank
from forebay.errors import ForebayError, PoolRefused, PoolUnreachable, SessionEnded
from forebay.journal import Journal, Page
from forebay.service import Service, forget_budget, has_runner, pool_link, tell_loss, tell_wait
from forebay.service.receipts import Records
from forebay.service.session_link import Link, Request
from forebay.spans import Work, own_label
from forebay.waiting import QUIET_SECONDS, WaitingLine

OPEN_SECONDS_MAX = 15.0
TICK_SECONDS = 1.0
"""How often the line of a wait counts down."""
CHECK_SECONDS = 2.0
"""Who waits for a device asks this often whether the pool is still there."""
ANSWER_SECONDS_MAX = 3.0
"""A pool that does not answer that for so long has stopped."""
RESUME_SECONDS_MAX = 5.0
"""How long one pool may take to answer a client that is back."""
OUTSIDE_SECONDS_MAX = 86_400.0
"""How long a client outside looks for the pool, which decides how long it waits: a network may be away for hours."""
RETRY_SECONDS = 0.2
"""Between attempts to make a broken link again, and to connect to a session's first worker."""
CONNECT_TRIES = 5
AWAY = messages.Cause(code="pool_away")
WORD_SECONDS_MAX = 30.0
"""How long a thread whose connection to the worker broke waits for the pool to say that the worker is gone."""
TOO_MUCH = "It cannot be done again (docs: what your session survives), so its tensors are lost; run your code from where it made them."
OTHER_DEVICES = "The worker is gone, and another number of devices might round otherwise; the tensors are lost."
POOLS_OWN_REQUEST = 0  # which the pool makes itself, when the worker finds work in the stream after the lease was closed as idle
TORN_SECONDS = 0.02
"""How often is looked whether the session can leave its worker."""
FORK_SECONDS_MAX = 600.0
"""How long a forked process waits for the copy of what its parent held; the parent's work before the fork comes first."""
DRAIN_SECONDS_MAX = 10.0
"""How long a process that ends waits for its recorded work to be done."""


class _WorkerUnusable(SessionEnded):
    """A worker was not reached that holds nothing of the session's yet."""

    def __init__(self, said: str, worker: str) -> None:
        super().__init__(said)
        self.worker = worker


class Stream(Protocol):
    """What a session does to the command stream: ``forebay._C``."""

    def connect(self, address: str, ticket: bytes, meeting: int | None, certificate: str, authorization: str = "", /) -> object: ...
    def connected(self) -> bool: ...
    def lease_opened(self, epoch: int, memory_bytes: int, /) -> None: ...
    def lease_closed(self) -> None: ...
    def leave(self) -> bool: ...
    def is_torn(self) -> bool: ...
    def break_off(self) -> bool: ...
    def broken(self) -> bool: ...
    def replay_differences(self) -> tuple[int, int]: ...
    def lose(self, message: str, /) -> None: ...


class Session:
    """A process's session at the pool: opened lazily, and opened anew when work follows a loss."""

    def __init__(
        self,
        service: Callable[[], Service],
        stream: Stream,
        torch_version: str,
        flavor: str | None = None,
        stderr: TextIO | None = None,
        quiet_seconds: float = QUIET_SECONDS,
        priority: int = 0,
        page: Page | None = None,
        new_line: Callable[[], WaitingLine] | None = None,
        rank: Rank | None = None,
        origin: messages.Fork | None = None,
    ) -> None:
        self._service = service
        self._stream = stream
        self._torch_version = torch_version
        self.origin = origin
        """What the session is to begin as a copy of, in a forked process; None once it has begun, or can never."""
        self.takes_programs = False  # of JAX or TensorFlow too: its next lease is where they are served
        self._flavor = flavor
        self._priority = priority
        self._page = page or Journal().page(0)
        self._new_line = new_line or (lambda: WaitingLine(stderr))
        self._quiet_seconds = quiet_seconds
        self._records = Records.configured()
        self._headers = {messages.CAUSES_HEADER: str(messages.CAUSES), messages.REPLAYS_HEADER: "1", **self._records.headers}
        if rank is not None:
            member = messages.GroupMember(id=rank.group, rank=rank.rank, size=rank.size)
            self._headers[messages.GROUP_HEADER] = member.encode()
        self._changed = threading.Condition()
        self._opening = threading.Lock()
        self._choosing = threading.Lock()
        self._link: Link | None = None
        self._requests = 0

    @property
    def has_worker(self) -> bool:
        """Whether device work was ever sent in this session."""
        return self._link is not None and self._link.worker is not None

    @property
    def devices(self) -> int:
        """How many devices the session's worker computes on; 0 before it has one."""
        return 0 if self._link is None else self._link.devices

    @property
    def flavor_name(self) -> str:
        """As it was last told; opens nothing."""
        link = self._link
        return "a device" if link is None else link.flavor

    def flavor(self) -> messages.Flavor:
        """The session's flavor; opens the session link, but no lease. Raises ForebayError."""
        return self._open()[1].flavor

    def priority(self) -> int:
        """What the session's requests get. Opens the session link, but no lease. Raises ForebayError."""
        return self._open()[1].priority

    def choose_flavor(self, name: str) -> messages.Flavor:
        """Another flavor from the next lease on; what is recorded is done under the present one, and waited for. Raises ForebayError."""
        with self._choosing:
            before, self._flavor = self._flavor, name  # a session that begins now begins with it
            try:
                link, opened = self._open()
                if opened.flavor.name != name:
                    with self._changed:
                        self._changed.wait_for(lambda: link.draining_epoch is None or link.over is not None)
                    opened = self._choose(link, messages.ChooseFlavor(flavor=name))
            except BaseException:
                self._flavor = before
                raise
            return opened.flavor

    def choose_priority(self, priority: int) -> int:
        """Another priority, of what waits now too; what the quotas make of it. Raises ForebayError."""
        with self._choosing:
            link, _ = self._open()
            self._priority = priority
            return self._choose(link, messages.ChoosePriority(priority=priority)).priority

    def acquire(self, work: Work, on_wait: Callable[[], None] = lambda: None) -> None:
        """Returns when a lease is open for ``work``. Raises ForebayError, or KeyboardInterrupt if the user does not want to wait.

        ``on_wait`` is called once if the pool says that there is none at once. A worker that dies before it was told anything has lost
        nothing: the pool, which hears of it within moments, gives another.
        """
        for _ in range(CONNECT_TRIES - 1):
            try:
                return self._acquire(work, on_wait)
            except _WorkerUnusable as error:
                if self.origin is None or self._link is None:
                    time.sleep(RETRY_SECONDS)
                else:  # a copy goes on at another worker as after any death
                    self._await_word_of_worker(self._link, error)
        self._acquire(work, on_wait)

    def _acquire(self, work: Work, on_wait: Callable[[], None]) -> None:
        link, _ = self._open()
        if link.worker is not None and not self._stream.connected():
            self._finish(link, SessionEnded("The connection to the worker ended."))
            link, _ = self._open()
        if self._stream.broken():
            self._await_word_of_worker(link)
        with self._changed:
            lease = link.lease
            fresh = lease is None and link.request is None
            if fresh:
                self._requests += 1
                link.request = Request(self._requests, work.span)
                link.span = link.request.span
            request = link.request
        if lease is None and request is not None:
            lease = self._granted(link, request, fresh, on_wait)
        if lease is not None:
            self._begin(link, lease)

    def _await_word_of_worker(self, link: Link, unusable: _WorkerUnusable | None = None) -> None:
        """Until the pool knows that the worker is gone. Raises SessionEnded if the worker is there, and only the connection broke, or was
        never made: ``unusable`` is why."""

        def is_known() -> bool:
            is_past = not self._stream.broken() if unusable is None else link.worker != unusable.worker
            return is_past or link.away or link.over is not None

        with self._changed:
            told = self._changed.wait_for(is_known, WORD_SECONDS_MAX)
        if not told:
            self._finish(link, unusable or SessionEnded("The connection to the worker ended."))
        if link.over is not None:
            raise link.over

    def marked(self) -> None:
        """The span's end is in the stream: the open lease will drain, and is no longer for new work."""
        with self._changed:
            link = self._link
            if link is not None and link.lease is not None:
                link.draining_epoch, link.lease = link.lease.epoch, None

    def close(self) -> None:
        """Waits, within bounds, until marked work is done, then ends the session."""
        with self._changed:
            link, self._link = self._link, None
            if link is None:
                return
            if has_runner() and link.worker is not None and not self._stream.connected():  # the pool says whether the job may run again
                self._changed.wait_for(lambda: link.over is not None, WORD_SECONDS_MAX)
            self._changed.wait_for(lambda: link.draining_epoch is None or link.over is not None, DRAIN_SECONDS_MAX)
            link.over = link.over or SessionEnded("The session was closed.")
        link.socket.close()

    def origin_in_child(self, checkpoint: int) -> messages.Fork | None:
        """In a forked child: of what its session is a copy, if the parent took this checkpoint at the fork; 0: none. Lets go of the
        parent's link, without a word to the pool."""
        link, self._link = self._link, None
        if link is not None:
            link.socket.socket.close()
        if self.origin is not None or link is None or link.opened is None or link.opened.resume_key is None or not checkpoint:
            return self.origin
        return messages.Fork(session=link.opened.session, key=link.opened.resume_key, checkpoint=checkpoint)

    # Opening the link

    def _open(self) -> tuple[Link, messages.SessionOpened]:
        with self._opening:
            with self._changed:
                link = self._link
                if link is not None and link.opened is not None and link.over is None:
                    return link, link.opened
            if link is not None:
                link.finished.wait(pool_link.CLOSE_SECONDS_MAX)
            return self._open_new()

    def _open_new(self) -> tuple[Link, messages.SessionOpened]:
        service = self._service()
        link = Link(pool_link.connect(service, self._headers, OPEN_SECONDS_MAX))
        threading.Thread(target=self._read, args=(link, service), name="forebay-session", daemon=True).start()
        try:
            hello = messages.Hello(process=own_label(), pid=os.getpid(), torch=self._torch_version, flavor=self._flavor)
            self._send(link, hello.model_copy(update={"priority": self._priority, "fork": self.origin}))
            seconds = OPEN_SECONDS_MAX if self.origin is None else FORK_SECONDS_MAX
            with self._changed:
                self._changed.wait_for(lambda: link.opened or link.refused or link.over, seconds)
                if link.opened is not None and link.over is None:
                    self._link = link
                    return link, link.opened
            said = link.refused or link.over
            if said is not None and self.origin is not None:
                self.origin = None
                self._stream.lose(str(said))
            raise said or service.unreachable(f"no session within {seconds:.0f} seconds")
        except BaseException:
            link.socket.close()
            raise

    def _send(self, link: Link, message: messages.Message) -> None:
        """Sends it, or leaves it to :meth:`_say_again` where the link is broken. Raises what the session ended with."""
        try:
            link.socket.send(message.encode())
        except ConnectionClosed:
            if link.over is not None:
                raise link.over from None

    def _choose(self, link: Link, choice: messages.ChooseFlavor | messages.ChoosePriority) -> messages.SessionOpened:
        """Says it, until the pool has answered, over a link that is made again too."""
        with self._changed:
            link.choice, link.refused = choice, None
        self._send(link, choice)
        with self._changed:
            self._changed.wait_for(lambda: link.choice is None or link.over, OPEN_SECONDS_MAX)
            answered, link.choice = link.choice is None, None
            if link.over is not None or link.refused is not None or link.opened is None or not answered:
                raise link.over or link.refused or self._service().unreachable(f"no answer within {OPEN_SECONDS_MAX:.0f} seconds")
            return link.opened

    # Waiting for a lease

    def _granted(self, link: Link, request: Request, fresh: bool, on_wait: Callable[[], None]) -> messages.Granted | None:
        """Waits until the request is settled; asks first, if nobody did."""
        try:
            if fresh:
                self._page.asked(request.span)
                self._send(link, request.asked(link.opened, self.takes_programs))
            self._wait(link, request, on_wait)
        except BaseException:
            self._cancel(link, request)
            raise
        if request.error is not None:
            raise request.error
        return request.granted

    def _wait(self, link: Link, request: Request, on_wait: Callable[[], None]) -> None:
        line = self._new_line()
        shown: messages.Queued | None = None
        checked = time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: request.settled or request.queued is not None, self._quiet_seconds)
        if not request.settled:
            on_wait()
        with self._changed:
            self._changed.wait_for(lambda: request.settled, self._quiet_seconds)
        try:
            while not request.settled:
                with self._changed:
                    news = self._changed.wait_for(lambda seen=shown: request.settled or request.queued is not seen, TICK_SECONDS)  # type: ignore[misc]
                    shown = request.queued
                checked = time.monotonic() if news else checked
                if time.monotonic() - checked >= CHECK_SECONDS:
                    self._check(link)
                    checked = time.monotonic()
                if shown is not None and not request.settled:
                    line.show(link.flavor, shown)
        except BaseException:
            line.finish("stopped waiting")
            raise
        line.finish("granted" if request.granted is not None else "not granted")

    def _check(self, link: Link) -> None:
        """Breaks the link of a pool that answers nothing, so that it is made again, with another pool if that one leads."""
        connection = link.socket
        if link.opened is None or not link.opened.resume_seconds:
            return
        with contextlib.suppress(ConnectionClosed, OSError):  # it may end meanwhile
            if not connection.ping().wait(ANSWER_SECONDS_MAX):
                connection.socket.shutdown(socket.SHUT_RDWR)

    def _cancel(self, link: Link, request: Request) -> None:
        with self._changed:
            if link.request is request:
                link.request = None
            link.cancelled.add(request.number)
            if request.error is None:
                request.error = SessionEnded("The wait for a device was stopped; run this again.")
            self._changed.notify_all()
        self._page.withdrawn()
        with contextlib.suppress(ForebayError):
            self._send(link, messages.Cancel(request=request.number))

    def _begin(self, link: Link, granted: messages.Granted) -> None:
        with link.connecting:
            granted = link.lease or granted  # of another worker, if that one died meanwhile
            if link.worker is None:
                self._connect_worker(link, granted)
        with self._changed:
            still = link.lease is granted
        if still:
            self._stream.lease_opened(granted.epoch, granted.flavor.memory_bytes)

    def _connect_worker(self, link: Link, granted: messages.Granted) -> None:
        # Noted first: an interrupt in between then looks like a broken connection, and is mended like one.
        with self._changed:
            if link.bereft is not None:
                raise _WorkerUnusable(link.bereft.said(), granted.worker)
            link.worker, link.ticket, link.devices = granted.worker, granted.ticket, granted.devices
        try:
            _connect_stream(self._stream, self._service(), granted, self._headers)
            self.origin = None
            if link.was_bereft:
                link.was_bereft = False
                self._send(link, messages.Arrived(epoch=granted.epoch))
        except RuntimeError as error:
            if self.origin is None:
                with self._changed:
                    link.worker, link.away = None, False
                    if link.lease is granted:
                        link.lease = None
                self._send(link, messages.Release(epoch=granted.epoch))
            raise _WorkerUnusable(f"The worker at {granted.address} cannot be used: {error}. Run this again.", granted.worker) from None

    # Moving from one worker to another, in threads of its own: the reader must go on, and Ctrl-C must not cut it short

    def _leave(self, link: Link) -> None:
        """Once no thread waits for an answer of a dead worker any more: it has that of this one under a lease here."""
        worker: str | None = None
        while link.over is None:
            with link.connecting:
                worker = worker or link.worker
                if link.worker is None or link.worker != worker or not self._stream.connected():
                    return
                if not self._stream.is_torn():
                    with self._changed:
                        link.away, link.lease = True, None
                    with contextlib.suppress(RuntimeError):  # the connection is gone, and the session with it
                        self._stream.leave()
                    return
            time.sleep(TORN_SECONDS)

    def _break_off(self, link: Link) -> None:
        """Tells the command stream that the worker died; ends the session if it cannot go on at another worker."""
        with link.connecting:
            with self._changed:
                bereft = link.bereft
                if bereft is None or link.worker is None:
                    return
                link.bereft = None
            if self._stream.break_off():
                self._new_line().warn(bereft.said())
            else:
                self._finish(link, SessionEnded(f"{bereft.said()} {TOO_MUCH}", bereft.cause))

    def _follow(self, link: Link, granted: messages.Granted) -> None:
        with link.connecting:
            self._break_off(link)
            if link.worker is None:  # the one before was never reached: who needs the device goes to this one
                link.bereft = None
            elif link.worker != granted.worker and link.over is None:
                if not link.away and not self._stream.break_off():  # nobody has told of its death
                    self._finish(link, SessionEnded("The worker of this session is gone, with what it was sent; run your code again."))
                    return
                replays, began = self._stream.broken(), time.monotonic()
                if replays and granted.devices != link.devices:
                    self._finish(link, SessionEnded(OTHER_DEVICES))
                    return
                try:
                    _connect_stream(self._stream, self._service(), granted, self._headers)
                except RuntimeError as error:
                    if self._stream.connected():  # the tensors are where they were, or what made them is here: another grant follows
                        self._send(link, messages.Unreached(epoch=granted.epoch))
                    else:
                        self._finish(link, SessionEnded(f"The tensors of this session are lost: {error}."))
                    return
                link.worker, link.ticket, link.devices, link.away = granted.worker, granted.ticket, granted.devices, False
                self.origin = None
                differ, compared = self._stream.replay_differences() if replays else (0, 0)
                if replays:
                    self._new_line().warn(f"What the worker had done was done again in {time.monotonic() - began:.1f} s, free of charge.")
                if differ:
                    self._new_line().warn(f"{differ} of {compared} results that were read before came out otherwise this time")
                link.was_bereft = False
                self._send(link, messages.Arrived(epoch=granted.epoch))
        self._settle_grant(link, granted, None)

    # The reader

    def _read(self, link: Link, service: Service) -> None:
        error: ForebayError = SessionEnded("The session ended.")
        try:
            cause = self._listen(link)
            while self._resume(link, service):
                cause = self._listen(link)
            error = _ended(service, cause)
        except messages.MessageError as garbled:
            error = _ended(service, f"the pool sent what this version does not understand ({garbled})")
        except (SessionEnded, PoolRefused) as lost:
            error = lost
        finally:
            self._finish(link, error)

    def _listen(self, link: Link) -> str:
        """Takes what the pool says until the link breaks; why it did."""
        try:
            for text in link.socket:
                self._take(link, messages.to_client(text))
            return "the pool closed it"
        except ConnectionClosed as closed:
            return str(closed)

    def _resume(self, link: Link, service: Service) -> bool:
        """Makes a broken link again, as long as the pool keeps the session. Raises SessionEnded if it did not."""
        opened = link.opened
        if opened is None or opened.resume_key is None:
            return False
        with self._changed:
            if link.request is not None:
                link.request.queued = messages.Queued(request=link.request.number, position=0, cause=AWAY)
                self._page.told(link.request.queued, link.span)
                self._changed.notify_all()
        self._page.linked(False)
        deadline = time.monotonic() + (OUTSIDE_SECONDS_MAX if service.outside else opened.resume_seconds)
        while link.over is None and time.monotonic() < deadline:
            try:
                return self._attach(link, pool_link.connect(service, self._headers, RESUME_SECONDS_MAX), opened.session, opened.resume_key)
            except (PoolUnreachable, ConnectionClosed, TimeoutError):
                time.sleep(RETRY_SECONDS)
        return False

    def _attach(self, link: Link, connection: ClientConnection, session: str, key: str) -> bool:
        """Says who is back, and what was asked for and not answered. False if the session was closed meanwhile."""
        epoch = link.draining_epoch if link.lease is None else link.lease.epoch
        ticket = None if link.worker is None else link.ticket
        resume = messages.ResumeSession(session=session, key=key, worker=link.worker, ticket=ticket, epoch=epoch, span=link.span)
        try:
            connection.send(resume.encode())
            answer = messages.to_client(connection.recv(RESUME_SECONDS_MAX))
            if isinstance(answer, messages.Refused):
                raise SessionEnded(answer.said(), answer.cause)
            with self._changed:
                if link.over is not None:
                    return False
                link.socket = connection
        finally:
            if link.socket is not connection:
                connection.close()
        if isinstance(answer, messages.SessionOpened):  # it answers nothing that was chosen
            link.opened = answer
        else:
            self._take(link, answer)
        self._page.linked(True)
        self._say_again(link)
        return True

    def _say_again(self, link: Link) -> None:
        """What the pool may not have heard before the link broke; it takes each once."""
        with self._changed:
            request, cancelled, choice = link.request, list(link.cancelled), link.choice
        if choice is not None:
            self._send(link, choice)
        for number in cancelled:
            self._send(link, messages.Cancel(request=number))
        if request is not None:
            self._send(link, request.asked(link.opened, self.takes_programs))

    def _take(self, link: Link, message: messages.ToClient) -> None:
        """Applies one message of the pool."""
        self._page.told(message, link.span)
        match message:
            case messages.SessionOpened():
                self._take_opened(link, message)
            case messages.Queued():
                tell_wait(message.code, message.said())
                with self._changed:
                    if link.request is not None and link.request.number == message.request:
                        link.request.queued = message
                        self._changed.notify_all()
                if message.request == POOLS_OWN_REQUEST:
                    link.line = link.line or self._new_line()
                    link.line.show(link.flavor, message)
            case messages.Granted():
                forget_budget()
                self._take_grant(link, message)
            case messages.Revoking():
                self._new_line().revoking(message)
            case messages.LeaseClosed():
                self._take_close(link, message)
            case messages.Leave():
                threading.Thread(target=self._leave, args=(link,), name="forebay-leave", daemon=True).start()
            case messages.Refused():
                tell_wait(message.code, message.said())
                self._take_refusal(link, message)
            case messages.WorkerLost():
                with self._changed:
                    link.bereft, link.was_bereft, link.away, link.lease = message, True, link.worker is not None, None
                    self._changed.notify_all()
                threading.Thread(target=self._break_off, args=(link,), name="forebay-leave", daemon=True).start()
            case messages.Receipts():
                self._records.keep(self._service().url, message, self._new_line().warn)
            case messages.SessionLost():
                raise SessionEnded(message.said(), message.cause)

    def _take_opened(self, link: Link, opened: messages.SessionOpened) -> None:
        with self._changed:
            before, link.opened, link.choice = link.opened, opened, None
            self._changed.notify_all()
        if opened.priority < self._priority and (before is None or opened.priority != before.priority):
            text = f"priority {self._priority} was asked for, and the quotas allow {opened.priority}: ask an operator for more"
            self._new_line().warn(text)

    def _take_grant(self, link: Link, granted: messages.Granted) -> None:
        with self._changed:
            link.bereft = None if link.worker is None else link.bereft
        if link.worker is not None and link.worker != granted.worker:
            threading.Thread(target=self._follow, args=(link, granted), name="forebay-follow", daemon=True).start()
        else:
            self._settle_grant(link, granted, None)

    def _settle_grant(self, link: Link, granted: messages.Granted, error: ForebayError | None) -> None:
        with self._changed:
            request = link.request
            if granted.request in link.cancelled:
                link.cancelled.discard(granted.request)
                return
            if link.away:
                return  # the worker needs this lease to carry out what comes before the LEAVE; ours comes after it
            if error is None:
                link.lease = granted
            if request is not None:
                link.request, request.error = None, error
                request.granted = granted if error is None else None
            self._changed.notify_all()
        self._end_line(link).finish("granted")
        if request is None and error is None and link.worker == granted.worker:
            self._stream.lease_opened(granted.epoch, granted.flavor.memory_bytes)

    def _take_close(self, link: Link, closed: messages.LeaseClosed) -> None:
        with self._changed:
            drained = link.draining_epoch is not None and closed.epoch >= link.draining_epoch
            if drained:
                # What a revoked lease left undone is done under the next one, which the pool acquires by itself.
                link.draining_epoch = closed.epoch + 1 if closed.reason == "revoked" else None
            current = link.lease is not None and closed.epoch >= link.lease.epoch
            if current:
                link.lease = None
            none_is_open = current or (drained and link.lease is None)  # nor one that was granted since
            self._changed.notify_all()
        if none_is_open:
            self._stream.lease_closed()

    def _take_refusal(self, link: Link, refused: messages.Refused) -> None:
        error = PoolRefused(refused.said(), refused.code, refused.cause)
        with self._changed:
            request = link.request
            if request is not None and refused.request == request.number:
                link.request, request.error = None, error
            elif refused.request is None:
                link.refused, link.choice = error, None
            self._changed.notify_all()
        if refused.request == POOLS_OWN_REQUEST:
            self._end_line(link).stuck(refused)

    def _end_line(self, link: Link) -> WaitingLine:
        """The line of a wait that the pool began by itself, for its last words."""
        line, link.line = link.line or self._new_line(), None
        return line

    def _finish(self, link: Link, error: ForebayError) -> None:
        with self._changed:
            first = link.over is None
            if first:
                tell_loss(error)
            link.over = link.over or error
            request, link.request = link.request, None
            if request is not None:
                request.error = error
            link.lease = None
            self._changed.notify_all()
        self._page.over()
        if first and link.worker is not None:
            self._stream.lose(str(error))
        link.socket.close()
        link.finished.set()


def _connect_stream(stream: Stream, service: Service, granted: messages.Granted, headers: Mapping[str, str]) -> None:
    """Raises RuntimeError."""
    ticket, meeting = bytes.fromhex(granted.ticket), granted.meeting if messages.GROUP_HEADER in headers else None
    if granted.address == messages.EDGE:
        stream.connect(service.edge_url(granted.worker), ticket, meeting, "", service.authorization)
    else:
        stream.connect(granted.address, ticket, meeting, granted.certificate or "")


def _ended(service: Service, why: object) -> SessionEnded:
    return SessionEnded(
        f"The connection to the pool at {service.url} ended: {why}. "
        "The tensors on the virtual device are gone; run your code from where it made them."
    )
