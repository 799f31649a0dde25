"""Calls that are short take one of a worker's threads, long ones all of them: whatever came before, so that equal calls give equal bits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fork_server
import psutil
import pytest
from standalone import standalone_worker

HERE = Path(__file__).parent
THREADS = 2


class Trial:
    """A program, and the worker that computes for it."""

    def __init__(self, worker: psutil.Process, program: subprocess.Popen[str]) -> None:
        self._worker, self._program = worker, program

    def ask(self, question: str) -> float:
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        print(question, file=self._program.stdin, flush=True)
        return float(self._program.stdout.readline())

    def shared(self, question: str) -> float:
        """Which part of what the busiest thread of the worker takes for an answer the next one takes, too."""
        before = {thread.id: thread.user_time for thread in self._worker.threads()}
        self.ask(question)
        took = sorted(thread.user_time - before.get(thread.id, 0.0) for thread in self._worker.threads())
        assert took[-1] >= 0.1, "too little to tell"
        return took[-2] / took[-1]


@pytest.fixture(name="trial", scope="module")
def trial_fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trial]:
    folder = tmp_path_factory.mktemp("short")
    with standalone_worker(folder, "--threads", str(THREADS), python=sys.executable) as (address, ticket):
        worker = next(child for child in psutil.Process().children() if address in child.cmdline())
        command = [fork_server.programs(), "short_calls.py", address, ticket]
        with subprocess.Popen(command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            yield Trial(worker, program)
            program.communicate()


def test_a_step_of_short_calls_leaves_the_other_processors_to_the_program(trial: Trial) -> None:
    trial.ask("trained 256 64 3")
    assert trial.shared("trained 256 64 1500") < 0.1


def test_long_calls_take_all_threads(trial: Trial) -> None:
    trial.ask("trained 2048 1024 1")
    assert trial.shared("trained 2048 1024 12") > 0.5


def test_equal_calls_give_equal_bits_whether_they_come_first_or_again(trial: Trial) -> None:
    assert trial.ask("summed 12") == 1
