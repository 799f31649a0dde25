"""What a user's process sees and may take: the command line of bubblewrap, and the limits that the kernel keeps.

Nothing of the host is there but what is named here, read-only: programs and libraries of the system, and the interpreter's folders.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from forebay_worker import confinement
from forebay_worker.remote.scratch import ACCOUNTS, HOME, TEMPORARY, WORK, is_root

SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
"""Links into /usr on most systems."""
SETTINGS = """
    alternatives ca-certificates ca-certificates.conf fonts ld.so.cache ld.so.conf ld.so.conf.d localtime mime.types nsswitch.conf protocols
    services ssl timezone
""".split()
"""Of /etc: nothing in these is secret."""
WORK_FOLDER, HOME_FOLDER, TEMPORARY_FOLDER, SHARED_MEMORY = "/exec", "/home/user", "/tmp", "/dev/shm"  # noqa: S108 of the sandbox's own
SHARED_MEMORY_PART = 4
"""Of the memory, what /dev/shm takes at most."""
OPEN_FILES_MAX = 65_536
LOCKED_BYTES_MAX = 64 * 2**20
EGRESS, EGRESS_PORT = "/run/egress", 3128
"""Where the proxy's socket is within, and the port that a forwarder has there."""
FORWARDER = "forebay_worker.remote.forwarder"
KEPT_CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
"""Until ``setpriv`` has given all of them up, with the account."""


@dataclass(frozen=True)
class Order:
    """What is to run, and where."""

    scratch: str
    """Has the folders ``work``, ``home`` and ``tmp``, and goes with the process."""
    arguments: tuple[str, ...]
    account: int
    """The uid, and gid, that the process has outside of the sandbox too."""
    readable: tuple[str, ...]
    """Folders that it may read beside the system's."""
    environment: Mapping[str, str]
    memory_bytes: int
    processes: int
    files_bytes: int
    devices: tuple[str, ...] = field(default=())
    """Device files."""
    egress: str = ""
    """The socket of the proxy that lets it out (:class:`forebay_worker.remote.egress.Egress`); empty: there is none."""


def command(order: Order, calls: int, status: int) -> list[str]:
    """Of bubblewrap. ``calls`` and ``status``: descriptors of the filter, and of where it tells what becomes of the process."""
    return [
        shutil.which("bwrap") or "bwrap",
        *_namespaces(),
        *("--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"),
        *(word for name in KEPT_CAPABILITIES if is_root() for word in ("--cap-add", name)),
        *_mounts(order),
        *(word for name, value in {**order.environment, **_proxy(order)}.items() for word in ("--setenv", name, value)),
        *("--chdir", WORK_FOLDER, "--seccomp", str(calls), "--json-status-fd", str(status)),
        *("--", *_without_rights(order), *_forwarder(order), *order.arguments),
    ]


def _namespaces() -> tuple[str, ...]:
    """Root needs no user namespace, and its accounts are those of the host."""
    own = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")
    return (*(own if is_root() else ("--unshare-all",)), "--hostname", "forebay")


def _mounts(order: Order) -> Iterator[str]:
    yield from (*_folder("/etc"), *_folder("/home"), "--ro-bind", "/usr", "/usr")
    for path in SYSTEM:
        if os.path.islink(path):
            yield from ("--symlink", os.readlink(path), path)
        elif os.path.isdir(path):
            yield from ("--ro-bind", path, path)
    for name in SETTINGS:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")
    for name in ACCOUNTS:
        yield from ("--ro-bind", f"{order.scratch}/{name}", f"/etc/{name}")
    for name, path in ((WORK, WORK_FOLDER), (HOME, HOME_FOLDER), (TEMPORARY, TEMPORARY_FOLDER)):
        yield from ("--bind", f"{order.scratch}/{name}", path)
    if order.egress:
        yield from (*_folder("/run"), "--ro-bind", order.egress, EGRESS)
    yield from ("--proc", "/proc", "--dev", "/dev")
    for path in order.devices:
        yield from ("--dev-bind", path, path)
    yield from ("--perms", "1777", "--size", str(max(1, order.memory_bytes // SHARED_MEMORY_PART)), "--tmpfs", SHARED_MEMORY)
    for path in order.readable:
        for folder in reversed(Path(path).parents[:-1]):
            yield from _folder(str(folder))
        yield from ("--ro-bind", path, path)
    yield from ("--remount-ro", "/dev", "--remount-ro", "/")


def _folder(path: str) -> tuple[str, ...]:
    """One that everybody may pass: bubblewrap would make it for its own account alone."""
    return ("--perms", "0755", "--dir", path)


def _without_rights(order: Order) -> tuple[str, ...]:
    """Gives up the account and all capabilities, and the ways to get some again."""
    setpriv = (shutil.which("setpriv") or "setpriv", "--no-new-privs", "--inh-caps=-all")
    if not is_root():
        return (*setpriv, "--")
    account = str(order.account)
    return (*setpriv, "--bounding-set=-all", "--reuid", account, "--regid", account, "--clear-groups", "--")


def _proxy(order: Order) -> dict[str, str]:
    """How programs find the proxy."""
    if not order.egress:
        return {}
    address, own = f"http://127.0.0.1:{EGRESS_PORT}", "localhost,127.0.0.1"
    return {"HTTPS_PROXY": address, "https_proxy": address, "NO_PROXY": own, "no_proxy": own}


def _forwarder(order: Order) -> tuple[str, ...]:
    return (sys.executable, "-I", "-m", FORWARDER, EGRESS, str(EGRESS_PORT)) if order.egress else ()


def limit(order: Order) -> None:
    """Holds this process, and all that it starts, to what the kernel bounds for each process or account. Raises OSError."""
    bounds = {
        resource.RLIMIT_DATA: order.memory_bytes,
        resource.RLIMIT_FSIZE: order.files_bytes,
        resource.RLIMIT_NOFILE: OPEN_FILES_MAX,
        resource.RLIMIT_MEMLOCK: LOCKED_BYTES_MAX,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for kind, most in bounds.items():
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))
    if is_root():  # the account is this process's alone
        resource.setrlimit(resource.RLIMIT_NPROC, (order.processes, order.processes))
    else:
        confinement.bound_processes(order.processes)
    Path("/proc/self/oom_score_adj").write_text("1000")  # before the worker, where the host is short of memory
