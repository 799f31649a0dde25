"""A session link against a scripted pool, with a recorder for its command stream."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Any

from forebay.service import Service
from forebay.session import Session
from forebay.spans import Work
from forebay_wire import messages

TOKEN = "a-token-of-the-test"
WORK = Work("span-1", "cell", "digits.ipynb", 3)
WAIT_SECONDS_MAX = 10.0


class RecordedStream:
    """Notes what the session does to the command stream."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.connect_error: str | None = None
        self.is_connected = False
        self.keeps = True
        self.is_broken = self.torn = False
        self.meeting: int | None = None
        self.differences = (0, 0)
        self._changed = threading.Condition()

    def connect(self, address: str, ticket: bytes, meeting: int | None, certificate: str, /) -> None:
        self.meeting = meeting
        self._note("connect", address, ticket)
        if self.connect_error is not None:
            raise RuntimeError(self.connect_error)
        self.is_connected, self.is_broken = True, False

    def connected(self) -> bool:
        return self.is_connected

    def lease_opened(self, epoch: int, memory_bytes: int, /) -> None:
        self._note("lease_opened")

    def lease_closed(self) -> None:
        self._note("lease_closed")

    def leave(self) -> bool:
        self._note("leave")
        return self.is_connected

    def is_torn(self) -> bool:
        return self.torn

    def break_off(self) -> bool:
        self.is_broken = self.keeps
        self._note("break_off")
        return self.keeps

    def broken(self) -> bool:
        return self.is_broken

    def replay_differences(self) -> tuple[int, int]:
        return self.differences

    def lose(self, message: str, /) -> None:
        self.is_connected = False
        self._note("lose", message)

    def names(self) -> list[str]:
        return [call[0] for call in self.calls]

    def expect(self, reached: Callable[[list[str]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: reached(self.names()), WAIT_SECONDS_MAX), self.calls

    def _note(self, *call: Any) -> None:
        with self._changed:
            self.calls.append(call)
            self._changed.notify_all()


class Case:
    """A session with its scripted pool, its recorded stream and what it wrote."""

    def __init__(self, pool: Any, quiet_seconds: float = 5.0) -> None:
        self.pool = pool
        self.stream = RecordedStream()
        self.stderr = io.StringIO()
        service = Service(pool.url, TOKEN)
        self.session = Session(lambda: service, self.stream, "2.13.0+cpu", None, self.stderr, quiet_seconds)

    def grants(self, **changes: Any) -> None:
        """From now on the pool grants each Acquire at once, counting epochs."""
        epochs = iter(range(1, 1000))

        def answer(message: messages.FromClient) -> list[messages.Message]:
            return [granted(message.request, next(epochs), **changes)] if isinstance(message, messages.Acquire) else []

        self.pool.answer = answer

    def in_thread(self) -> tuple[threading.Thread, list[BaseException]]:
        """Acquires in another thread."""
        errors: list[BaseException] = []

        def acquire() -> None:
            try:
                self.session.acquire(WORK)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=acquire)
        thread.start()
        return thread, errors


def granted(request: int, epoch: int, worker: str = "w-1") -> messages.Granted:
    return messages.Granted(
        request=request,
        lease=f"l-{epoch}",
        epoch=epoch,
        worker=worker,
        address="unix:/tmp/worker.sock",
        ticket="ab" * 32,
        device=messages.DeviceModel(kind="cpu", model="cpu-dev"),
        flavor=messages.Flavor(name="dev.1gb", memory_bytes=2**30),
    )


def closed(epoch: int, reason: Any = "idle") -> messages.LeaseClosed:
    return messages.LeaseClosed(lease=f"l-{epoch}", epoch=epoch, reason=reason, duration_ns=1)
