"""The session of a process beside a device: an ordinary one, of which the pool knows what it is."""

from __future__ import annotations

import signal
import threading
from typing import TextIO

from forebay_wire import messages, torch_builds
from forebay_wire.remote import frames

from forebay.service import Service, priority_of
from forebay.service.session_link import Link
from forebay.session import Session
from forebay.toolkit.remote.process_stream import ProcessStream
from forebay.waiting import WaitingLine, short

CLOSED_SECONDS_MAX = 10.0
"""How long the pool is given to say what a lease cost."""


class ProcessLine(WaitingLine):
    """Says of a lease that is taken back what that means for a process, and asks the process to end."""

    def __init__(self, stream: ProcessStream, out: TextIO | None = None) -> None:
        super().__init__(out)
        self._process = stream

    def revoking(self, message: messages.Revoking) -> None:
        self.warn(f"the process must end within {short(message.seconds)} s: {message.said()}")
        self._process.say(frames.signal_of(signal.SIGTERM))


class ProcessSession(Session):
    """One lease, of one process."""

    def __init__(self, service: Service, stream: ProcessStream, flavor: str | None) -> None:
        super().__init__(
            lambda: service, stream, torch_builds.installed_version() or "none", flavor,
            priority=priority_of(), new_line=lambda: ProcessLine(stream),
        )  # fmt: skip
        self._headers = {messages.CAUSES_HEADER: str(messages.CAUSES), messages.RUNS_HEADER: "process", **self._records.headers}
        self._bill: messages.LeaseClosed | None = None
        self._billed = threading.Event()

    def bill(self) -> messages.LeaseClosed | None:
        """How its lease ended, and what it cost; None where the pool does not say so in time."""
        self._billed.wait(CLOSED_SECONDS_MAX)
        return self._bill

    def _take_close(self, link: Link, closed: messages.LeaseClosed) -> None:
        super()._take_close(link, closed)
        self._bill = closed
        self._billed.set()
