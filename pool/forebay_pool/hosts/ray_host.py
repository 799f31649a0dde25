"""The actor that runs one worker process on its node. Sent to the nodes by value: it may import the standard library alone."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

PR_SET_PDEATHSIG = 1
LINES_KEPT = 1_000
"""Lines of a worker's output that wait to be fetched; the oldest are dropped first."""
LINE_CHARACTERS_MAX = 4_096
DRAIN_SECONDS_MAX = 1.0
"""How long the output of an ended worker is waited for, should a child of its own keep the pipe open."""
READY = '{"event": "ready"'
"""How the line begins by which a worker without a pool says where it listens."""
LOOK_SECONDS = 0.05
End = tuple[str, dict[str, str | int]]
"""How a process ended: the code and the values of a cause (`forebay_wire/sentences`)."""
LINGER_SECONDS = 60.0
"""An actor whose worker ended, and that no pool has ended since, ends itself."""


class Host:
    """Runs one worker, and takes it along when it ends itself."""

    def __init__(self) -> None:
        self._started = threading.Event()
        self._ended = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._cause: End = ("ended", {})
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)

    def start(self, argv: Sequence[str], inherit: Sequence[str], environ: Mapping[str, str]) -> int | None:
        """Starts the command with the named variables of this node and ``environ``; its process id, None where it cannot be started."""
        own = {name: os.environ[name] for name in inherit if name in os.environ}
        threading.Thread(target=self._live, args=(list(argv), own | dict(environ)), daemon=True).start()
        self._started.wait()
        return None if self._process is None else self._process.pid

    def wait(self) -> End:
        """Returns once the worker has ended: how."""
        self._ended.wait()
        return self._cause

    def output(self) -> list[str]:
        """The lines that the worker wrote since the last call."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines

    def address(self) -> str | None:
        """Where the process listens that was started as ``--standalone``, once it says so; None where it ended instead."""
        while True:
            for line in list(self._lines):
                if line.startswith(READY):
                    self._lines.remove(line)
                    return str(json.loads(line)["address"])
            if self._ended.wait(LOOK_SECONDS):
                return None

    def _live(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """In a thread of its own: the kernel ends the worker when the thread that started it ends."""
        try:
            self._process = process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=environ,
                process_group=0,
                preexec_fn=_die_with(os.getpid()),
            )
        except OSError as error:
            self._cause = ("not_started", {"program": argv[0], "problem": error.strerror or ""})
        else:
            self._started.set()
            self._cause = self._end_of(process)
        self._started.set()
        self._ended.set()
        time.sleep(LINGER_SECONDS)
        os._exit(0)

    def _end_of(self, process: subprocess.Popen[str]) -> End:
        reader = threading.Thread(target=self._read, args=(process,), daemon=True)
        reader.start()
        status = process.wait()
        _kill_group(process.pid)
        reader.join(DRAIN_SECONDS_MAX)
        return ("killed", {"signal": signal.Signals(-status).name}) if status < 0 else ("exited", {"status": status})

    def _read(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            for line in process.stdout:
                self._lines.append(line.rstrip()[:LINE_CHARACTERS_MAX])


def remove(folders: Sequence[str]) -> None:
    """Removes the folders on this node that there are."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _die_with(parent: int) -> Callable[[], None]:
    libc = ctypes.CDLL(None, use_errno=True)

    def set_death_signal() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return set_death_signal
