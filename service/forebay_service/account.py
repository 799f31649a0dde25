"""``python -m forebay_service.account UID GID[,GID…] … -- COMMAND …``: becomes an account, then the command.

An account is a number, which is its uid and its gid, or a name that the machine knows for such a number. ``FIRST-LAST`` is one of these
numbers, by chance, that no process has: so each command that is started has an account of its own. The group ``@devices`` stands for
those that open this machine's accelerators, as ``render`` and ``video`` do those of AMD, where they are not open to all.

The command cannot gain privileges (``no_new_privs``), creates files for itself alone, and keeps the death signal that this process
was given. With ``--hide`` it sees no processes but its own.

``--knows UID[,UID…]`` leaves it in a user namespace that knows its own account and those alone. What joins it later
(``--joins PID``) may start others under any of them: it has the capabilities for that, and since they hold in there only, it can become
nobody else, root least of all. Whoever joins after it may end what it has started. ``--starts UID[,UID…]`` leaves the command itself in
such a namespace, with those capabilities: a service whose workers have accounts of their own, which nobody else on the host can start
anything under. Where such a worker lives on that the service started before it died, it comes back into that namespace, and finds it there.
"""

from __future__ import annotations

import argparse
import ctypes
import glob
import grp
import os
import pwd
import random
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from forebay_service.namespaces import (
    check,
    enter_user_namespace,
    hide_processes,
    join_user_namespace,
    join_user_namespace_again,
    processes,
)

PR_SET_PDEATHSIG = 1
PR_GET_PDEATHSIG = 2
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
PR_CAP_AMBIENT_CLEAR_ALL = 4
"""From linux/prctl.h."""
CAPABILITIES = {"CAP_CHOWN": 0, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7, "CAP_SYS_PTRACE": 19}
"""Of who starts others, from linux/capability.h: to become them, to end them, to give them folders, and to find them where ``/proc`` shows
to each its own processes alone."""
CAPABILITY_VERSION = 0x20080522
UMASK = 0o077
ACCELERATORS = ("/dev/kfd", "/dev/dri/renderD*", "/dev/nvidia*", "/dev/nvidia-caps/*")
"""What drivers of GPUs are opened by."""
DEVICES = "@devices"
"""Among groups: those that open them."""
TRIES_MAX = 1000
ROUNDS = 4
"""Of looking for a free number."""

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Account:
    """``uid`` is the primary gid too; ``groups`` are its other gids. ``knows`` and ``starts`` are uids with commas between them, ``joins``
    is a process id; see above. Names are looked up where the command runs."""

    uid: int | str
    groups: tuple[int | str, ...]
    hide: bool = False
    knows: int | str | None = None
    starts: int | str | None = None
    joins: int | None = None

    @property
    def gid(self) -> int:
        """The gid of all that is started under the account, which is its uid too; where each has a uid of its own, the first of ``groups``.
        Raises OSError."""
        uids = uids_of(self.uid)
        return uids.start if len(uids) == 1 else group_of(self.groups[0])

    def command(self, command: Sequence[str], python: str = sys.executable) -> list[str]:
        """The command line that runs a command under this account; what lies in its folder or home is not imported before it does.

        ``python`` has this package where the command runs."""
        groups = ",".join(map(str, self.groups))
        options = ["--hide"] if self.hide else []
        for name, value in (("--knows", self.knows), ("--starts", self.starts), ("--joins", self.joins)):
            options += [] if value is None else [name, str(value)]
        return [python, "-I", "-m", "forebay_service.account", str(self.uid), groups, *options, "--", *command]


def uids_of(account: int | str) -> range:
    """The numbers of an account, which are one but for ``FIRST-LAST``. Raises OSError."""
    first, dash, last = str(account).partition("-")
    if first.isdecimal() and (last.isdecimal() or not dash):
        return range(int(first), int(last or first) + 1)
    try:
        found = pwd.getpwnam(str(account))
    except KeyError:
        raise OSError(f"this machine has no account {account}") from None
    if found.pw_uid != found.pw_gid:
        raise OSError(f"the account {account} has uid {found.pw_uid} and gid {found.pw_gid}, which must be equal")
    return range(found.pw_uid, found.pw_uid + 1)


def group_of(group: int | str) -> int:
    """The number of a group, or of the name of one or of an account. Raises OSError."""
    if str(group).isdecimal():
        return int(group)
    try:
        return grp.getgrnam(str(group)).gr_gid
    except KeyError:
        return uids_of(group).start


