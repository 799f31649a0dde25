"""``server.py ROLE PYTHON LISTENER``: imports what the role needs, then forks for each caller, until standard input ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from preloads import PRELOADS

PR_SET_PDEATHSIG = 1


def _read(caller: socket.socket, size: int) -> dict[str, Any] | None:
    """What a caller asks; nothing of one that was killed meanwhile."""
    read = caller.recv(size, socket.MSG_WAITALL)
    return json.loads(read) if len(read) == size else None


@dataclass
class Fork:
    """A process of a caller's. ``pidfd`` can be read once it has ended."""

    pid: int
    pidfd: int
    caller: socket.socket


@dataclass
class Server:
    """Forks, and tells each caller how its fork ended."""

    listener: socket.socket
    selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)
    forks: set[int] = field(default_factory=set)

    def serve(self) -> dict[str, Any] | None:
        """Returns in each fork what was asked, and None in the server once standard input has ended."""
        self.selector.register(self.listener, selectors.EVENT_READ)
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ)
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is self.listener:
                    asked = self._accept()
                    if asked is not None:
                        return asked
                elif key.data is None:
                    return None
                elif key.fileobj == key.data.pidfd:
                    self._ended(key.data)
                else:
                    self._told(key.data)

    def close(self) -> None:
        """Ends all forks."""
        for pid in self.forks:
            os.killpg(pid, signal.SIGKILL)
        for pid in self.forks:
            os.waitpid(pid, 0)

    def _accept(self) -> dict[str, Any] | None:
        """Forks for a caller; in the fork, what it asked."""
        caller, _ = self.listener.accept()
        head, streams, _, _ = socket.recv_fds(caller, 4, 3)
        asked = _read(caller, struct.unpack("I", head)[0]) if head else None
        if asked is None:  # it was killed before it asked
            caller.close()
            for stream in streams:
                os.close(stream)
            return None
        pid = os.fork()
        if pid == 0:
            for descriptor, stream in enumerate(streams):
                os.dup2(stream, descriptor)
            os.setpgid(0, 0)  # what it starts ends with it, unless that is a session of its own
            caller.close()
            self._forget()
        for stream in streams:
            os.close(stream)
        if pid == 0:
            return asked
        with contextlib.suppress(PermissionError):  # it did so itself, and has become another program
            os.setpgid(pid, pid)
        fork = Fork(pid, os.pidfd_open(pid), caller)
        self.forks.add(pid)
        self.selector.register(fork.pidfd, selectors.EVENT_READ, fork)
        self.selector.register(caller, selectors.EVENT_READ, fork)
        return None

    def _forget(self) -> None:
        """Closes in a fork what is the server's."""
        for key in list(self.selector.get_map().values()):
            if key.data is not None and key.fileobj == key.data.pidfd:
                os.close(key.data.pidfd)
                key.data.caller.close()
        self.selector.close()
        self.listener.close()

    def _ended(self, fork: Fork) -> None:
        _, status = os.waitpid(fork.pid, 0)
        self.forks.remove(fork.pid)
        self.selector.unregister(fork.pidfd)
        os.close(fork.pidfd)
        if fork.caller.fileno() in self.selector.get_map():
            self.selector.unregister(fork.caller)
            with contextlib.suppress(OSError):  # it was killed
                fork.caller.send(struct.pack("i", status), socket.MSG_NOSIGNAL)
        fork.caller.close()

    def _told(self, fork: Fork) -> None:
        """A signal to pass on, or the caller's end."""
        if fork.caller.fileno() < 0:  # both came at once, and the fork's end was looked at first
            return
        try:
            numbers = fork.caller.recv(64)
        except OSError:
            numbers = b""
        for number in numbers if fork.pid in self.forks else b"":
            os.kill(fork.pid, number)
        if not numbers:
            self.selector.unregister(fork.caller)
            if fork.pid in self.forks:
                os.killpg(fork.pid, signal.SIGKILL)


def become(asked: dict[str, Any], python: str) -> None:
    """Makes this process what the caller's would be. ``python`` is what it takes for its interpreter."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # nothing outlives the server
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number in asked["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    tempfile.tempdir = None
    sys.executable = python
    sys.orig_argv = [python, *asked["arguments"]]
    sys.path[:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]


def run(arguments: list[str]) -> None:
    """Does what an interpreter does with these arguments: ``-m MODULE …``, ``-c CODE …`` or ``FILE …``."""
    first, *rest = arguments
    if first == "-m":
        sys.argv = rest
        sys.path.insert(0, os.getcwd())
        sys.modules.pop(f"{rest[0]}.__main__", None)  # it runs as it is found, once more
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    if first == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        code = compile(rest[0], "<string>", "exec")
    else:
        sys.argv = arguments
        sys.path.insert(0, str(Path(first).resolve().parent))
        main.__file__ = first
        code = compile(Path(first).read_bytes(), first, "exec")
    exec(code, main.__dict__)  # noqa: S102 it is what the test asked an interpreter to do


def activate() -> None:
    """What ``import torch`` does besides, once the environment says to."""
    from forebay import activation

    activation.activate()


@dataclass
class Exit:
    """Ends a fork after all else that is done at exit, without clearing memory: that would copy each page shared with the server."""

    status: int | None = None
    """None: as the interpreter does."""

    def __call__(self) -> None:
        if self.status is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.status)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, SystemExit):
            self.status = error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
        elif not isinstance(error, KeyboardInterrupt):
            self.status = int(error is not None)


def main(role: str, python: str, listener: str) -> None:
    leaving = Exit()
    atexit.register(leaving)  # the first one registered is the last one called
    own, sys.executable = sys.executable, python  # the pool's default for its workers
    gc.disable()  # what is imported stays
    PRELOADS[role]()
    if len(os.listdir("/proc/self/task")) > 1:
        raise SystemExit(f"what {role} import starts threads, which a fork lacks")
    gc.freeze()
    gc.enable()
    server = Server(socket.socket(fileno=int(listener)))
    asked = server.serve()
    if asked is None:
        server.close()
        return
    with leaving:
        workers = asked["arguments"][:2] == ["-m", "forebay_worker"]
        become(asked, own if workers else python)  # processes of a worker's other devices are its children
        if role in ("programs", "databases"):
            activate()
        run(asked["arguments"])


if __name__ == "__main__":
    main(*sys.argv[1:])
