"""How many threads a loop's kernels take."""

from __future__ import annotations

from pathlib import Path

from sanitized import run_sanitized

SOURCES = Path(__file__).parents[2] / "worker" / "csrc"


def test_a_loop_gets_as_many_threads_as_it_is_quicker_with(tmp_path: Path) -> None:
    run_sanitized(Path(__file__).with_name("check_threads.cpp"), tmp_path, flags=["-std=c++20", f"-I{SOURCES}"])
