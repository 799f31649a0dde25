"""The C++ header under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import forebay_wire

SECONDS, SECONDS_FULL = "1", "10"
MEMORY_KIB_MAX = 256 * 1024
"""Far above what the program takes under the sanitizers, and far below what a lying count would."""


def run_sanitized(source: str, folder: Path, seconds: str) -> list[int]:
    """The numbers that a program of this folder prints, compiled with the sanitizers and run for so long."""
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the extensions, so it must be here"
    program = folder / "fuzz"
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    path = Path(__file__).with_name(source)
    subprocess.run([compiler, *flags, f"-I{forebay_wire.include_dir()}", str(path), "-o", str(program)], check=True, timeout=120)
    environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0:quarantine_size_mb=16:malloc_context_size=1"}
    ran = subprocess.run([program, seconds, "20261121"], capture_output=True, text=True, timeout=60, env=environment)
    assert ran.returncode == 0, ran.stderr
    return [int(word) for word in ran.stdout.split()]


def test_random_and_damaged_bytes_never_lead_out_of_the_frame(tmp_path: Path, full_sweep: bool) -> None:
    read, refused, peak_kib = run_sanitized("fuzz_wire.cpp", tmp_path, SECONDS_FULL if full_sweep else SECONDS)
    assert read > 1000 and refused > 1000
    assert peak_kib < MEMORY_KIB_MAX


def test_client_and_worker_expect_the_same_of_programs_that_loop_and_stray(tmp_path: Path, full_sweep: bool) -> None:
    (programs,) = run_sanitized("fuzz_traces.cpp", tmp_path, SECONDS_FULL if full_sweep else SECONDS)
    assert programs > 100
