"""The process that reads a tenant's descriptions has no network and looks into no other process."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes, os, socket
from forebay_worker.confinement import confine
before = os.getpriority(os.PRIO_PROCESS, 0)
confine()
assert os.getpriority(os.PRIO_PROCESS, 0) == max(12, before)
assert os.sched_getscheduler(0) == os.SCHED_BATCH
if os.path.exists("/proc/self/autogroup"):
    assert open("/proc/self/autogroup").read().split()[-1] == str(max(12, before)), "niceness counts beside other sessions, too"
for family in (socket.AF_INET, socket.AF_UNIX):
    try:
        socket.socket(family)
    except PermissionError:
        continue
    raise SystemExit("a socket")
if ctypes.CDLL(None, use_errno=True).ptrace(16, os.getppid(), 0, 0) != -1 or ctypes.get_errno() != 1:
    raise SystemExit("ptrace")
print(open("/proc/self/status").read().count("Seccomp:\\t2"), flush=True)
os.execvp("sh", ["sh", "-c", "exec python3 -c 'import socket; socket.socket()' 2>&1 | tail -1"])
"""


def test_a_confined_process_and_its_children_have_no_sockets() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, start_new_session=True)
    assert done.returncode == 0, done.stderr
    seccomp, child = done.stdout.splitlines()
    assert seccomp == "1"
    assert child == "PermissionError: [Errno 1] Operation not permitted"
