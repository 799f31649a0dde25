"""A service ends with the hub that started it, however the hub ends."""

from __future__ import annotations

import subprocess
import sys

import psutil

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "forebay_service.processes.parent_death", "sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_command_on_the_leash_ends_when_its_parent_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        deadline = 10.0
        while child.name() != "sleep" and deadline > 0:
            deadline -= 0.05
            psutil.wait_procs([child], timeout=0.05)
        parent.kill()
        gone, alive = psutil.wait_procs([child], timeout=10)
    assert not [process for process in alive if process.status() != psutil.STATUS_ZOMBIE], gone


def test_a_command_that_does_not_exist_is_named() -> None:
    command = [sys.executable, "-m", "forebay_service.processes.parent_death", "no-such-command"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1 and "no-such-command cannot be started" in run.stderr


def test_without_a_command_it_says_how_to_use_it() -> None:
    run = subprocess.run([sys.executable, "-m", "forebay_service.processes.parent_death"], capture_output=True, text=True, check=False)
    assert run.returncode == 1 and run.stderr.startswith("usage:")
