"""A program goes on over connections to its worker that break, bit for bit."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fork_server
import pytest
from cutting_proxy import KINDS, CuttingProxy

PROGRAM = Path(__file__).with_name("cut_training.py")
GRACE_SECONDS = 12.0
"""Short, so that a side that hears nothing doubts the connection within half a second."""
SECONDS_MAX = 120


class Served:
    """A worker over TCP that prints its events, behind a proxy."""

    def __init__(self, process: subprocess.Popen[bytes], ticket: str, seed: int) -> None:
        assert process.stdout is not None
        self.process, self.ticket = process, ticket
        self.address = json.loads(process.stdout.readline())["address"]
        self.proxy = CuttingProxy(self.address, seed)
        self._programs: list[subprocess.Popen[str]] = []

    def program(self, name: str, steps: int = 0, address: str | None = None) -> subprocess.Popen[str]:
        command = [str(fork_server.programs()), str(PROGRAM), address or self.proxy.address, self.ticket, name, str(steps)]
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
def served(folder: Path, seed: int = 1, grace: float = GRACE_SECONDS) -> Iterator[Served]:
    ticket = secrets.token_hex(32)
    options = ("--ticket", ticket, "--memory", str(1 << 30), "--threads", "1", "--reconnect-seconds", str(grace))
    command = [str(fork_server.services()), "-m", "forebay_worker", "--standalone", "tcp:127.0.0.1:0", *options]
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


@pytest.mark.parametrize(("name", "cuts", "pause"), [("steps", len(KINDS), (0.01, 0.1)), ("bulk", len(KINDS), (0.02, 0.4))])
def test_a_program_whose_connection_is_cut_computes_what_one_computes_that_is_left_alone(
    tmp_path: Path, name: str, cuts: int, pause: tuple[float, float], full_sweep: bool
) -> None:
    cuts = cuts * 20 if full_sweep else cuts
    with served(tmp_path) as cut:
        program = cut.program(name)
        wait_for(lambda: cut.proxy.passages > 0 or program.poll() is not None)
        cut.proxy.cut_often(cuts, pause)
        wait_for(lambda: sum(cut.proxy.cuts.values()) >= cuts or program.poll() is not None)
        found = outcome_after(program)
        assert set(cut.proxy.cuts) == set(KINDS)
        events = [event["event"] for event in cut.events()]
        assert "idle" not in events and "drained" not in events, "the lease that was open at the beginning goes on"
    with served(tmp_path) as left_alone:
        expected = outcome(left_alone.program(name, found["steps"], left_alone.address))
    assert found["steps"] > 1 and found["found"] == expected["found"]


def outcome_after(program: subprocess.Popen[str]) -> Any:
    """Of a program that is told to end."""
    assert program.stdin is not None
    program.stdin.write("\n")
    program.stdin.flush()
    return outcome(program)


def test_a_long_cut_is_told_once_and_ctrl_c_works_meanwhile(tmp_path: Path) -> None:
    with served(tmp_path) as cut:
        program = cut.program("steps")
        wait_for(lambda: cut.proxy.passages > 0)
        time.sleep(1)
        cut.proxy.cut("away", 3.5)
        found = outcome_after_with_words(program)
        assert found.count("forebay: the connection to the worker broke; reconnecting") == 1
    with served(tmp_path) as cut:
        program = cut.program("steps")
        wait_for(lambda: cut.proxy.passages > 0)
        time.sleep(1)
        cut.proxy.close()
        time.sleep(0.3)
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=5)
        assert "KeyboardInterrupt" in said


def outcome_after_with_words(program: subprocess.Popen[str]) -> str:
    _, said = program.communicate("\n", timeout=SECONDS_MAX)
    assert program.returncode == 0, said
    return said


def test_a_worker_waits_no_longer_than_it_says(tmp_path: Path) -> None:
    with served(tmp_path, grace=1.0) as cut:
        program = cut.program("steps")
        wait_for(lambda: cut.proxy.passages > 0)
        time.sleep(0.5)
        cut.proxy.close()
        began = time.monotonic()
        events = [event["event"] for event in cut.events()]
        assert 0.5 < time.monotonic() - began < 5
        assert events[-2:] == ["client_away", "client_gone"]
        _, said = program.communicate(timeout=10)
        assert "the worker was not reached for 1 seconds" in said


def test_a_process_that_is_killed_is_away_for_its_worker(tmp_path: Path) -> None:
    """The pool, to which its link broke as well, tells that it is gone."""
    with served(tmp_path, grace=0.5) as cut:
        program = cut.program("steps")
        wait_for(lambda: cut.proxy.passages > 0)
        time.sleep(0.5)
        program.kill()
        program.communicate()
        assert [event["event"] for event in cut.events()][-2:] == ["client_away", "client_gone"]
