"""What a process may not do that reads a tenant's data, and what others may not do to it: no process of the same account looks into it."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import signal
import struct
import time
from pathlib import Path
from typing import NamedTuple

NICENESS = 12
"""At least. Two threads at 0 that have two processors lose 3 % each to one at 12; beside a worker niced as much it gets its share."""
AUTOGROUP = Path("/proc/self/autogroup")
"""Where the kernel shares processors among sessions first: this session's niceness."""
AUTOGROUP_ATTEMPTS, AUTOGROUP_SECONDS = 20, 0.1
"""The kernel lets one process alone set one in so long a time, unless it is root's."""
ADDRESS_BYTES_MAX = 12 << 30
CPU_SECONDS_MAX = 1800
FILE_BYTES_MAX = 1 << 30

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050001, 0x80000000
NUMBER_OFFSET, ARCHITECTURE_OFFSET = 0, 4
OTHER_TABLE = 0x40000000
"""Numbers from here on are those of x32, which has the same calls once more."""


class Calls(NamedTuple):
    """How an architecture numbers system calls."""

    architecture: int
    refused: tuple[int, ...]
    """socket, connect, bind, ptrace, process_vm_readv, process_vm_writev, io_uring_setup, pidfd_getfd."""


CALLS = {
    "x86_64": Calls(0xC000003E, (41, 42, 49, 101, 310, 311, 425, 438)),
    "aarch64": Calls(0xC00000B7, (198, 203, 200, 117, 270, 271, 425, 438)),
}


class Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def close() -> None:
    """Neither memory nor variables nor open files of this process are shown to another one of the same account, or traced, and no core is
    written; root's capabilities are above that. What this process starts is open again. Raises OSError."""
    _control(PR_SET_DUMPABLE, 0)


def confine(behind_others: bool = True) -> None:
    """Closes this process, and holds it and its children from here on to its share of the host, without network and without a look at other
    processes; ``behind_others`` where nobody waits for it. Raises OSError where this host's kernel cannot."""
    if behind_others:  # while it may still write what the kernel has of it in /proc
        give_way(max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    close()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES_MAX, ADDRESS_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS_MAX, CPU_SECONDS_MAX))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)
    _control(PR_SET_NO_NEW_PRIVS, 1)
    refuse_calls()


def give_way(niceness: int) -> None:
    """To all other processes. A process's own niceness counts among those of its session alone where the kernel has a group of each."""
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    for _ in range(AUTOGROUP_ATTEMPTS if os.getsid(0) == os.getpid() else 0):
        try:
            AUTOGROUP.write_text(f"{niceness}")
        except BlockingIOError:
            time.sleep(AUTOGROUP_SECONDS)
            continue
        except OSError:  # this kernel has no such groups, or lets none be changed here
            pass
        return


def refuse_calls() -> None:
    """No sockets, and no look into other processes. Raises OSError."""
    calls = CALLS.get(platform.machine())
    if calls is None:
        raise OSError(f"system calls of {platform.machine()} are not known here")
    code = filter_of(calls)
    program = Program(len(code) // 8, code)
    _control(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))


def filter_of(calls: Calls) -> bytes:
    """The filter as the kernel runs it for each system call."""
    checks = len(calls.refused)
    rules = [
        (LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (JUMP_IF_EQUAL, 1, 0, calls.architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_OFFSET),
        (JUMP_IF_AT_LEAST, checks + 1, 0, OTHER_TABLE),
        *((JUMP_IF_EQUAL, checks - place, 0, number) for place, number in enumerate(calls.refused)),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, REFUSE),
    ]
    return b"".join(struct.pack("=HBBI", *rule) for rule in rules)


def _control(option: int, *values: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *arguments) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")
