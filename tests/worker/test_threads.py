"""How many threads a loop's kernels take, under the address and undefined-behaviour sanitizers; and what a program sees of it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import forebay_wire


def test_a_loop_gets_as_many_threads_as_it_is_quicker_with(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the extensions, so it must be here"
    program, source = tmp_path / "check_threads", Path(__file__).with_name("check_threads.cpp")
    flags = ["-std=c++20", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    flags.append(f"-I{forebay_wire.include_dir()}")
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True, timeout=120)
    ran = subprocess.run([program], capture_output=True, text=True, timeout=60, env={**os.environ, "ASAN_OPTIONS": "detect_leaks=0"})
    assert ran.returncode == 0, ran.stderr
