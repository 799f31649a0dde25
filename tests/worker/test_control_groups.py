"""Control groups of version 2 are made in the group above the worker's, where that is delegated. A folder stands for the kernel's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from forebay_worker.remote import control_groups
from forebay_worker.remote.sandbox import Order

ORDER = Order("", (), 1000, (), {}, memory_bytes=1 << 30, processes=17, files_bytes=0)


@pytest.fixture
def unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The group of the service, in which ``pool`` is that of its processes."""
    mount, own = tmp_path / "cgroup", tmp_path / "own"
    folder = mount / "system.slice" / "forebay-pool.service"
    (folder / "pool").mkdir(parents=True)
    (mount / "cgroup.controllers").write_text("cpu memory pids\n")
    own.write_text("0::/system.slice/forebay-pool.service/pool\n")
    monkeypatch.setattr(control_groups, "MOUNT", mount)
    monkeypatch.setattr(control_groups, "OWN", own)
    return folder


def bounds(folder: Path) -> tuple[str, str]:
    return (folder / "memory.max").read_text(), (folder / "pids.max").read_text()


def test_a_group_is_bounded_where_controllers_are_passed_on(unit: Path) -> None:
    (unit / "cgroup.subtree_control").write_text("cpu memory pids\n")
    groups = control_groups.made(ORDER)
    assert groups is not None and groups.folders == (unit / f"forebay-exec-{os.getpid()}",)
    assert bounds(groups.folders[0]) == (str(1 << 30), "17")
    assert (unit / "cgroup.subtree_control").read_text() == "cpu memory pids\n"


def test_a_delegated_group_is_made_to_pass_them_on(unit: Path) -> None:
    (unit / "cgroup.subtree_control").write_text("")
    groups = control_groups.made(ORDER)
    assert (unit / "cgroup.subtree_control").read_text() == "+memory +pids"
    assert groups is not None and bounds(groups.folders[0]) == (str(1 << 30), "17")


def test_a_group_that_passes_nothing_on_makes_none(unit: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    controllers, write = unit / "cgroup.subtree_control", Path.write_text
    controllers.write_text("cpu\n")

    def busy(path: Path, text: str) -> int:
        """As the kernel answers where processes are in the group."""
        if path == controllers:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", busy)
    assert control_groups.made(ORDER) is None
    assert not list(unit.glob("forebay-exec-*"))
