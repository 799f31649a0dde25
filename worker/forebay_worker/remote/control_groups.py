"""Control groups that bound memory and number of a user's processes together, where this host lets the worker make them.

Version 2 where the group above the worker's is delegated to it (``Delegate=`` and ``DelegateSubgroup=`` of a unit), version 1 where root
has the controllers mounted.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from forebay_worker.remote.sandbox import Order

MOUNT = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")
REMOVE_SECONDS_MAX = 2.0


@dataclass(frozen=True)
class ControlGroups:
    """The folders of one process's groups."""

    folders: tuple[Path, ...]

    def enter(self) -> None:
        """This process, and all that it starts, counts there from now on. Raises OSError."""
        for folder in self.folders:
            (folder / "cgroup.procs").write_text(str(os.getpid()))

    def was_full(self) -> bool:
        """Whether the kernel ended a process there since there was no more memory."""
        for folder in self.folders:
            for name in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    counts = dict(line.split() for line in (folder / name).read_text().splitlines())
                    if int(counts.get("oom_kill", 0)):
                        return True
        return False

    def remove(self) -> None:
        """Once no process is there any more."""
        deadline = time.monotonic() + REMOVE_SECONDS_MAX
        for folder in self.folders:
            while folder.exists():
                with contextlib.suppress(OSError):
                    folder.rmdir()
                    break
                if time.monotonic() > deadline:
                    return
                time.sleep(0.01)


def made(order: Order) -> ControlGroups | None:
    """Groups with the order's bounds; None where this host lets none be made, or lacks one of the bounds."""
    name = f"forebay-exec-{os.getpid()}"
    try:
        return _version_2(name, order) or _version_1(name, order)
    except OSError:
        return None


def _own_groups() -> dict[str, Path]:
    """The worker's own group for each controller, and under no name that of version 2."""
    found = {}
    for line in OWN.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            found[controller] = Path(path.lstrip("/"))
    return found


def _version_2(name: str, order: Order) -> ControlGroups | None:
    own = _own_groups().get("")
    parent = None if own is None else (MOUNT / own).parent
    if parent is None or not (MOUNT / "cgroup.controllers").exists():
        return None
    passed_on = parent / "cgroup.subtree_control"
    if not {"memory", "pids"} <= set(passed_on.read_text().split()) and not _pass_on(passed_on):
        return None
    groups = ControlGroups((parent / name,))
    return _bounded(groups, [(parent / name / "memory.max", order.memory_bytes), (parent / name / "pids.max", order.processes)])


def _pass_on(controllers: Path) -> bool:
    """Has a delegated group bound those within it. The kernel lets no group do so in which processes are, or which is another's."""
    try:
        controllers.write_text("+memory +pids")
    except OSError:
        return False
    return True


def _version_1(name: str, order: Order) -> ControlGroups | None:
    own = _own_groups()
    if not {"memory", "pids"} <= own.keys():
        return None
    memory, pids = (MOUNT / controller / own[controller] / name for controller in ("memory", "pids"))
    groups = ControlGroups((memory, pids))
    return _bounded(groups, [(memory / "memory.limit_in_bytes", order.memory_bytes), (pids / "pids.max", order.processes)])


def _bounded(groups: ControlGroups, bounds: list[tuple[Path, int]]) -> ControlGroups | None:
    try:
        for folder in groups.folders:
            folder.mkdir()
        for path, most in bounds:
            path.write_text(str(most))
    except OSError:
        groups.remove()
        return None
    return groups
