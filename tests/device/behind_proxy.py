"""A worker over TCP behind a proxy that breaks connections, and programs that train at it."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fork_server
from cutting_proxy import CuttingProxy

PROGRAM = Path(__file__).with_name("cut_training.py")
GRACE_SECONDS = 12.0
"""Short, so that a side that hears nothing doubts the connection within half a second."""
SECONDS_MAX = 120
LOOPBACK = "127.0.0.1"


class Served:
    """A worker over TCP that prints its events, behind a proxy."""

    def __init__(self, process: subprocess.Popen[bytes], ticket: str, seed: int) -> None:
        assert process.stdout is not None
        self.process, self.ticket = process, ticket
        ready = json.loads(process.stdout.readline())
        self.address, self.certificate = ready["address"], ready["certificate"]
        self.proxy = CuttingProxy(self.address, seed)
        self._programs: list[subprocess.Popen[str]] = []

    def program(self, name: str, steps: int = 0, address: str | None = None, certificate: str | None = None) -> subprocess.Popen[str]:
        """``address``: None for the proxy's. ``certificate``: None for the worker's."""
        certificate = self.certificate if certificate is None else certificate
        command = [str(fork_server.programs()), str(PROGRAM), address or self.proxy.address, self.ticket, name, str(steps), certificate]
        environment = {key: value for key, value in os.environ.items() if key != "FOREBAY_URL"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self._programs.append(subprocess.Popen(command, env=environment, **pipes))  # type: ignore[call-overload]
        return self._programs[-1]

    def close(self) -> None:
        self.proxy.close()
        for process in (*self._programs, self.process):
            process.kill()
            process.communicate()

    def events(self) -> list[dict[str, Any]]:
        """What the worker printed, once it has ended."""
        printed, _ = self.process.communicate(timeout=SECONDS_MAX)
        return [json.loads(line) for line in printed.splitlines()]


@contextmanager
def served(folder: Path, seed: int = 1, grace: float = GRACE_SECONDS, host: str = LOOPBACK, more: tuple[str, ...] = ()) -> Iterator[Served]:
    """Over TLS where the host is beyond the loopback interface."""
    ticket = secrets.token_hex(32)
    options = ("--ticket", ticket, "--memory", str(1 << 30), "--threads", "1", "--reconnect-seconds", str(grace))
    command = [str(fork_server.services()), "-m", "forebay_worker", "--standalone", f"tcp:{host}:0", *options, *more]
    with (folder / "worker.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
    found = Served(process, ticket, seed)
    try:
        yield found
    finally:
        found.close()


def outcome(program: subprocess.Popen[str]) -> Any:
    printed, said = program.communicate(timeout=SECONDS_MAX)
    assert program.returncode == 0, said
    return json.loads(printed.splitlines()[-1])


def wait_for(met: Callable[[], bool], seconds: float = SECONDS_MAX) -> None:
    until = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < until
        time.sleep(0.01)


def outcome_after(program: subprocess.Popen[str]) -> Any:
    """Of a program that is told to end."""
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    return outcome(program)
