"""Processes of one process group agree where in their commands images are: between the same collectives."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import forebay_wire

SOURCES = Path(__file__).parents[2] / "device" / "csrc"
SEEDS = 5_000


def test_processes_come_to_a_cut_in_all_orders_of_chance(tmp_path: Path) -> None:
    """Several groups that share members, and messages between two; in virtual time."""
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the extensions, so it must be here"
    sources = [Path(__file__).with_name("check_cuts.cpp"), SOURCES / "distributed" / "progress.cpp"]
    flags = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-D_GLIBCXX_ASSERTIONS", f"-I{forebay_wire.include_dir()}", f"-I{SOURCES}"]
    subprocess.run([compiler, *flags, *map(str, sources), "-o", tmp_path / "check"], check=True, timeout=240)
    ran = subprocess.run([tmp_path / "check", "0", str(SEEDS)], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stdout
    assert int(ran.stdout) == SEEDS