def device_groups(patterns: Iterable[str] = ACCELERATORS) -> tuple[int, ...]:
    """The groups that open this machine's accelerators, where they are not open to all, and not to root alone."""
    found = [os.stat(path) for pattern in patterns for path in glob.glob(pattern) if not os.path.isdir(path)]
    return tuple(sorted({node.st_gid for node in found if node.st_gid and node.st_mode & 0o066 == 0o060}))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _CapabilitySets(ctypes.Structure):
    """Thirty-two of the capabilities; there are two such words."""

    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def become(account: Account) -> None:
    """Turns this process, which may do so, into one of the account. Raises OSError."""
    uids = uids_of(account.uid)
    groups = [gid for group in account.groups for gid in (device_groups() if group == DEVICES else (group_of(group),))]
    other = account.knows if account.starts is None else account.starts
    death = ctypes.c_int()
    check(_LIBC.prctl(PR_GET_PDEATHSIG, ctypes.byref(death), 0, 0, 0), "prctl(PR_GET_PDEATHSIG)")
    if account.hide:
        hide_processes(None if account.joins is None else uids.start)  # who starts others finds them again
    if other is not None:
        others = [uids_of(one) for one in str(other).split(",")]
        known = (uids, *others, *(range(gid, gid + 1) for gid in groups))
        if account.starts is None or not join_user_namespace_again(others, known):
            enter_user_namespace(known)
    if account.joins is not None:
        join_user_namespace(account.joins)
    os.setgroups(groups)
    _take(uids)
    _keep_capabilities(() if account.joins is account.starts is None else CAPABILITIES.values())
    check(_LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    check(_LIBC.prctl(PR_SET_PDEATHSIG, death.value, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")  # another uid has cleared it
    os.umask(UMASK)


def _take(uids: range) -> None:
    """Gives this process one of the numbers; of several, one that is no user's and no other process's, which two that look for one at the
    same time see of each other. Raises OSError."""
    if len(uids) == 1:
        os.setresgid(uids.start, uids.start, uids.start)
        os.setresuid(uids.start, uids.start, uids.start)
        return
    for _ in range(ROUNDS):
        if _take_one(random.sample(uids, min(len(uids), TRIES_MAX))):
            return
        time.sleep(0.01 * (1 + os.getpid() % 8))  # two that met at the last free one have both left it
    raise OSError(f"none of the uids {uids[0]}-{uids[-1]} is free")


def _take_one(uids: Iterable[int]) -> bool:
    """Gives this process the first of the numbers that is nobody's; false if there is none."""
    this = str(os.getpid())
    for uid in uids:
        if _is_users(uid):
            continue
        os.setresuid(uid, -1, -1)  # told to the others, and no more: what this process may do stays with the effective one
        if not any(uid in owners for process, owners in processes() if process.name != this):
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            return True
    os.setresuid(os.geteuid(), -1, -1)  # held by this one no longer, while it waits
    return False


def _is_users(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True


def _keep_capabilities(kept: Collection[int]) -> None:
    """Takes these capabilities over the change into a command, and gives all others up."""
    mask = sum(1 << number for number in kept)
    sets = (_CapabilitySets * 2)(_CapabilitySets(mask, mask, mask))
    check(_LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)")
    check(_LIBC.capset(ctypes.byref(_CapabilityHeader(CAPABILITY_VERSION, 0)), ctypes.byref(sets)), "capset")
    for number in kept:
        check(_LIBC.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number, 0, 0), "prctl(PR_CAP_AMBIENT)")


def main(argv: list[str]) -> None:
    """Becomes the account, and then the command."""
    parser = argparse.ArgumentParser(prog="python -m forebay_service.account", description=__doc__)
    parser.add_argument("uid", metavar="UID|FIRST-LAST", help="also its primary gid; FIRST-LAST: one of them that no process has")
    parser.add_argument("groups", type=lambda text: tuple(text.split(",")), metavar="GID[,GID…]", help="its other gids")
    parser.add_argument("--hide", action="store_true", help="hide the processes of others")
    parser.add_argument("--knows", metavar="UID[,UID…]", help="in a new user namespace that knows these uids too")
    parser.add_argument("--starts", metavar="UID[,UID…]", help="the same, able to start others under these uids")
    parser.add_argument("--joins", type=int, metavar="PID", help="in the user namespace of that process, able to start others")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(argv)
    fields = {name: value for name, value in vars(options).items() if name != "command"}
    try:
        become(Account(**fields))
    except OSError as error:
        sys.exit(f"uid {options.uid} cannot be taken on: {error}")
    try:
        os.execvp(options.command[0], options.command)  # noqa: S606 - becoming the given command is the purpose
    except OSError as error:
        sys.exit(f"{options.command[0]} cannot be started under uid {options.uid}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
