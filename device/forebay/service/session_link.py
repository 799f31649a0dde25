"""What a process knows of its session: the link to the pool, the worker, the lease, and what was asked for."""

from __future__ import annotations

import threading

from forebay_wire import messages
from websockets.sync.client import ClientConnection

from forebay.errors import ForebayError
from forebay.waiting import WaitingLine


class Request:
    """A wait for a lease; several threads may share one."""

    def __init__(self, number: int, span: messages.Span) -> None:
        self.number = number
        self.span = span
        self.queued: messages.Queued | None = None
        self.granted: messages.Granted | None = None
        self.error: ForebayError | None = None

    def asked(self, opened: messages.SessionOpened | None, programs: bool) -> messages.Acquire:
        knows = opened is not None and opened.flavor.runtimes is not None
        return messages.Acquire(request=self.number, span=self.span, runtime=("xla" if programs else "torch") if knows else None)

    @property
    def settled(self) -> bool:
        return self.granted is not None or self.error is not None


class Link:
    """A WebSocket to the pool, or the one after it: one session, with what the pool said of it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.socket = connection
        self.line: WaitingLine | None = None
        """Of a wait that the pool began by itself."""
        self.opened: messages.SessionOpened | None = None
        self.lease: messages.Granted | None = None
        self.draining_epoch: int | None = None
        self.request: Request | None = None
        self.span: messages.Span | None = None
        """Of the last request."""
        self.cancelled: set[int] = set()
        self.refused: ForebayError | None = None
        self.choice: messages.ChooseFlavor | messages.ChoosePriority | None = None
        """What was chosen and not answered."""
        self.over: ForebayError | None = None
        self.worker: str | None = None
        self.ticket: str | None = None
        """What was shown to ``worker``."""
        self.devices = 0
        """How many devices ``worker`` computes on."""
        self.away = False
        """The session has left ``worker``, or is leaving it, and is not at another one yet."""
        self.bereft: messages.WorkerLost | None = None
        """The worker died, and the command stream has not been told yet; without ``worker``: it died before anything was sent to it."""
        self.was_bereft = False
        """A worker died, and the pool has not heard that the next one was reached."""
        self.connecting = threading.RLock()
        self.finished = threading.Event()
        """Set when nothing of this session touches the command stream any more."""

    @property
    def flavor(self) -> str:
        """The name of the session's flavor, for people."""
        return "a device" if self.opened is None else self.opened.flavor.name
