"""An interpreter for tests whose processes are forks of ones that have imported what they need: 0.1 s of a processor each, not 0.6 to 4.

A server is a process with one thread that has imported PyTorch, or the pool and the worker's executor, and nothing else. The interpreter
is a small program (``caller.py``) that hands its arguments, environment, folder and streams to a server, which forks; it passes signals
on, and ends as the fork does. If it is killed, so is the fork. All forks end with the tests.

A test that proves how a process starts, what it imports, or which process it is, takes ``sys.executable``; as does one of programs that
start others by ``multiprocessing``, or compute on several threads.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
STOP_SECONDS_MAX = 20
WAITING_MAX = 128
"""Callers that wait while a server imports."""


class ForkingPython:
    """An interpreter at ``path``: as the real one, but for what its servers serve."""

    def __init__(self) -> None:
        self._ending = ExitStack()
        self._folder = Path(self._ending.enter_context(tempfile.TemporaryDirectory(prefix="forks-")))
        self.path = self._folder / "python"
        self.path.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {HERE / "caller.py"} {self._folder} {sys.executable} "$@"\n')
        self.path.chmod(0o755)

    def serve(self, role: str, **more: str) -> None:
        """Starts the server for this role (``preloads.py``), unless it runs; ``more`` is for its environment."""
        address = self._folder / role
        if address.exists():
            return
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")} | more
        environment["OMP_NUM_THREADS"] = "1"  # else libraries start threads as they are loaded
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen(WAITING_MAX)
            command = [sys.executable, str(HERE / "server.py"), role, str(self.path), str(listener.fileno())]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
            server = subprocess.Popen(command, env=environment, pass_fds=[listener.fileno()], start_new_session=True, **pipes)  # type: ignore[call-overload]
        self._ending.callback(_stop, server)

    def close(self) -> None:
        """Ends the servers and all their forks."""
        self._ending.close()


@cache
def _python() -> ForkingPython:
    return ForkingPython()


def services() -> Path:
    """An interpreter that forks pools and workers; those whose devices have gloo too, where all of the tests are to run with it."""
    if os.environ.get("FOREBAY_WORKER_COLLECTIVES") == "gloo":
        _python().serve("collectives", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    _python().serve("services")
    return _python().path


def billing() -> Path:
    """The same interpreter, which forks billing services too."""
    _python().serve("billing")
    return services()


def dashboards() -> Path:
    """The same interpreter, which forks dashboards too."""
    _python().serve("dashboards")
    return services()


def programs() -> Path:
    """The same interpreter, which forks programs too: ``-c CODE``, or a file."""
    _python().serve("programs")
    return services()


def databases() -> Path:
    """The same interpreter, which forks sweeps over PyTorch's databases too."""
    _python().serve("databases", PYTHONPATH=str(HERE.parent))
    return services()


def collectives() -> Path:
    """The same interpreter, which forks workers too whose environment asks for gloo."""
    _python().serve("collectives", TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    return services()


def standin(folder: Path) -> Path:
    """The same interpreter, which forks what has ``standin:0`` among its arguments; the stand-in can be imported from the folder."""
    _python().serve("standin", PYTHONPATH=str(folder))
    return _python().path


def close() -> None:
    """Ends all servers and forks. Called when the tests end."""
    if _python.cache_info().currsize:
        _python().close()
        _python.cache_clear()


def _stop(server: subprocess.Popen[bytes]) -> None:
    assert server.stdin
    server.stdin.close()
    try:
        server.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
