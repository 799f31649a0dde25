"""A tree that Debian's own packages lay: the base of images, where no registry is reached."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

RELEASE = "bookworm"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
LAY_SECONDS_MAX = 900


def need(*programs: str) -> None:
    """Skips a test that builds or runs images where that cannot be done."""
    wanted = ("debootstrap", *programs)
    if os.geteuid() != 0 or None in map(shutil.which, wanted):
        pytest.skip(f"images take root and {', '.join(wanted)} (Debian: apt-get install {' '.join(wanted)})")


def lay(folder: Path, packages: Iterable[str] = PACKAGES) -> None:
    """With the package indexes and authorities that this host has."""
    said(LAY_SECONDS_MAX, "debootstrap", "--variant=minbase", f"--include={','.join(packages)}", RELEASE, str(folder))
    shutil.copy("/etc/ssl/certs/ca-certificates.crt", folder / "etc" / "ssl" / "certs")
    (folder / "etc" / "pip.conf").write_text("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n")


def said(seconds_max: int, *words: str) -> str:
    """What a command says, which must succeed."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=seconds_max)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout.strip()
