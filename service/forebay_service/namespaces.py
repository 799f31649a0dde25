"""Linux namespaces, by the C library: what a process and those that it starts see of the machine's mounts, processes and accounts."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
NS_GET_OWNER_UID = 0xB704
"""From linux/sched.h, linux/mount.h and linux/nsfs.h."""
NOBODY = 65534

_LIBC = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    """Raises OSError where a call of the C library failed."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def leave_mounts() -> None:
    """Gives this process mounts of its own: what it mounts from then on nobody else sees. Raises OSError.

    Who is not root gets them in a user namespace of its own, where the kernel permits it.
    """
    uid, gid = os.getuid(), os.getgid()
    check(_LIBC.unshare(CLONE_NEWNS if uid == 0 else CLONE_NEWNS | CLONE_NEWUSER), "unshare")
    if uid != 0:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            Path(f"/proc/self/{name}").write_text(line, encoding="ascii")
    check(_LIBC.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "making mounts private")


def cover(node: str) -> None:
    """Lays ``/dev/null`` over a file. Raises OSError."""
    check(_LIBC.mount(b"/dev/null", node.encode(), None, MS_BIND, None), f"covering {node}")


def hide_processes(seen_by: int | None = None) -> None:
    """Leaves this process in mounts of its own, whose ``/proc`` shows to each uid its own processes alone, and all to the gid ``seen_by``.

    It is another instance of procfs: a remount would change the one that the whole machine shares. Needs root. Raises OSError.
    """
    leave_mounts()
    options = "hidepid=2" if seen_by is None else f"hidepid=2,gid={seen_by}"
    check(_LIBC.mount(b"proc", b"/proc", b"proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, options.encode()), "mounting /proc")
    mounted = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if line.split()[4] == "/proc"]
    if "hidepid=" not in mounted[-1].partition(" - ")[2]:  # before Linux 5.8 every instance had the options of the first
        raise OSError("this kernel cannot mount a second /proc with hidepid")


def enter_user_namespace(ids: Iterable[range]) -> None:
    """Leaves this process in a user namespace that knows these uids and gids alone, under their own numbers. Needs root. Raises OSError.

    In it the process may do everything, but to processes and files of these accounts only; root is not among them.
    """
    lines = "".join(f"{numbers.start} {numbers.start} {len(numbers)}\n" for numbers in joined(ids))
    this, (entered, tell) = os.getpid(), os.pipe()
    outside = os.fork()
    if outside == 0:
        os.close(tell)
        os._exit(_map_ids(this, lines, entered))
    os.close(entered)
    try:
        check(_LIBC.unshare(CLONE_NEWUSER), "unshare")
        os.write(tell, b"!")
    finally:
        os.close(tell)
        _, status = os.waitpid(outside, 0)
    if status != 0:
        raise OSError("the user namespace's accounts cannot be set")


def join_user_namespace(process: int) -> None:
    """Leaves this process in the user namespace of another. Needs root. Raises OSError."""
    descriptor = os.open(f"/proc/{process}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        check(_LIBC.setns(descriptor, CLONE_NEWUSER), "setns")
    finally:
        os.close(descriptor)


def join_user_namespace_again(uids: Iterable[range], ids: Iterable[range]) -> bool:
    """Leaves this process in the user namespace of :func:`enter_user_namespace` in which a process of one of ``uids`` lives on, if there is
    one.

    One that such a process has made for itself is not taken for it: it is not root's. Needs root.
    """
    wanted = list(uids)
    lines = [[str(numbers.start), str(numbers.start), str(len(numbers))] for numbers in joined(ids)]
    living = (process for process, owners in processes() if any(uid in numbers for uid in owners for numbers in wanted))
    return any(_joins_namespace_of(process, lines) for process in living)


def joined(ids: Iterable[range]) -> list[range]:
    """The same numbers, each once, in ranges that do not touch, in order."""
    found: list[range] = []
    for numbers in sorted(ids, key=lambda one: one.start):
        if found and numbers.start <= found[-1].stop:
            found[-1] = range(found[-1].start, max(found[-1].stop, numbers.stop))
        else:
            found.append(numbers)
    return found


def processes() -> Iterator[tuple[Path, set[int]]]:
    """The folder in ``/proc`` of each process that this one sees, and its uids. Whom the folder belongs to would not do: where nobody may
    look into a process, that is root."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "status").read_text(encoding="ascii", errors="replace")
            except OSError:  # it has ended, or is another's
                continue
            yield entry, set(map(int, status.partition("\nUid:")[2].partition("\n")[0].split()))


def _joins_namespace_of(process: Path, lines: list[list[str]]) -> bool:
    """``process``: its folder in ``/proc``; ``lines``: those of the map of its uids."""
    try:
        descriptor = os.open(process / "ns" / "user", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    owner = ctypes.c_uint32(NOBODY)
    try:
        check(_LIBC.ioctl(descriptor, NS_GET_OWNER_UID, ctypes.byref(owner)), "ioctl(NS_GET_OWNER_UID)")
        known = [line.split() for line in (process / "uid_map").read_text(encoding="ascii").splitlines()]
        if owner.value != 0 or known != lines:
            return False
        check(_LIBC.setns(descriptor, CLONE_NEWUSER), "setns")
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _map_ids(process: int, lines: str, entered: int) -> int:
    """Says from outside which ids a process's new namespace knows, once it has entered; the exit status, 1 where it has not."""
    try:
        if not os.read(entered, 1):
            return 1
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{process}/{name}").write_text(lines, encoding="ascii")
    except OSError:
        return 1
    return 0
