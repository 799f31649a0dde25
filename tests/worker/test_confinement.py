"""The process that reads a tenant's descriptions has no network and looks into no other process, and none of its account into a worker."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

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


STRANGER = 60701
STRANGELY = f"""
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def begin():
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid({STRANGER}, {STRANGER}, {STRANGER})
        os.setresuid({STRANGER}, {STRANGER}, {STRANGER})
        libc.prctl(4, 1, 0, 0, 0)  # as after the start of a program
"""
"""Not root from then on: what root imported before may lie where others do not pass."""
WORKER = STRANGELY + """
import torch
from forebay_worker import _executor, __main__ as worker
begin()
sys.exit(worker.main())
"""
OPEN = STRANGELY + """
import time
begin()
print("ready", flush=True)
time.sleep(60)
"""
ATTEMPTS = STRANGELY + """
pid = int(sys.argv[1])
begin()
def traced():
    if libc.ptrace(0x4206, pid, 0, 0) < 0:
        raise OSError(ctypes.get_errno(), "")
def copied():
    class Part(ctypes.Structure):
        _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
    here = ctypes.create_string_buffer(8)
    own, theirs = Part(ctypes.addressof(here), 8), Part(1 << 40, 8)
    if libc.process_vm_readv(pid, ctypes.byref(own), 1, ctypes.byref(theirs), 1, 0) < 0 and ctypes.get_errno() != 14:
        raise OSError(ctypes.get_errno(), "")
for what in (lambda: open(f"/proc/{pid}/mem", "rb"), lambda: open(f"/proc/{pid}/environ", "rb").read(),
             lambda: open(f"/proc/{pid}/maps").read(), lambda: os.readlink(f"/proc/{pid}/fd/0"), traced, copied):
    try:
        what()
        print("done", end=" ")
    except PermissionError:
        print("refused", end=" ")
"""


@pytest.mark.parametrize("closed", [True, False])
def test_a_worker_is_closed_to_other_processes_of_its_account(closed: bool) -> None:
    """As where all workers have one: not as root, in a container."""
    folder = Path(tempfile.mkdtemp())
    if os.getuid() == 0:
        os.chown(folder, STRANGER, STRANGER)
    options = ["--standalone", f"unix:{folder}/socket", "--device", "null:0", "--ticket", "00" * 32]
    program = [WORKER, *options] if closed else [OPEN]
    with subprocess.Popen([sys.executable, "-c", *program], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and b"ready" in process.stdout.readline()
            attempts = [sys.executable, "-c", ATTEMPTS, str(process.pid)]
            told = subprocess.run(attempts, capture_output=True, text=True, check=True, timeout=60).stdout
        finally:
            process.kill()
            shutil.rmtree(folder)
    assert told.split() == ["refused" if closed else "done"] * 6
