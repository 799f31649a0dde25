"""The hash by which uploads are known again, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path


def test_every_way_to_compute_it_gives_the_same_and_every_difference_is_seen(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the extensions, so it must be here"
    program = tmp_path / "check_content_hash"
    warnings = ["-Wall", "-Wextra", "-Werror", "-Wno-uninitialized", "-Wno-maybe-uninitialized"]  # as GCC 12 says of its own intrinsics
    flags = ["-std=c++20", "-O1", "-g", *warnings, "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    source = Path(__file__).with_name("check_content_hash.cpp")
    subprocess.run([compiler, *flags, str(source), "-o", str(program)], check=True, timeout=120)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    ran = subprocess.run([program], capture_output=True, text=True, timeout=60, env=environment)
    assert ran.returncode == 0, ran.stderr
