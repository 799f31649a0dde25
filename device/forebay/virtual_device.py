"""The virtual devices of this process: binds command streams, session links and spans to each other."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch

from forebay import _C, monitors
from forebay.devices import has_group, rank_of, rank_of_group
from forebay.errors import ForebayError, ForkedProcess
from forebay.forking import gradients
from forebay.forking.forks import Forks, numbers
from forebay.journal import Journal
from forebay.service import FLAVOR_VARIABLE, LOCAL, TOKEN_VARIABLE, URL_VARIABLE, Service, configured, priority_of, service_at
from forebay.service.proxy import proxy_for
from forebay.spans import Follower, Spans, running_shell
from forebay.waiting import WaitingLine

if TYPE_CHECKING:
    from forebay_wire.messages import Flavor, Fork

    from forebay.devices import Rank
    from forebay.service.embedded import EmbeddedPool
    from forebay.session import Session

FORKED = (
    "This process was forked from one that uses the virtual device, and cannot have a copy of what that holds: "
    "start it with multiprocessing's 'spawn' method (torch.multiprocessing.set_start_method('spawn'))."
)
KNOWN_CALLS_VARIABLE = "FOREBAY_KNOWN_CALLS"
JOURNAL_VARIABLE = "FOREBAY_JOURNAL_BYTES"
IMAGES_VARIABLE = "FOREBAY_IMAGE_SECONDS"
IMAGE_SECONDS = 10.0
"""How long a device works from one image of its session to the next."""
IMAGE_SECONDS_MAX = 3600.0
JOURNAL_BYTES = 128 << 20
"""What a process keeps of what a device sent to its worker, so that the session outlives the worker."""
KNOWN_CALLS = "known-calls"
"""The file that the processes of an installation share."""
STOPPED = "The wait for a device was stopped; run this again."
BACKWARD_SECONDS = 5.0
"""What autograd's threads get at a program's end to release what backward passes held; one in the middle of a pass may wait for ever."""
SETTLE_SECONDS = 0.1
"""What a program's daemon threads get at its end to leave failed calls, and to stay where they ask for a lease."""


class DeviceStream:
    """The command stream of one device, as its session uses it."""

    def __init__(self, index: int, name: Callable[[], str]) -> None:
        self._index, self._name = index, name

    def connect(self, address: str, ticket: bytes, meeting: int | None, certificate: str, authorization: str = "", /) -> object:
        proxy = proxy_for(address) if authorization else None
        by = () if proxy is None else (proxy.address, proxy.authorization)
        return _C.connect(address, ticket, self._index, meeting, certificate, authorization, *by)

    def connected(self) -> bool:
        return _C.connected(self._index)

    def lease_opened(self, epoch: int, memory_bytes: int, /) -> None:
        _C.tell_flavor(self._name(), memory_bytes, self._index)
        _C.lease_opened(epoch, memory_bytes, self._index)

    def lease_closed(self) -> None:
        _C.lease_closed(self._index)

    def leave(self) -> bool:
        return _C.leave(self._index)

    def is_torn(self) -> bool:
        return _C.is_torn(self._index)

    def break_off(self) -> bool:
        return _C.break_off(self._index)

    def replay_differences(self) -> tuple[int, int]:
        return _C.replay_differences(self._index)

    def broken(self) -> bool:
        return _C.broken(self._index)

    def lose(self, message: str, /) -> None:
        _C.lose(message, self._index)


class Presenter(Protocol):
    """Who shows in a shell what the devices do."""

    @property
    def journal(self) -> Journal: ...
    @property
    def lines(self) -> Follower: ...
    def new_line(self) -> WaitingLine: ...


