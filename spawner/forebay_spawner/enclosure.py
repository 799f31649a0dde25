"""``python -m forebay_spawner.enclosure NODE … -- COMMAND …``: runs a command that cannot open the host's GPU nodes.

In a mount namespace of its own (and a user namespace, where the hub is not root), an empty file lies over each node.
Where the kernel permits neither, the command does not start: a server never sees a GPU by accident.
"""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Sequence

from forebay_service.namespaces import cover, leave_mounts

GPU_NODES = ("/dev/nvidia*", "/dev/kfd", "/dev/dri/*", "/dev/nvidia-caps/*", "/usr/bin/nvidia-smi")
"""Where GPUs of NVIDIA and AMD appear to a process."""


def gpu_nodes(patterns: Sequence[str] = GPU_NODES) -> list[str]:
    """The GPU nodes of this host; folders are left out, since what is in them is listed."""
    return sorted({path for pattern in patterns for path in glob.glob(pattern) if not os.path.isdir(path)})


def enclosed(command: Sequence[str], nodes: Sequence[str]) -> list[str]:
    """The command line that runs a command without these nodes; what lies in its home is not imported before they are covered."""
    return [sys.executable, "-I", "-m", "forebay_spawner.enclosure", *nodes, "--", *command]


def hide(nodes: Sequence[str]) -> None:
    """Leaves this process in namespaces where ``/dev/null`` lies over each node. Raises OSError."""
    leave_mounts()
    for node in nodes:
        cover(node)


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
