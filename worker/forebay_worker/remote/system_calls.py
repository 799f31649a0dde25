"""The system calls that a user's process may make: a filter for seccomp, which libseccomp compiles."""

from __future__ import annotations

import ctypes
import errno
import os
from ctypes.util import find_library

ALLOW = 0x7FFF0000
REFUSE = 0x00050000
"""With an error's number: the call fails with it."""
OPTIMIZE = 8
"""``SCMP_FLTATR_CTL_OPTIMIZE``; its value 2 finds a call in a binary tree."""
EQUAL, MASKED_EQUAL = 4, 7
NAMESPACES = 0x7E020000
"""The flags of ``clone`` that make namespaces."""
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16

ALLOWED = """
    accept accept4 access alarm arch_prctl bind brk capget capset chdir chmod chown clock_getres clock_gettime clock_nanosleep close
    close_range connect copy_file_range creat dup dup2 dup3 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2
    epoll_wait epoll_wait_old eventfd eventfd2 execve execveat exit exit_group faccessat faccessat2 fadvise64 fallocate fchdir fchmod
    fchmodat fchmodat2 fchown fchownat fcntl fdatasync fgetxattr flistxattr flock fork fremovexattr fsetxattr fstat fstatfs fsync ftruncate
    futex futex_requeue futex_wait futex_waitv futex_wake futimesat get_mempolicy get_robust_list get_thread_area getcpu getcwd getdents
    getdents64 getegid geteuid getgid getgroups getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid
    getresuid getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getxattr inotify_add_watch inotify_init
    inotify_init1 inotify_rm_watch io_cancel io_destroy io_getevents io_setup io_submit ioctl ioprio_get ioprio_set kill lchown lgetxattr
    link linkat listen listxattr llistxattr lremovexattr lseek lsetxattr lstat madvise mbind membarrier mincore mkdir mkdirat
    mknod mknodat mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap nanosleep newfstatat open openat openat2 pause
    pipe pipe2 poll ppoll prctl pread64 preadv preadv2 prlimit64 process_mrelease pselect6 pwrite64 pwritev pwritev2 read readahead readlink
    readlinkat readv recvfrom recvmmsg recvmsg remap_file_pages removexattr rename renameat renameat2 restart_syscall rmdir rseq
    rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler sched_rr_get_interval
    sched_setaffinity sched_setattr sched_setparam sched_setscheduler sched_yield select sendfile sendmmsg sendmsg sendto set_mempolicy
    set_robust_list set_thread_area set_tid_address setgid setgroups setitimer setpgid setpriority setregid setresgid setresuid setreuid
    setrlimit setsid setsockopt setuid setxattr shutdown sigaltstack signalfd signalfd4 socketpair splice stat statfs statx symlink
    symlinkat sync sync_file_range syncfs sysinfo tee tgkill time timer_create timer_delete timer_getoverrun timer_gettime timer_settime
    timerfd_create timerfd_gettime timerfd_settime times tkill truncate umask uname unlink unlinkat utime utimensat utimes vfork vmsplice
    wait4 waitid waitpid write writev
""".split()
"""Files, memory, time, signals, threads and processes of the sandbox's own. Not among them, and so refused with EPERM: namespaces and
mounts, other processes' memory and tracing, keys, BPF, events of the kernel's own, io_uring, modules, clocks, swap and all that takes a
capability."""
COUNTED_ELSEWHERE = """
    memfd_create msgctl msgget msgrcv msgsnd semctl semget semop semtimedop shmat shmctl shmdt shmget
""".split()
"""They keep memory that no process has mapped. Allowed where a control group counts that memory."""


class Argument(ctypes.Structure):
    """``struct scmp_arg_cmp``."""

    _fields_ = (("number", ctypes.c_uint), ("compares", ctypes.c_int), ("first", ctypes.c_uint64), ("second", ctypes.c_uint64))


class Filter:
    """A filter of this host's architecture that refuses what it does not allow."""

    def __init__(self) -> None:
        """Raises OSError where libseccomp is not installed."""
        name = find_library("seccomp")
        if name is None:
            raise OSError(errno.ENOENT, "libseccomp is not installed")
        self._library = ctypes.CDLL(name, use_errno=True)
        self._library.seccomp_init.restype = ctypes.c_void_p
        context = self._library.seccomp_init(ctypes.c_uint32(REFUSE | errno.EPERM))
        if not context:
            raise OSError(errno.ENOMEM, "libseccomp made no filter")
        self._context = ctypes.c_void_p(context)
        self._check(self._library.seccomp_attr_set(self._context, OPTIMIZE, ctypes.c_uint32(2)))

    def add(self, name: str, action: int = ALLOW, *arguments: Argument) -> None:
        """A rule for one call, if this host's libseccomp and architecture have it. Raises OSError."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:
            array = (Argument * len(arguments))(*arguments)
            count = ctypes.c_uint(len(arguments))
            self._check(self._library.seccomp_rule_add_array(self._context, ctypes.c_uint32(action), number, count, array))

    def into(self, descriptor: int) -> None:
        """Writes it as the kernel runs it. Raises OSError."""
        self._check(self._library.seccomp_export_bpf(self._context, descriptor))

    def close(self) -> None:
        """Frees its memory."""
        self._library.seccomp_release(self._context)

    def _check(self, result: int) -> None:
        if result < 0:
            raise OSError(-result, f"libseccomp: {os.strerror(-result)}")


def write_filter(descriptor: int, counted: bool) -> None:
    """Writes the filter of a user's process. ``counted``: a control group bounds its memory. Raises OSError."""
    made = Filter()
    try:
        for name in (*ALLOWED, *(COUNTED_ELSEWHERE if counted else ())):
            made.add(name)
        made.add("clone", ALLOW, Argument(0, MASKED_EQUAL, NAMESPACES, 0))
        made.add("clone3", REFUSE | errno.ENOSYS)  # its flags are in memory, where a filter does not look: C libraries then take clone
        for family in (AF_UNIX, AF_INET, AF_INET6):
            made.add("socket", ALLOW, Argument(0, EQUAL, family, 0))
        made.add("socket", ALLOW, Argument(0, EQUAL, AF_NETLINK, 0), Argument(2, EQUAL, 0, 0))
        made.into(descriptor)
    finally:
        made.close()
