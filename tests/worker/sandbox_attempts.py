"""What a user's process tries beyond its sandbox, each attempt with what it came to, as JSON. Outside of a sandbox each one succeeds.

The argument is what there is to reach, as JSON: ``scratch`` (another's file), ``port`` and ``socket`` (an abstract one) to connect to,
``process`` (a number), ``secret`` (in that process's environment), and ``writable`` (a folder of the interpreter's)."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path

CLONE_NEWUSER, CLONE_NEWNS = 0x10000000, 0x00020000
KEYCTL, BPF, PERF_EVENT_OPEN, IO_URING_SETUP = 250, 321, 298, 425
"""System calls on x86_64."""
KEYCTL_GET_KEYRING_ID, SESSION_KEYRING = 0, -3
LIBC = ctypes.CDLL(None, use_errno=True)
GIVEN = json.loads(sys.argv[1])


def called(result: int) -> str:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return "done"


def secret_in_environments() -> str:
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if GIVEN["secret"].encode() in path.read_bytes():
                return "found"
        except OSError:
            continue
    raise OSError("no environment has it")


def reaches(family: int, address: object) -> str:
    with socket.socket(family) as made:
        made.settimeout(3)
        made.connect(address)
    return "connected"


def makes_block_device() -> str:
    os.mknod("block", 0o600 | stat.S_IFBLK, os.makedev(1, 0))
    os.unlink("block")
    return "made"


def reads_through_link() -> str:
    link = Path(f"link-{os.getpid()}")
    link.symlink_to("/etc/shadow")
    try:
        return "read" if link.read_text() else "empty"
    finally:
        link.unlink()


def writes(folder: str) -> str:
    made = Path(folder, f"attempt-{os.getpid()}")
    made.write_text("x")
    made.unlink()
    return "written"


def unshares(flags: int) -> str:
    child = os.fork()
    if not child:
        os._exit(0 if LIBC.unshare(flags) == 0 else ctypes.get_errno())
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number:
        raise OSError(number, os.strerror(number))
    return "done"


def clones() -> str:
    child = LIBC.syscall(56, CLONE_NEWUSER | 17, 0, 0, 0, 0)
    if not child:
        os._exit(0)
    called(child)
    os.waitpid(child, 0)
    return "done"


ATTEMPTS: dict[str, Callable[[], str]] = {
    "the worker's variables": secret_in_environments,
    "another's scratch": lambda: Path(GIVEN["scratch"]).read_text(),
    "the pool's port": lambda: reaches(socket.AF_INET, ("127.0.0.1", GIVEN["port"])),
    "the metadata address": lambda: reaches(socket.AF_INET, ("169.254.169.254", GIVEN["port"])),
    "an abstract socket": lambda: reaches(socket.AF_UNIX, "\0" + GIVEN["socket"]),
    "raw packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close() or "opened",  # type: ignore[func-returns-value]
    "another process": lambda: os.kill(GIVEN["process"], 0) or "there",  # type: ignore[func-returns-value]
    "the kernel's log": lambda: os.close(os.open("/dev/kmsg", os.O_RDONLY)) or "opened",  # type: ignore[func-returns-value]
    "a block device": makes_block_device,
    "the host's passwords by a link": reads_through_link,
    "the interpreter's folder": lambda: writes(GIVEN["writable"]),
    "the system's folder": lambda: writes("/usr/local/lib"),
    "the settings": lambda: writes("/etc"),
    "a user namespace": lambda: unshares(CLONE_NEWUSER),
    "a mount namespace": lambda: unshares(CLONE_NEWNS),
    "a user namespace by clone": clones,
    "another account": lambda: os.setuid(0) or "root",  # type: ignore[func-returns-value]
    "keys": lambda: called(LIBC.syscall(KEYCTL, KEYCTL_GET_KEYRING_ID, SESSION_KEYRING, 0)),
    "io_uring": lambda: called(LIBC.syscall(IO_URING_SETUP, 1, bytes(120))),
    "a higher priority": lambda: f"niceness {os.nice(-5)}",
}


def tried(attempt: Callable[[], str]) -> str:
    try:
        return f"succeeded: {attempt()}"
    except (OSError, PermissionError) as error:
        return f"failed: {error}"


print(json.dumps({name: tried(attempt) for name, attempt in ATTEMPTS.items()}))