class VirtualDevices:
    """``cuda:0`` and its siblings. Nothing goes over the network before :meth:`flavor` or the first work of a device."""

    def __init__(self, flavors: Sequence[str | None] = (None,)) -> None:
        self.spans = Spans(self.end_span)
        self.journal = Journal()
        self.forked = False
        self._forks = Forks(numbers)
        self._origins: dict[int, Fork] = {}
        """In a forked child: what the devices' sessions begin as copies of, of those that nothing has asked for yet."""
        self._new_line: Callable[[], WaitingLine] = WaitingLine
        self._flavors = list(flavors)
        self._rank = rank_of(len(self._flavors))
        self._rank_device: int | None = None
        self._show_last: Callable[[Journal, str], None] | None = None
        self._ended = False
        self._embedded: EmbeddedPool | None = None
        self._sessions: dict[int, Session] = {}
        self._takes_programs = False
        self._making = threading.RLock()

    def start(
        self, presenter_of: Callable[[object], Presenter] | None = None, show_last: Callable[[Journal, str], None] | None = None
    ) -> None:
        """Takes over the CUDA key and follows cells, forks and the end of the process; a shell's presenter shows what the devices do.
        ``show_last`` shows what a program's span has used, at its end."""
        _C.install(len(self._flavors))
        _C.set_lease_callback(self.acquire)
        _C.set_cut_callback(self.tell_cut)
        self._show_last = show_last
        shell = running_shell()
        if shell is not None:
            if presenter_of is not None:
                self._show(presenter_of(shell))
            self.spans.follow(shell)
        monitors.show(self.flavor)
        os.register_at_fork(before=self._before_fork, after_in_parent=self._forks.end, after_in_child=self._forked_child)
        keep_known_calls()
        atexit.register(self.close)

    def _show(self, presenter: Presenter) -> None:
        self.journal, self._new_line = presenter.journal, presenter.new_line
        self.spans.follower = presenter.lines

    def acquire(self, index: int) -> None:
        """Blocks until a lease is open for a device and the current span: the callback of its command stream."""
        self._stay_if_ended()
        try:
            self._computing_session(index).acquire(self.spans.current(), lambda: self._give_way(index))
            self._need_no_copy()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(STOPPED) from None  # without the way through our own waiting
        except ForebayError as error:
            raise error.with_traceback(None) from error.__cause__
        finally:
            self._stay_if_ended()

    def tell_cut(self, index: int) -> None:
        """The worker of a device has not been reached for a while."""
        self.warn("the connection to the worker broke; reconnecting")

    def warn(self, text: str) -> None:
        """One line to the user."""
        self._new_line().warn(text)

    def _give_way(self, waiting: int) -> None:
        """Gives the leases of the other devices back, once what is recorded for them is done.

        Who holds one device and waits for another may wait for somebody who does the same the other way around, or for
        the very device that is held.
        """
        for index, session in list(self._sessions.items()):
            if index != waiting and _C.mark(index):
                session.marked()

    def _stay_if_ended(self) -> None:
        """Keeps a daemon thread for good: it would try again after an error, and PyTorch does not survive the interpreter's end."""
        if self._ended and threading.current_thread() is not threading.main_thread():
            threading.Event().wait()

    def end_span(self) -> None:
        """Gives the leases back once all recorded work is done; does not wait."""
        for index, session in list(self._sessions.items()):
            if _C.mark(index):
                session.marked()

    def flavor(self, index: int) -> Flavor:
        """The device's size and name. Opens its session link if it is not open, but no lease."""
        flavor = self.session(index).flavor()
        _C.tell_flavor(device_name(flavor), flavor.memory_bytes, index)
        return flavor

    def devices_behind(self, index: int) -> int:
        """How many devices the session computes on. Asks for a lease where its flavor may be served by several. Raises ForebayError."""
        name, session = self.flavor(index).name, self.session(index)
        ways = [way for row in self._service().get("api/flavors") if row["name"] == name for way in row["equivalents"]]
        if ways and all(way["count"] == 1 for way in ways):
            return 1
        _C.is_processor(index)  # returns once a lease is open
        return session.devices

    def choose_flavor(self, index: int, name: str) -> Flavor:
        """Another size for the device, from its next lease on: what is recorded comes first, and is waited for. Raises ForebayError."""
        session = self.session(index)
        if _C.mark(index):
            session.marked()
        return session.choose_flavor(name)

    def _computing_session(self, index: int) -> Session:
        """As session, of a device that is about to compute: where a process group was made before, for that."""
        with self._making:
            if self._rank_device is None and index not in self._sessions and has_group():
                self._rank, self._rank_device = self._rank or rank_of_group(index), index
            return self.session(index)

    def _rank_of(self, index: int) -> Rank | None:
        """Which of several processes the device computes for: cuda:LOCAL_RANK does, unless another one came first in a process group."""
        if self._rank is None or index != (self._rank.device if self._rank_device is None else self._rank_device):
            return None
        self._rank_device = index
        return self._rank

    def session(self, index: int) -> Session:
        """The device's session, not necessarily opened. Raises ForkedProcess in a child whose parent used a device."""
        if self.forked:
            raise ForkedProcess(FORKED)
        with self._making:
            if index not in self._sessions:
                from forebay.session import Session

                flavor = self._flavors[index] or os.environ.get(FLAVOR_VARIABLE) or None
                _C.set_journal(journal_bytes(), image_seconds(), index)
                self._sessions[index] = Session(
                    self._service,
                    DeviceStream(index, lambda: name_of_flavor(self._sessions[index].flavor_name)),
                    torch.__version__,
                    flavor,
                    priority=priority_of(),
                    page=self.journal.page(index),
                    new_line=self._new_line,
                    rank=self._rank_of(index),
                    origin=self._origins.pop(index, None),
                )
                self._sessions[index].takes_programs = self._takes_programs
            return self._sessions[index]

    def take_programs(self) -> None:
        """From the next lease on, each device is where programs of JAX and TensorFlow are served."""
        with self._making:
            self._takes_programs = True
            for session in self._sessions.values():
                session.takes_programs = True

    def close(self) -> None:
        """Ends the span, waits within bounds until its work is done, and ends the sessions and the embedded pool."""
        monitors.leave()
        _C.settle_backwards(BACKWARD_SECONDS)
        self._ended = True
        try:
            self.end_span()
            for index, session in list(self._sessions.items()):
                session.close()
                _C.lease_closed(index)
            self._show_last_line()
        finally:
            _C.withdraw_publication()
            if self._embedded is not None:
                self._embedded.stop()
        if any(thread.daemon and not thread.name.startswith("forebay") for thread in threading.enumerate()):
            time.sleep(SETTLE_SECONDS)

    def _show_last_line(self) -> None:
        """Of a program; cells have theirs."""
        if self._show_last is not None and self._sessions and self.spans.follower is None and running_shell() is None:
            self._show_last(self.journal, self.spans.current().id)

    def _service(self) -> Service:
        with self._making:
            if self._embedded is not None and self._embedded.usable:
                return self._embedded.service
            url = LOCAL if self._embedded is not None else configured() or LOCAL
            if url != LOCAL:
                return service_at(url)
            from forebay.service.embedded import EmbeddedPool

            if self._embedded is not None:
                self._embedded.stop()
            self._embedded = EmbeddedPool(monitors.withhold)
            # Child processes attach to this pool instead of starting their own.
            os.environ[URL_VARIABLE] = self._embedded.service.url
            os.environ[TOKEN_VARIABLE] = self._embedded.service.token
            return self._embedded.service

    def _before_fork(self) -> None:
        if _C.has_run_backward():
            gradients.flag_address()
        self._forks.begin(any(session.has_worker for session in self._sessions.values()))

    def _forked_child(self) -> None:
        self._making = threading.RLock()
        self._forks.begin_child()
        if _C.has_run_backward():
            gradients.allow()
        before, self._sessions = self._sessions, {}
        for index, session in before.items():
            had_worker = session.has_worker
            origin = session.origin_in_child(_C.fork_origin(index))
            if origin is not None:
                self._origins[index] = origin
            elif had_worker:
                self.forked = True
                _C.lose(FORKED, index)
        if before:  # the shell, and the rank among several processes, are the parent's
            self.journal, self._new_line, self.spans.follower, self._rank = Journal(), WaitingLine, None, None

    def _need_no_copy(self) -> None:
        """In a forked child, once all of its sessions have begun: what they began with is needed no more."""
        if self._forks.holds and not self._origins and not any(session.origin for session in self._sessions.values()):
            self._forks.let_go()


