"""Checks the subjects of commits: at most 72 characters, one change each. ``python3 .ci/commit_subjects.py [FOLDER]``.

It reads the history that the checkout has, which may be shallow. Merges are left out, as are commits older than the rule.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

CHARACTERS_MAX = 72
SINCE = "2026-11-28T10:40:00+00:00"
"""When the rule began, as committers' clocks have it."""


def subjects(folder: Path) -> list[tuple[str, str]] | None:
    """Short name and subject of each commit since the rule began; None where the folder has no history."""
    if not (folder / ".git").exists():
        return None
    command = ["git", "-C", str(folder), "log", "--no-merges", f"--since={SINCE}", "--format=%h %s"]
    told = subprocess.run(command, capture_output=True, text=True)
    if told.returncode:
        raise RuntimeError(f"git log failed in {folder}: {told.stderr.strip()}")
    return [(line.split(" ", 1)[0], line.partition(" ")[2]) for line in told.stdout.splitlines()]


def problems(found: list[tuple[str, str]]) -> Iterator[str]:
    """What is wrong with each, as a sentence."""
    for name, subject in found:
        if len(subject) > CHARACTERS_MAX:
            yield f"{name} has a subject of {len(subject)} characters, and {CHARACTERS_MAX} are allowed: {subject}"
        if ";" in subject:
            yield f"{name} names several changes; make a commit of each: {subject}"


def main(folder: Path) -> int:
    try:
        found = subjects(folder)
    except (OSError, RuntimeError) as error:
        print(f"The subjects of commits are not checked: {error}")
        return 0
    if found is None:
        print("The subjects of commits are not checked: this folder has no history")
        return 0
    wrong = list(problems(found))
    print(*wrong, f"{len(found)} subjects of commits are checked, {len(wrong)} are wrong", sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent))
