"""``python -m forebay_service.processes.parent_death COMMAND …``: runs a command that ends when its parent does.

A hub that is killed cannot stop its services; left alone they would hold their ports and a token that no hub knows.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From linux/prctl.h; survives execve."""


def end_with_parent(number: signal.Signals = signal.SIGTERM) -> None:
    """Asks the kernel for the signal on the death of the parent's thread that started this process. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")


def main(argv: list[str]) -> None:
    """Becomes the command."""
    if not argv:
        sys.exit("usage: python -m forebay_service.processes.parent_death COMMAND [ARGUMENT …]")
    end_with_parent()
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - becoming the given command is the purpose
    except OSError as error:
        sys.exit(f"{argv[0]} cannot be started: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
