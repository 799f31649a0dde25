"""The virtual device of this process: binds the command stream, the session link and the spans to each other."""

from __future__ import annotations

import atexit
import os
import threading
import time
from typing import TYPE_CHECKING

import torch

from forebay import _C
from forebay.errors import ForkedProcess
from forebay.service import FLAVOR_VARIABLE, LOCAL, TOKEN_VARIABLE, URL_VARIABLE, Service, configured, service_at
from forebay.spans import Spans, running_shell

if TYPE_CHECKING:
    from forebay_wire.messages import Flavor

    from forebay.embedded import EmbeddedPool
    from forebay.session import Session

FORKED = (
    "This process was forked from one that uses the virtual device, which cannot be shared: "
    "start it with multiprocessing's 'spawn' method (torch.multiprocessing.set_start_method('spawn'))."
)
SETTLE_SECONDS = 0.1
"""What a program's daemon threads get at its end to leave failed calls, and to stay where they ask for a lease."""


class VirtualDevice:
    """``cuda:0``. Nothing goes over the network before :meth:`flavor` or the first device work."""

    def __init__(self) -> None:
        self.spans = Spans(self.end_span)
        self.forked = False
        self._ended = False
        self._embedded: EmbeddedPool | None = None
        self._session: Session | None = None
        self._making = threading.Lock()

    def start(self) -> None:
        """Takes over the CUDA key and follows cells, forks and the end of the process."""
        _C.install()
        _C.set_lease_callback(self.acquire)
        shell = running_shell()
        if shell is not None:
            self.spans.follow(shell)
        os.register_at_fork(after_in_child=self._forked_child)
        atexit.register(self.close)

    def acquire(self, device: int) -> None:
        """Blocks until a lease is open for the current span: the callback of the command stream."""
        self._stay_if_ended()
        try:
            self.session().acquire(self.spans.current())
        finally:
            self._stay_if_ended()

    def _stay_if_ended(self) -> None:
        """Keeps a daemon thread for good: it would try again after an error, and PyTorch does not survive the interpreter's end."""
        if self._ended and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()

    def end_span(self) -> None:
        """Gives the lease back once all recorded work is done; does not wait."""
        if _C.mark() and self._session is not None:
            self._session.marked()

    def flavor(self) -> Flavor:
        """The device's size and name. Opens the session link if it is not open, but no lease."""
        return self.session().flavor()

    def session(self) -> Session:
        """The session, not necessarily opened. Raises ForkedProcess in a child whose parent used the device."""
        if self.forked:
            raise ForkedProcess(FORKED)
        with self._making:
            if self._session is None:
                from forebay.session import Session

                self._session = Session(self._service, _C, torch.__version__, os.environ.get(FLAVOR_VARIABLE) or None)
            return self._session

    def close(self) -> None:
        """Ends the span, waits within bounds until its work is done, and ends the session and the embedded pool."""
        self._ended = True
        try:
            self.end_span()
            if self._session is not None:
                self._session.close()
            _C.lease_closed()
        finally:
            if self._embedded is not None:
                self._embedded.stop()
        if any(thread.daemon and not thread.name.startswith("forebay") for thread in threading.enumerate()):
            time.sleep(SETTLE_SECONDS)

    def _service(self) -> Service:
        if self._embedded is not None and self._embedded.usable:
            return self._embedded.service
        url = LOCAL if self._embedded is not None else configured() or LOCAL
        if url != LOCAL:
            return service_at(url)
        from forebay.embedded import EmbeddedPool

        if self._embedded is not None:
            self._embedded.stop()
        self._embedded = EmbeddedPool()
        # Child processes attach to this pool instead of starting their own.
        os.environ[URL_VARIABLE] = self._embedded.service.url
        os.environ[TOKEN_VARIABLE] = self._embedded.service.token
        return self._embedded.service

    def _forked_child(self) -> None:
        self._making = threading.Lock()
        if self._session is not None:
            self.forked = self.forked or self._session.has_worker
            self._session.forget_in_child()


def device_name(flavor: Flavor) -> str:
    """What ``torch.cuda.get_device_name()`` says."""
    return f"Forebay {flavor.name} (virtual)"
