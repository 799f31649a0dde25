"""What a back-up has beside databases, and where it goes beside the host: folders as archives, and targets of rclone and restic.

``settings`` is ``/etc/forebay``, with its secrets and keys; ``homes`` is people's work. Archives are made and unpacked by tar, which goes
on where a file changes under it. Targets are named ``rclone:REMOTE:PATH`` or ``restic:REPOSITORY``; both programs read their own variables
and files for what they must know, such as keys.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from forebay.errors import ForebayError

PARTS = ("settings", "homes")
SETTINGS = Path("/etc/forebay")
CHANGED_MEANWHILE = 1
"""What tar ends with where a file changed as it was read."""
DATED_NAME = re.compile(r"\d{4}-\d\d-\d\dT\d{6}Z")
PROGRAMS = ("rclone", "restic")
TAG = "forebay"
SAID_MAX = 500


class CopyError(ForebayError):
    """An archive or a copy elsewhere that is not made; the message says what is there."""


def chosen(text: str) -> tuple[str, ...]:
    """The parts in a list with commas. Raises CopyError."""
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for part in found:
        if part not in PARTS:
            raise CopyError(f"{part} is no part of a back-up; beside databases there are {' and '.join(PARTS)}.")
    return found


def places(parts: Sequence[str], state: Path, settings: Path) -> dict[str, Path]:
    """The folder of each part."""
    known = {"settings": settings, "homes": state / "homes"}
    return {part: known[part] for part in parts}


def pack(folder: Path, target: Path) -> None:
    """Numbers of owners are kept. Raises CopyError."""
    if not folder.is_dir():
        raise CopyError(f"There is no folder {folder}.")
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    options = ["--create", "--gzip", "--numeric-owner", "--one-file-system", "--warning=no-file-changed", "--warning=no-file-ignored"]
    _run("tar", *options, f"--file={target}", f"--directory={folder}", ".", fine=(0, CHANGED_MEANWHILE))


def unpack(archive: Path, folder: Path) -> None:
    """Over what is there. Raises CopyError."""
    folder.mkdir(parents=True, exist_ok=True)
    options = ["--extract", "--gzip", "--numeric-owner", "--preserve-permissions", "--delay-directory-restore"]
    _run("tar", *options, f"--file={archive}", f"--directory={folder}")


def check_target(target: str) -> None:
    """Before anything is copied. Raises CopyError."""
    program, _, place = target.partition(":")
    if program not in PROGRAMS or not place:
        raise CopyError(f"{target!r} is no target; give rclone:REMOTE:PATH or restic:REPOSITORY.")
    if shutil.which(program) is None:
        raise CopyError(f"{program} is not installed; it comes with the package of that name.")


def send(folder: Path, target: str, keep: int | None) -> None:
    """A back-up to where it outlives this host; with ``keep`` only the newest so many stay there. Raises CopyError."""
    check_target(target)
    program, _, place = target.partition(":")
    if program == "restic":
        _run("restic", "--repo", place, "backup", "--quiet", "--tag", TAG, str(folder))
        if keep is not None:
            _run("restic", "--repo", place, "forget", "--quiet", "--tag", TAG, "--group-by", "tags", "--keep-last", str(keep), "--prune")
        return
    place = place.rstrip("/")
    _run("rclone", "copy", "--quiet", str(folder), f"{place}/{folder.name}")
    if keep is not None:
        listed = _run("rclone", "lsf", "--dirs-only", place).split()
        dated = sorted(name.rstrip("/") for name in listed if DATED_NAME.fullmatch(name.rstrip("/")))
        for old in dated[:-keep]:
            _run("rclone", "purge", "--quiet", f"{place}/{old}")


def _run(program: str, *arguments: str, fine: Sequence[int] = (0,)) -> str:
    path = shutil.which(program)
    if path is None:
        raise CopyError(f"{program} is not installed.")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode not in fine:
        raise CopyError(f"{program} failed: {' '.join(done.stderr.split())[:SAID_MAX]}")
    return done.stdout
