"""What a process may not do that reads a tenant's data, and what others may not do to it: no process of the same account looks into it."""

from __future__ import annotations

import asyncio
import contextlib
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
OPEN_FILES_MAX = 512
PROCESSES_MORE_MAX = 256
"""Processes and threads of its account beyond those that there are when a process is confined. The kernel bounds nobody who is root."""

PROCESSES_MAX = 64
"""Of a confined session, at a moment when :class:`Watch` looks."""
MOST_PROCESSES = 1 << 22
"""That a kernel knows."""
MEMORY_BYTES_MAX = 16 << 30
FOLDER_BYTES_MAX, FOLDER_FILES_MAX = 4 << 30, 20_000
IDLE_NEEDED = 1.25
"""Idle processors, on the mean, for a compiler to begin or go on: it takes one, and a session that begins is not held up."""
IDLE_LEFT = 0.25
"""Beside a compiler that is at work. Below that it is stopped."""
SAMPLE_SECONDS = 0.25
BUSY_SECONDS = 2.0
"""Between samples of a host that has none to spare."""
SAMPLES = 4
"""So many samples in a row must find a processor to spare before a compiler begins or goes on."""
WATCH_SECONDS = 0.5

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, JUMP_IF_ANY, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, REFUSE, UNKNOWN, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
"""REFUSE says EPERM, and UNKNOWN ENOSYS, as a kernel does that lacks the call: the C library then takes another one."""
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET, ARGUMENT_BYTES = 0, 4, 16, 8
OTHER_TABLE = 0x40000000
"""Numbers from here on are those of x32, which has the same calls once more."""
NEWER = 440
"""Numbers from here on are of calls that an older kernel lacks, the same on all architectures. None of them is allowed."""

ALLOWED = {
    "read": (0, 63), "write": (1, 64), "open": (2, None), "close": (3, 57), "stat": (4, None), "fstat": (5, 80), "lstat": (6, None),
    "poll": (7, None), "lseek": (8, 62), "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "pread64": (17, 67), "pwrite64": (18, 68),
    "readv": (19, 65), "writev": (20, 66), "access": (21, None), "pipe": (22, None), "select": (23, None), "sched_yield": (24, 124),
    "mremap": (25, 216), "msync": (26, 227), "mincore": (27, 232), "madvise": (28, 233), "dup": (32, 23), "dup2": (33, None),
    "nanosleep": (35, 101), "getpid": (39, 172), "sendfile": (40, 71), "fork": (57, None), "vfork": (58, None), "execve": (59, 221),
    "exit": (60, 93), "wait4": (61, 260), "uname": (63, 160), "flock": (73, 32), "fsync": (74, 82), "fdatasync": (75, 83),
    "truncate": (76, 45), "ftruncate": (77, 46), "getdents": (78, None), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50),
    "rename": (82, None), "mkdir": (83, None), "rmdir": (84, None), "creat": (85, None), "link": (86, None), "unlink": (87, None),
    "symlink": (88, None), "readlink": (89, None), "chmod": (90, None), "fchmod": (91, 52), "umask": (95, 166),
    "gettimeofday": (96, 169), "getrlimit": (97, 163), "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153),
    "getuid": (102, 174), "getgid": (104, 176), "geteuid": (107, 175), "getegid": (108, 177), "getppid": (110, 173),
    "getpgrp": (111, None), "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150), "getpgid": (121, 155),
    "getsid": (124, 156), "rt_sigpending": (127, 136), "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132), "utime": (132, None), "statfs": (137, 43), "fstatfs": (138, 44), "getpriority": (140, 141),
    "sched_getparam": (143, 121), "sched_getscheduler": (145, 120), "arch_prctl": (158, None), "gettid": (186, 178), "futex": (202, 98),
    "sched_getaffinity": (204, 123), "epoll_create": (213, None), "getdents64": (217, 61), "set_tid_address": (218, 96),
    "restart_syscall": (219, 128), "fadvise64": (221, 223), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115), "exit_group": (231, 94), "epoll_wait": (232, None), "epoll_ctl": (233, 21), "mbind": (237, 235),
    "get_mempolicy": (239, 236), "waitid": (247, 95), "openat": (257, 56), "mkdirat": (258, 34), "newfstatat": (262, 79),
    "unlinkat": (263, 35), "renameat": (264, 38), "linkat": (265, 37), "symlinkat": (266, 36), "readlinkat": (267, 78),
    "fchmodat": (268, 53), "faccessat": (269, 48), "pselect6": (270, 72), "ppoll": (271, 73), "set_robust_list": (273, 99),
    "get_robust_list": (274, 100), "utimensat": (280, 88), "epoll_pwait": (281, 22), "fallocate": (285, 47), "eventfd2": (290, 19),
    "epoll_create1": (291, 20), "dup3": (292, 24), "pipe2": (293, 59), "preadv": (295, 69), "pwritev": (296, 70), "getcpu": (309, 168),
    "renameat2": (316, 276), "getrandom": (318, 278), "membarrier": (324, 283), "copy_file_range": (326, 285), "statx": (332, 291),
    "rseq": (334, 293), "close_range": (436, 436), "faccessat2": (439, 439),
}  # fmt: skip
"""System calls that compilers need, with their numbers on x86_64 and aarch64: files, memory, time, and processes of their own. None of them
reaches another process, a network or a namespace."""


