"""``python -m forebay_spawner.enclosure NODE … -- COMMAND …``: runs a command that cannot open the host's GPU nodes.

In a mount namespace of its own (and a user namespace, where the hub is not root), an empty file lies over each node.
Where the kernel permits neither, the command does not start: a server never sees a GPU by accident.
"""

from __future__ import annotations

import ctypes
import glob
import os
import sys
from collections.abc import Sequence

GPU_NODES = ("/dev/nvidia*", "/dev/kfd", "/dev/dri/*", "/dev/nvidia-caps/*", "/usr/bin/nvidia-smi")
"""Where GPUs of NVIDIA and AMD appear to a process."""

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
"""From linux/sched.h and linux/mount.h."""


def gpu_nodes(patterns: Sequence[str] = GPU_NODES) -> list[str]:
    """The GPU nodes of this host; folders are left out, since what is in them is listed."""
    return sorted({path for pattern in patterns for path in glob.glob(pattern) if not os.path.isdir(path)})


def enclosed(command: Sequence[str], nodes: Sequence[str]) -> list[str]:
    """The command line that runs a command without these nodes."""
    return [sys.executable, "-m", "forebay_spawner.enclosure", *nodes, "--", *command]


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def hide(nodes: Sequence[str]) -> None:
    """Leaves this process in namespaces where ``/dev/null`` lies over each node. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    _check(libc.unshare(CLONE_NEWNS if uid == 0 else CLONE_NEWNS | CLONE_NEWUSER), "unshare")
    if uid != 0:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(line)
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "making mounts private")
    for node in nodes:
        _check(libc.mount(b"/dev/null", node.encode(), None, MS_BIND, None), f"covering {node}")


def main(argv: list[str]) -> None:
    """Hides the nodes and becomes the command."""
    if "--" not in argv or argv[-1] == "--":
        sys.exit("usage: python -m forebay_spawner.enclosure NODE … -- COMMAND [ARGUMENT …]")
    split = argv.index("--")
    try:
        hide(argv[:split])
        os.execvp(argv[split + 1], argv[split + 1 :])  # noqa: S606 - becoming the given command is the purpose
    except OSError as error:
        sys.exit(f"The server cannot be kept from this host's GPUs ({error}), so it does not start; see docs/operators/local.md")


if __name__ == "__main__":
    main(sys.argv[1:])
