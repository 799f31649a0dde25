"""Programs in C++ that hold our sources against what they promise, under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import forebay_wire

FLAGS = ("-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def run_sanitized(source: Path, folder: Path, *arguments: str, flags: Sequence[str] = (), options: str = "") -> str:
    """What the program prints, compiled to ``folder`` with further ``flags`` and run; it ended well. ``options`` are more of the address
    sanitizer's."""
    compiler = shutil.which("g++")
    assert compiler, "g++ builds the extensions, so it must be here"
    program = folder / source.stem
    subprocess.run([compiler, *FLAGS, *flags, f"-I{forebay_wire.include_dir()}", str(source), "-o", str(program)], check=True, timeout=120)
    environment = {**os.environ, "ASAN_OPTIONS": f"detect_leaks=0{options}"}
    ran = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, env=environment)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout
