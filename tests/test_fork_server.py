"""The interpreter that forks for tests behaves as the real one, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fork_server import ForkingPython

GONE_SECONDS_MAX = 20
SERVER_LOST = 70
"""The exit status of what stands for a fork, where the server ended first (``fork_server/caller.py``)."""
SLEEPS = "import os, time; print(os.getpid(), flush=True); time.sleep(100)"


@pytest.fixture(scope="module")
def python() -> Iterator[ForkingPython]:
    made = ForkingPython()
    made.serve("programs")
    yield made
    made.close()


def run(python: ForkingPython, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python.path, *arguments], capture_output=True, text=True, timeout=60, check=False, **more)


def begun(python: ForkingPython, code: str) -> tuple[subprocess.Popen[str], int]:
    """A process that stands for a fork, and the fork's id, which the code prints."""
    process = subprocess.Popen([python.path, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


def gone(pid: int) -> bool:
    """Whether the process has ended within a while."""
    until = time.monotonic() + GONE_SECONDS_MAX
    while psutil.pid_exists(pid) and time.monotonic() < until:
        time.sleep(0.01)
    return not psutil.pid_exists(pid)


def test_a_program_gets_its_arguments_environment_folder_and_streams(python: ForkingPython, tmp_path: Path) -> None:
    code = "import os, sys, torch; print(sys.argv, os.environ['OWN'], os.getcwd(), input(), torch.ones(2).sum().item())"
    done = run(python, "-c", code, "one", input="a line\n", cwd=tmp_path, env={**os.environ, "OWN": "mine"})
    assert (done.returncode, done.stdout, done.stderr) == (0, f"['-c', 'one'] mine {tmp_path} a line 2.0\n", "")


@pytest.mark.parametrize(
    ("code", "status"),
    [("import sys; sys.exit(3)", 3), ("1 / 0", 1), ("raise SystemExit('a reason')", 1), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_it_ends_as_the_program_does(python: ForkingPython, code: str, status: int) -> None:
    done = run(python, "-c", code)
    assert done.returncode == status
    assert "".join(done.stderr.splitlines()[-1:]) == {"1": "ZeroDivisionError: division by zero", "r": "a reason"}.get(code[0], "")
    assert run(python, "-c", "print('the next one')").stdout == "the next one\n"


def test_signals_are_passed_on_and_what_is_done_at_exit_is_done(python: ForkingPython) -> None:
    code = "import atexit, os, signal; atexit.register(print, 'at exit'); signal.signal(15, lambda *_: exit(7))"
    process, _ = begun(python, code + "; print(os.getpid(), flush=True); signal.pause()")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=GONE_SECONDS_MAX)
    assert (process.returncode, output) == (7, "at exit\n")


def test_a_fork_ends_with_the_process_that_stands_for_it(python: ForkingPython) -> None:
    process, fork = begun(python, SLEEPS)
    assert fork != process.pid and psutil.pid_exists(fork)
    process.kill()
    process.communicate()
    assert gone(fork)


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_hears_of_a_fork_s_end_and_of_its_caller_at_once_and_serves_on(python: ForkingPython, told: signal.Signals) -> None:
    """The caller passes a signal on, or is killed, when the fork has ended already, and the server had no time to look."""
    process, fork = begun(python, SLEEPS)
    server = psutil.Process(fork).parent()
    assert server is not None
    server.suspend()
    try:
        os.kill(fork, signal.SIGKILL)
        until = time.monotonic() + GONE_SECONDS_MAX
        while psutil.Process(fork).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < until
        process.send_signal(told)
        time.sleep(0.1)  # it passes the signal on
    finally:
        server.resume()
    process.communicate(timeout=GONE_SECONDS_MAX)
    assert run(python, "-c", "import os; print(os.getppid())").stdout == f"{server.pid}\n"


def test_a_caller_whose_server_has_died_says_so_and_does_not_become_a_slow_interpreter() -> None:
    python = ForkingPython()
    python.serve("programs")
    assert run(python, "-c", "").returncode == 0
    process, fork = begun(python, SLEEPS)
    psutil.Process(fork).parents()[0].kill()
    process.communicate(timeout=GONE_SECONDS_MAX)
    done = run(python, "-c", "print('run all the same')")
    python.close()
    assert (done.returncode, done.stdout, done.stderr) == (SERVER_LOST, "", "the server of forks has ended\n")


def test_no_fork_outlives_the_servers() -> None:
    python = ForkingPython()
    python.serve("services")
    python.serve("programs")
    process, fork = begun(python, SLEEPS)
    servers = psutil.Process(fork).parents()[0]
    python.close()
    process.communicate(timeout=GONE_SECONDS_MAX)
    assert process.returncode == SERVER_LOST
    assert gone(fork) and not servers.is_running() and not python.path.exists()


def test_what_no_server_forks_is_run_by_the_real_interpreter(python: ForkingPython) -> None:
    done = run(python, "-S", "-c", "import sys; print(sys.flags.no_site, 'torch' in sys.modules)")
    assert (done.returncode, done.stdout) == (0, "1 False\n")
