"""Looks at what a user's process takes where no control group bounds it, and at what it writes."""

from __future__ import annotations

import os
import time
from pathlib import Path

from forebay_worker.remote.sandbox import Order
from forebay_worker.remote.scratch import FOLDERS

BLOCK_BYTES = 512
KIBIBYTE = 1024
FILES_MAX = 500_000
"""That a process may leave in its folders."""
REST = 20
"""A look at the folders is followed by a pause of so many times as long."""


class Watch:
    """Says what there is too much of."""

    def __init__(self, order: Order, counted: bool) -> None:
        """``counted``: a control group bounds memory and processes."""
        self._order = order
        self._counted = counted
        self._again = 0.0

    def excess(self, first: int) -> str:
        """Of the processes below the first one, and of their folders; empty where nothing is. For the user to read."""
        if not self._counted:
            processes = below(first)
            if len(processes) > self._order.processes:
                return f"it started more than {self._order.processes} processes"
            if sum(map(_resident_bytes, processes)) > self._order.memory_bytes and self._used_bytes(processes) > self._order.memory_bytes:
                return f"it took more than its {self._order.memory_bytes / 2**30:g} GiB of memory"
        return self._excess_of_files()

    def _used_bytes(self, processes: list[int]) -> int:
        """Pages that several of them have count once, in parts."""
        return sum(map(_proportional_bytes, processes)) + _used_in(Path("/proc", str(processes[0]), "root", "dev", "shm"))

    def _excess_of_files(self) -> str:
        began = time.monotonic()
        if began < self._again:
            return ""
        size = count = 0
        for name in FOLDERS:
            for root, folders, files in os.walk(Path(self._order.scratch, name)):
                count += len(folders) + len(files)
                size += sum(_file_bytes(os.path.join(root, file)) for file in files)
        self._again = time.monotonic() + REST * (time.monotonic() - began)
        if size > self._order.files_bytes or count > FILES_MAX:
            return f"it wrote more than {self._order.files_bytes / 2**30:g} GiB or {FILES_MAX} files"
        return ""


def below(first: int) -> list[int]:
    """The processes of a sandbox: the first one, and all that descend from it; orphans of its namespace become its children."""
    children: dict[int, list[int]] = {}
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        parent = _parent_of(process)
        if parent:
            children.setdefault(parent, []).append(process)
    found, at = [first], 0
    while at < len(found):
        found += children.get(found[at], [])
        at += 1
    return found


def _parent_of(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _resident_bytes(process: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError):
        return 0


def _proportional_bytes(process: int) -> int:
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * KIBIBYTE for line in lines if line.startswith("Pss:"))
    except (OSError, IndexError):
        return _resident_bytes(process)


def _used_in(mount: Path) -> int:
    try:
        seen = os.statvfs(mount)
    except OSError:
        return 0
    return (seen.f_blocks - seen.f_bfree) * seen.f_frsize


def _file_bytes(path: str) -> int:
    try:
        return os.lstat(path).st_blocks * BLOCK_BYTES
    except OSError:
        return 0