class Checked(NamedTuple):
    """A call that is allowed with some values of an argument alone."""

    numbers: tuple[int, int]
    argument: int
    only: tuple[int, ...] = ()
    never: tuple[int, ...] = ()
    without_bits: int = 0


CHECKED = (
    Checked((16, 29), 1, only=(0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)),
    Checked((72, 25), 1, never=(8, 10, 15)),
    Checked((157, 167), 0, only=(3, 15, 16, 0x53564D41)),
    Checked((302, 261), 0, only=(0,)),
    Checked((56, 220), 0, without_bits=0x7E020000),
)
"""ioctl without what writes into a terminal; fcntl without what has another process signalled; prctl that names threads and
memory, and asks whether a core is written; prlimit64 of the caller itself; clone without new namespaces."""
CLONE3 = 435
"""It takes what clone does out of memory, where a filter does not look."""
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""The name of each, and its place in the tables."""


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
    bounds = {resource.RLIMIT_AS: ADDRESS_BYTES_MAX, resource.RLIMIT_CPU: CPU_SECONDS_MAX, resource.RLIMIT_FSIZE: FILE_BYTES_MAX}
    for kind, most in (bounds | {resource.RLIMIT_NOFILE: OPEN_FILES_MAX, resource.RLIMIT_CORE: 0}).items():
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))
    bound_processes(PROCESSES_MORE_MAX)
    _control(PR_SET_PDEATHSIG, signal.SIGKILL)
    _control(PR_SET_NO_NEW_PRIVS, 1)
    refuse_calls()


def bound_processes(more: int) -> None:
    """Lets this process's account have at most so many more processes and threads, as far as it is this process and its children that start
    them. How many there are is tried out, since an account may not see all that it has. Raises OSError."""
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    most = MOST_PROCESSES if hard == resource.RLIM_INFINITY else hard
    least = 1
    while least < most:
        middle = min(2 * least, (least + most) // 2)
        resource.setrlimit(resource.RLIMIT_NPROC, (middle, hard))
        least, most = (least, middle) if _forks() else (middle + 1, most)
    there = most - 1
    bound = there + more if hard == resource.RLIM_INFINITY else min(there + more, hard)
    resource.setrlimit(resource.RLIMIT_NPROC, (bound, bound))


def _forks() -> bool:
    """Whether one more process can be started."""
    try:
        child = os.fork()
    except OSError:
        return False
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    return True


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
    """Leaves the calls that compilers need, and no others. Raises OSError."""
    known = ARCHITECTURES.get(platform.machine())
    if known is None:
        raise OSError(f"system calls of {platform.machine()} are not known here")
    code = filter_of(*known)
    program = Program(len(code) // 8, code)
    _control(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(program))


Rule = tuple[int, int, int, int]
"""What to do, how many rules to pass if so, and if not, and a value: ``struct sock_filter``."""


def filter_of(architecture: int, place: int) -> bytes:
    """The filter as the kernel runs it for each system call."""
    rules: list[Rule] = [
        (LOAD, 0, 0, ARCHITECTURE_OFFSET),
        (JUMP_IF_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_OFFSET),
        (JUMP_IF_AT_LEAST, 0, 1, OTHER_TABLE),
        (RETURN, 0, 0, REFUSE),
    ]
    for numbers in ALLOWED.values():
        number = numbers[place]
        if number is not None:
            rules += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, ALLOW)]
    for checked in CHECKED:
        check = _check_of(checked)
        rules += [(JUMP_IF_EQUAL, 0, len(check), checked.numbers[place]), *check]
    rules += [(JUMP_IF_EQUAL, 1, 0, CLONE3), (JUMP_IF_AT_LEAST, 0, 1, NEWER), (RETURN, 0, 0, UNKNOWN), (RETURN, 0, 0, REFUSE)]
    return b"".join(struct.pack("=HBBI", *rule) for rule in rules)


def _check_of(checked: Checked) -> list[Rule]:
    """Looks at the low half of the argument, which is all that these calls take of it."""
    rules: list[Rule] = [(LOAD, 0, 0, ARGUMENTS_OFFSET + ARGUMENT_BYTES * checked.argument)]
    for value in checked.only:
        rules += [(JUMP_IF_EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]
    for value in checked.never:
        rules += [(JUMP_IF_EQUAL, 0, 1, value), (RETURN, 0, 0, REFUSE)]
    if checked.without_bits:
        rules += [(JUMP_IF_ANY, 0, 1, checked.without_bits), (RETURN, 0, 0, REFUSE)]
    return [*rules, (RETURN, 0, 0, REFUSE if checked.only else ALLOW)]


class SpareProcessor:
    """A processor of this host that nobody needs, of those that this process may use: what a compiler may take while sessions compute
    (``/proc/stat``)."""

    def __init__(self) -> None:
        self._names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        self._tick_seconds = 1 / os.sysconf("SC_CLK_TCK")

    async def wait(self) -> None:
        """Until there is one to spare."""
        found = 0
        while found < SAMPLES:
            if await self._idle() >= IDLE_NEEDED:
                found += 1
                continue
            found = 0
            await asyncio.sleep(BUSY_SECONDS)

    async def give_way(self, session: int) -> None:
        """Stops the processes of this process group while the host has none to spare, until it is cancelled."""
        while True:
            if await self._idle() >= IDLE_LEFT:
                continue
            _signal(session, signal.SIGSTOP)
            try:
                await self.wait()
            finally:
                _signal(session, signal.SIGCONT)

    async def _idle(self) -> float:
        """How many were idle, on the mean, in the seconds that this takes."""
        loop = asyncio.get_running_loop()
        begin, idle = loop.time(), self._idle_seconds()
        await asyncio.sleep(SAMPLE_SECONDS)
        return (self._idle_seconds() - idle) / (loop.time() - begin)

    def _idle_seconds(self) -> float:
        lines = (line.split() for line in Path("/proc/stat").read_text().splitlines())
        return sum(int(words[4]) for words in lines if words and words[0] in self._names) * self._tick_seconds


class Watch:
    """Ends a confined session that takes too much together: what the kernel bounds, it bounds for each process. Nobody leaves such a
    session, since its filter allows neither ``setsid`` nor ``setpgid``."""

    def __init__(self, session: int, folder: Path) -> None:
        self._session = session
        self._folder = folder

    async def run(self) -> str:
        """Until it has ended the session, or is cancelled; says why."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            why = await asyncio.to_thread(self.excess)
            if why:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._session, signal.SIGKILL)
                return why

    def excess(self) -> str:
        """What there is too much of; empty where nothing is."""
        processes = [one for one in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_of(one)]
        if len(processes) > PROCESSES_MAX:
            return f"its compiler has more than {PROCESSES_MAX} processes"
        if sum(map(_resident_bytes, processes)) > MEMORY_BYTES_MAX:
            return f"its compiler takes more than {MEMORY_BYTES_MAX} bytes of memory"
        files = count = 0
        for root, _, names in os.walk(self._folder):
            count += len(names)
            files += sum(_file_bytes(os.path.join(root, name)) for name in names)
            if files > FOLDER_BYTES_MAX or count > FOLDER_FILES_MAX:
                return f"its compiler writes more than {FOLDER_BYTES_MAX} bytes or {FOLDER_FILES_MAX} files"
        return ""

    def _is_of(self, process: int) -> bool:
        try:
            return os.getsid(process) == self._session
        except OSError:
            return False


def _signal(session: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(session, number)


def _resident_bytes(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


def _file_bytes(path: str) -> int:
    try:
        return os.lstat(path).st_blocks * 512
    except OSError:
        return 0


def _control(option: int, *values: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0, 0)[:4]]
    if libc.prctl(option, *arguments) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}): {os.strerror(ctypes.get_errno())}")
