"""``python -m forebay_worker.remote.guard SCRATCH CONTROL REPORT``: starts a user's process, and leaves nothing behind.

It reads the order, as a line of JSON, and then numbers of signals, a line each, from the descriptor CONTROL. It writes what becomes of the
process to REPORT: ``{"started": true}``, then ``{"status": 0, "why": ""}`` once the process and all that it started are gone, or
``{"failed": "…"}``. When CONTROL ends, since the worker let go of it or died, it kills what still runs, and removes the scratch.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import sys
from typing import Any

from forebay_worker.remote import control_groups, sandbox, system_calls
from forebay_worker.remote.control_groups import ControlGroups
from forebay_worker.remote.scratch import remove
from forebay_worker.remote.watch import Watch

LOOK_SECONDS = 0.25
LINE_BYTES_MAX = 8 * 2**20
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What the worker's end means is for CONTROL to say."""
KILLED = 128 + signal.SIGKILL


class Lines:
    """The lines of a descriptor, as they come."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.over = False
        self._rest = b""

    def come(self) -> list[str]:
        """Reads once; the lines that are whole now. Afterwards ``over`` says whether there are no more."""
        piece = os.read(self.descriptor, 65_536)
        self.over = not piece or len(self._rest) > LINE_BYTES_MAX
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [line.decode() for line in lines]

    def first(self) -> str:
        """Raises EOFError where there is none."""
        while not self.over:
            lines = self.come()
            if lines:
                return lines[0]
        raise EOFError


class Guard:
    """One process of a user, from its start until nothing of it is left."""

    def __init__(self, order: sandbox.Order, control: Lines, report: int, groups: ControlGroups | None) -> None:
        self._order, self._control, self._report = order, control, report
        self._groups = groups
        self._status: Lines | None = None
        self._bubblewrap = 0
        self._first = 0
        """The first process of the sandbox's: with it, all of them end."""
        self._exit: int | None = None
        self._why = ""
        self._killed = False

    def run(self) -> None:
        """Until the process is over, and has been reported. Raises OSError where it cannot be started."""
        self._start()
        ends = os.pidfd_open(self._bubblewrap)
        watch = Watch(self._order, counted=self._groups is not None)
        while not self._ended(ends):
            if not self._why and self._first:
                self._why = self._memory_ran_out() or watch.excess(self._first)
                if self._why:
                    self._kill()
        os.waitid(os.P_PIDFD, ends, os.WEXITED)
        os.close(ends)
        self._read_status()
        over = self._exit is not None or self._killed
        self._kill()
        self._tell_end(over)

    def _tell_end(self, over: bool) -> None:
        why = self._why or self._memory_ran_out()
        if not over:
            self._tell(failed="the sandbox did not start")
        else:
            self._tell(status=KILLED if self._exit is None or why else self._exit, why=why)

    def _memory_ran_out(self) -> str:
        """Why all of them end once the kernel has ended one, whichever it chose; empty where it has not."""
        return "it took more memory than it may" if self._groups is not None and self._groups.was_full() else ""

    def _start(self) -> None:
        calls = os.memfd_create("calls", 0)
        system_calls.write_filter(calls, counted=self._groups is not None)
        os.lseek(calls, 0, os.SEEK_SET)
        reads, writes = os.pipe()
        os.set_inheritable(writes, True)
        self._bubblewrap = os.fork()
        if not self._bubblewrap:
            self._become_sandbox(calls, writes)
        os.close(calls)
        os.close(writes)
        self._status = Lines(reads)

    def _become_sandbox(self, calls: int, status: int) -> None:
        """In the child: never returns."""
        try:
            for number in (*IGNORED, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            os.set_inheritable(calls, True)
            words = sandbox.command(self._order, calls, status)
            if self._groups is not None:
                self._groups.enter()
            sandbox.limit(self._order)
            os.execve(words[0], words, {})  # noqa: S606 no shell is the point
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _ended(self, ends: int) -> bool:
        """Waits a moment for what happens; whether bubblewrap has ended."""
        heard = [ends]
        for lines in (self._control, self._status):
            if lines is not None and not lines.over:
                heard.append(lines.descriptor)
        ready = select.select(heard, (), (), LOOK_SECONDS)[0]
        if self._control.descriptor in ready:
            for line in self._control.come():
                self._signal(int(line))
            if self._control.over:
                self._why = self._why or "the worker let go of it"
                self._kill()
        if self._status is not None and self._status.descriptor in ready:
            self._hear_status()
        return ends in ready

    def _read_status(self) -> None:
        """What is left of what bubblewrap said."""
        while self._status is not None and not self._status.over:
            self._hear_status()

    def _hear_status(self) -> None:
        for line in () if self._status is None else self._status.come():
            told: dict[str, Any] = json.loads(line)
            if "child-pid" in told:
                self._first = int(told["child-pid"])
                self._tell(started=True)
            self._exit = told.get("exit-code", self._exit)

    def _signal(self, number: int) -> None:
        """As a terminal does: to the group of the command that was started."""
        if number == signal.SIGKILL:
            self._kill()
        elif self._first:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._first, number)

    def _kill(self) -> None:
        """Ends all processes of the sandbox: the kernel does, as the first one of their namespace ends."""
        self._killed = True
        if self._first:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._first, signal.SIGKILL)
        elif self._exit is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._bubblewrap, signal.SIGKILL)

    def _tell(self, **what: object) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._report, json.dumps(what).encode() + b"\n")


def main() -> None:
    """Starts, waits, and tidies up."""
    scratch, control, report = sys.argv[1], Lines(int(sys.argv[2])), int(sys.argv[3])
    for descriptor in (control.descriptor, report):
        os.set_inheritable(descriptor, False)  # the process is to have neither
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    lock = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_SH)
    with contextlib.suppress(EOFError):
        keep_to(sandbox.Order(**json.loads(control.first())), control, report)
    os.close(report)
    for descriptor in (0, 1, 2):  # whoever reads what the process wrote is to see its end
        os.close(descriptor)
    while not control.over:
        control.come()
    remove(scratch)


def keep_to(order: sandbox.Order, control: Lines, report: int) -> None:
    """Has the process run, and says what became of it."""
    groups = control_groups.made(order)
    try:
        Guard(order, control, report, groups).run()
    except OSError as error:
        os.write(report, json.dumps({"failed": str(error)}).encode() + b"\n")
    finally:
        if groups is not None:
            groups.remove()


if __name__ == "__main__":
    main()
