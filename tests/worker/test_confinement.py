"""The process that reads a tenant's descriptions has no network and looks into no other process, and none of its account into a worker."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from forebay_worker import confinement

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


ALL_OTHER_CALLS = """
import ctypes, os, platform
from forebay_worker import confinement
place = confinement.ARCHITECTURES[platform.machine()][1]
known = {numbers[place] for numbers in confinement.ALLOWED.values()} | {checked.numbers[place] for checked in confinement.CHECKED}
confinement.confine(behind_others=False)
libc = ctypes.CDLL(None, use_errno=True)
wrong = []
probes = {335, 336} if platform.machine() == "x86_64" else set()  # the kernel does not ask filters: it signals who calls them
for number in [one for one in range(600) if one not in known | probes] + [0x40000000 + one for one in (0, 41, 59, 101)]:
    ctypes.set_errno(0)
    told = libc.syscall(number, 0, 0, 0, 0, 0, 0), ctypes.get_errno()
    older = number < confinement.NEWER or number >= 0x40000000
    if told != (-1, 1 if older and number != confinement.CLONE3 else 38):
        wrong.append((number, told))
print(wrong)
"""
OF_OTHERS = """
import ctypes, fcntl, os, resource, signal, sys
from forebay_worker.confinement import confine
parent = os.getppid()
confine(behind_others=False)
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    ctypes.set_errno(0)
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
pipe = os.pipe()[0]
for attempt in (
    lambda: os.kill(parent, 0), lambda: os.killpg(os.getpgid(parent), 0), lambda: os.kill(os.getpid(), 0),
    lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE), lambda: os.setpriority(os.PRIO_PROCESS, parent, 19),
    lambda: os.sched_setaffinity(parent, {0}), lambda: os.setsid(), lambda: os.setpgid(0, 0), lambda: os.setuid(65534),
    lambda: fcntl.fcntl(pipe, fcntl.F_SETOWN, parent), lambda: fcntl.fcntl(pipe, fcntl.F_SETSIG, 9),
    lambda: fcntl.ioctl(0, 0x5412, b"x"), lambda: call("prctl", 4, 1, 0, 0, 0), lambda: call("unshare", 0x10000000),
    lambda: call("syscall", 56 if os.uname().machine == "x86_64" else 220, 0x10000000 | 17, 0, 0, 0, 0), lambda: os.mkfifo("fifo"),
    lambda: os.memfd_create("m"), lambda: os.chroot("/"), lambda: call("mount", b"a", b"/", b"tmpfs", 0, 0), lambda: os.pidfd_open(parent),
    lambda: call("personality", 0x0040000), lambda: call("fanotify_init", 0, 0), lambda: call("syscall", 425, 1, 0),
):
    try:
        attempt()
        print("done", end=" ")
    except PermissionError:
        print("refused", end=" ")
    except OSError as error:
        print(error, end=" ")
print("|", fcntl.fcntl(pipe, fcntl.F_GETFD), resource.getrlimit(resource.RLIMIT_NOFILE)[0], os.isatty(0), end="")
"""


def confined(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, start_new_session=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_confined_process_has_the_calls_of_a_list_and_no_others() -> None:
    assert confined(ALL_OTHER_CALLS) == "[]\n"


def test_a_confined_process_reaches_no_other_one_and_no_namespace() -> None:
    attempts, _, still = confined(OF_OTHERS).partition("|")
    assert attempts.split() == ["refused"] * 23
    assert still == " 1 512 False", "what it may do with its own goes on"


@pytest.mark.parametrize(("place", "header"), [(0, "x86_64-linux-gnu/asm/unistd_64.h"), (1, "asm-generic/unistd.h")])
def test_the_numbers_of_system_calls_are_the_kernels(place: int, header: str) -> None:
    path = Path("/usr/include", header)
    if not path.exists():
        pytest.skip(f"no {path}: install the kernel's headers (linux-libc-dev)")
    said = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", path.read_text()))
    said.setdefault("newfstatat", said.get("fstatat", ""))
    ours = {name: numbers[place] for name, numbers in confinement.ALLOWED.items() if numbers[place] is not None}
    checked = dict(zip(("ioctl", "fcntl", "prctl", "prlimit64", "clone"), (one.numbers[place] for one in confinement.CHECKED), strict=True))
    assert {name: int(said[name]) for name in ours | checked} == ours | checked
    assert int(said["clone3"]) == confinement.CLONE3 and confinement.NEWER > max(int(said[name]) for name in ours)
    dangerous = "ptrace kill tkill tgkill socket connect bind bpf keyctl mount unshare setns io_uring_setup process_vm_readv setsid"
    assert not set(dangerous.split()) & set(confinement.ALLOWED)


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


FORKS = STRANGELY + """
from forebay_worker.confinement import confine
begin()
others = [child for child in (os.fork() for _ in range(40)) if child or os.execvp("sleep", ["sleep", "60"])]
confine(behind_others=False)
started = 0
try:
    for _ in range(2_000):
        if not os.fork():
            os.execvp("sleep", ["sleep", "60"])
        started += 1
except BlockingIOError:
    pass
print(started, flush=True)
"""


def test_a_confined_process_of_an_account_starts_no_more_than_so_many_others() -> None:
    """Others of its account are there already, which count for nothing."""
    with subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            started = int(process.stdout.readline())
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert started == confinement.PROCESSES_MORE_MAX


MANY = """
import os
from forebay_worker.confinement import confine
confine(behind_others=False)
for _ in range(100):
    if not os.fork():
        os.execvp("sleep", ["sleep", "60"])
print(flush=True)
"""
MUCH = """
import os
from forebay_worker.confinement import confine
confine(behind_others=False)
for number in range(200):
    open(f"{number}", "w").close()
print(flush=True)
os.execvp("sleep", ["sleep", "60"])
"""


@pytest.mark.parametrize(("program", "why"), [(MANY, "more than 64 processes"), (MUCH, "bytes or 100 files")])
def test_a_session_that_takes_too_much_together_is_ended_with_all_its_processes(
    program: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confinement, "FOLDER_FILES_MAX", 100)
    monkeypatch.setattr(confinement, "WATCH_SECONDS", 0.05)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True, cwd=tmp_path) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"\n"
            told = asyncio.run(asyncio.wait_for(confinement.Watch(process.pid, tmp_path).run(), 30))
            assert why in told
            assert process.wait(30) == -signal.SIGKILL or program == MANY
            assert process.stdout.read() == b"", "nobody holds the pipe any more"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def test_a_session_within_its_bounds_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as process:
        (tmp_path / "file").write_bytes(bytes(100))
        assert confinement.Watch(process.pid, tmp_path).excess() == ""
        process.kill()
