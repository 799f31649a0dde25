"""A server cannot open the host's GPU nodes: shown on files that stand for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forebay_spawner.enclosure import enclosed, gpu_nodes

AS_USER = pytest.mark.skipif(os.getuid() != 0, reason="becoming another user needs root")


@pytest.fixture
def nodes(tmp_path: Path) -> list[str]:
    for name in ("nvidia0", "nvidiactl", "other"):
        (tmp_path / name).write_text("secret")
    (tmp_path / "nvidia-caps").mkdir()
    return gpu_nodes([f"{tmp_path}/nvidia*"])


def test_nodes_are_found_by_pattern_and_folders_are_not_nodes(nodes: list[str]) -> None:
    assert [Path(node).name for node in nodes] == ["nvidia0", "nvidiactl"]


def test_an_enclosed_command_reads_nothing_from_the_nodes(nodes: list[str]) -> None:
    other = str(Path(nodes[0]).with_name("other"))
    run = subprocess.run(enclosed(["cat", *nodes, other], nodes), capture_output=True, text=True, check=True)
    assert run.stdout == "secret"


def test_the_hub_itself_still_sees_the_nodes(nodes: list[str]) -> None:
    subprocess.run(enclosed(["true"], nodes), check=True)
    assert Path(nodes[0]).read_text() == "secret"


def test_the_exit_status_of_the_command_is_kept(nodes: list[str]) -> None:
    assert subprocess.run(enclosed(["sh", "-c", "exit 7"], nodes), check=False).returncode == 7


def test_a_node_that_cannot_be_covered_keeps_the_command_from_starting(tmp_path: Path) -> None:
    missing = str(tmp_path / "gone")
    run = subprocess.run(enclosed(["echo", "started"], [missing]), capture_output=True, text=True, check=False)
    assert run.returncode == 1 and run.stdout == ""
    assert "does not start" in run.stderr and missing in run.stderr


def test_without_a_command_it_says_how_to_use_it() -> None:
    run = subprocess.run([sys.executable, "-m", "forebay_spawner.enclosure", "/dev/null"], capture_output=True, text=True, check=False)
    assert run.returncode == 1 and run.stderr.startswith("usage:")