def device_name(flavor: Flavor) -> str:
    """What ``torch.cuda.get_device_name()`` says."""
    return name_of_flavor(flavor.name)


def name_of_flavor(name: str) -> str:
    """What a device of the flavor is called."""
    return f"Forebay {name} (virtual)"


def journal_bytes() -> int:
    """What the variable says, else the default. Raises ForebayError."""
    given = os.environ.get(JOURNAL_VARIABLE) or str(JOURNAL_BYTES)
    if not (given.isascii() and given.isdigit() and len(given) < 16):
        raise ForebayError(f"{JOURNAL_VARIABLE} is a number of bytes, 0 to keep nothing, and not {given!r}.")
    return int(given)


def image_seconds() -> float:
    """What the variable says, else the default. Raises ForebayError."""
    given = os.environ.get(IMAGES_VARIABLE) or str(IMAGE_SECONDS)
    try:
        seconds = float(given)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= IMAGE_SECONDS_MAX:
        raise ForebayError(f"{IMAGES_VARIABLE} is a number of seconds up to {IMAGE_SECONDS_MAX:.0f}, 0 for no images, and not {given!r}.")
    return seconds


def keep_known_calls() -> None:
    """Reads which kinds of calls a worker carries out: only the first of a kind waits. Adds at the end what this process learnt."""
    path = _known_calls_path()
    if path is None:
        return
    _C.open_known_calls(str(path))
    atexit.register(_save_known_calls, path)


def _known_calls_path() -> Path | None:
    """What the variable says (nothing: none); else in the virtual environment, or in the user's cache where that is not writable."""
    given = os.environ.get(KNOWN_CALLS_VARIABLE)
    if given is not None:
        return Path(given) if given else None
    environment = Path(sys.prefix)
    if sys.prefix != sys.base_prefix and os.access(environment, os.W_OK):
        return environment / "var" / "forebay" / KNOWN_CALLS
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "forebay" / KNOWN_CALLS


def _save_known_calls(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    _C.save_known_calls()
