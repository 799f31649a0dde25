"""The folder of one user's process on this host: its copies of the user's files, its home, temporary files. It goes with the process."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

WORK, HOME, TEMPORARY = "work", "home", "tmp"
FOLDERS = (WORK, HOME, TEMPORARY)
SOCKET = "egress"
"""Of the proxy that lets the process out, where there is one."""
ACCOUNTS = {"passwd": "user:x:{uid}:{uid}::/home/user:/bin/sh\n", "group": "user:x:{uid}:\n"}
PREFIX = "forebay-exec-"
FIRST_ACCOUNT = 1_900_000_000
"""No account that a host or its containers have; with the worker's process number, below 2^22, it is this process's alone."""
ATTEMPTS, PAUSE_SECONDS = 3, 0.2


def is_root() -> bool:
    """Whether this process may take other accounts."""
    return os.geteuid() == 0


def own_account() -> int:
    """The uid, and gid, of a process that this worker starts: one of its own where root starts it, else the worker's."""
    return FIRST_ACCOUNT + os.getpid() if is_root() else os.geteuid()


class Scratch:
    """Made empty; whoever holds its lock, as its guard does, keeps it from being removed by others."""

    def __init__(self, parent: Path, account: int) -> None:
        """Raises OSError."""
        self.path = tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_SH)
        for name in FOLDERS:
            folder = Path(self.path, name)
            folder.mkdir()
            folder.chmod(0o711)  # bubblewrap passes, which has no rights by then; only root gets as far as here
            if is_root():
                os.chown(folder, account, account)
        for name, text in ACCOUNTS.items():
            path = Path(self.path, name)
            path.write_text(text.format(uid=account))
            path.chmod(0o644)
        self.work = os.open(Path(self.path, WORK), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def let_go(self) -> None:
        """Of the folder, whose guard removes it."""
        os.close(self.work)
        os.close(self._lock)


def sweep(parent: Path) -> None:
    """Removes scratches of this account whose workers and guards are gone, as where a host was switched off."""
    for folder in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(opened).st_uid == os.geteuid():
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    remove(str(folder))
            finally:
                os.close(opened)


def remove(folder: str) -> None:
    """A scratch, with all that a process left in it, which may have taken rights away from its folders."""
    for _ in range(ATTEMPTS):
        shutil.rmtree(folder, onerror=_open_up)
        if not os.path.exists(folder):
            return
        time.sleep(PAUSE_SECONDS)


def _open_up(_function: object, path: str, _error: object) -> None:
    for one in (path, os.path.dirname(path)):
        with contextlib.suppress(OSError):
            if not os.path.islink(one):
                os.chmod(one, 0o700)
