"""What tests do to processes, and where these listen."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path

import psutil

STOP_SECONDS_MAX = 30.0


def suspend(pid: int) -> None:
    """Stops a process, and returns when all of its threads stand still: they run on until one of them has taken the signal."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + STOP_SECONDS_MAX
    while any(state != "T" for state in _states(pid)):
        assert time.monotonic() < end, f"threads of {pid} still run: {_states(pid)}"
        time.sleep(0.001)


def family(root: int) -> list[psutil.Process]:
    """All that a process has started, and what those have."""
    return psutil.Process(root).children(recursive=True)


def command_line(process: psutil.Process) -> str:
    """Empty for one that has ended meanwhile."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def alive(processes: list[psutil.Process]) -> list[str]:
    """Those that have not ended some seconds from now; a zombie has."""
    _, left = psutil.wait_procs(processes, timeout=5)
    return [str(process) for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


def _states(pid: int) -> list[str]:
    """A letter for each thread, as proc(5) has them."""
    return [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]


def own_address() -> str:
    """This host's own on a network; empty where it is on none."""
    families = (one for addresses in psutil.net_if_addrs().values() for one in addresses if one.family == socket.AF_INET)
    return next((one.address for one in families if not one.address.startswith("127.")), "")
