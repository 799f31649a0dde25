"""Keeps a command running: one that ends by itself is started again, later each time.

``python -m forebay_service.processes.supervisor NAME COMMAND …``

Asked to stop (SIGTERM, SIGINT) it stops the command and ends. Where its own parent dies it gets SIGHUP from the kernel and ends the command
at once, as a power cut would: what runs for the command elsewhere goes on, and waits for the one that comes next.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import FrameType

from forebay_service.processes.parent_death import end_with_parent

PAUSE_SECONDS_FIRST = 0.5
PAUSE_SECONDS_MAX = 60.0
STEADY_SECONDS = 60.0
"""A command that ran for so long begins with the first pause again."""
POLL_SECONDS = 0.1
MARK = "forebay:"
"""What lines for people begin with, among all that hub and services write into their log."""


def say(sentence: str) -> None:
    """A line for people, in the log."""
    print(f"{MARK} {sentence}", file=sys.stderr, flush=True)


def ending(status: int) -> str:
    """How a process ended, in words."""
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    return f"ended by itself with status {status}"


class Pauses:
    """How long to wait before the next start: doubled each time, from the first again once something ran steadily."""

    def __init__(self) -> None:
        self._next = PAUSE_SECONDS_FIRST

    def after(self, ran_seconds: float) -> float:
        """The pause after a run of so long."""
        if ran_seconds >= STEADY_SECONDS:
            self._next = PAUSE_SECONDS_FIRST
        pause, self._next = self._next, min(PAUSE_SECONDS_MAX, 2 * self._next)
        return pause


class Supervisor:
    """Keeps one command. Signals are taken note of, and acted on between two looks at the command."""

    def __init__(self, name: str, command: list[str]) -> None:
        self._name = name
        self._command = command
        self._asked: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._asked = number

    def _stopping(self) -> bool:
        return self._asked is not None

    def run(self) -> int:
        """Until it is asked to stop; the command's last status."""
        pauses = Pauses()
        while True:
            began = time.monotonic()
            status = self._run_once()
            if self._stopping():
                return max(0, status)
            pause = pauses.after(time.monotonic() - began)
            say(f"{self._name} {ending(status)}; it is started again in {pause:g} s")
            self._rest(pause)
            if self._stopping():
                return 0
            say(f"{self._name} is started again")

    def _run_once(self) -> int:
        try:
            process = subprocess.Popen(self._command, preexec_fn=lambda: end_with_parent(signal.SIGKILL))
        except OSError as error:
            say(f"{self._command[0]} cannot be started: {error.strerror}")
            return 127
        told = False
        while process.poll() is None:
            if self._asked == signal.SIGHUP:
                process.kill()
            elif self._asked is not None and not told:
                process.send_signal(self._asked)
                told = True
            time.sleep(POLL_SECONDS)
        return process.returncode

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._asked is None and (left := until - time.monotonic()) > 0:
            time.sleep(min(POLL_SECONDS, left))


def main(argv: list[str]) -> int:
    """The exit status."""
    if len(argv) < 2:
        sys.exit("usage: python -m forebay_service.processes.supervisor NAME COMMAND [ARGUMENT …]")
    supervisor = Supervisor(argv[0], argv[1:])
    end_with_parent(signal.SIGHUP)
    return supervisor.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
