"""Whether the accounts of an installation reach the Python of its environments, whose links may lead below somebody's home."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from forebay_admin.host.answers import Answers
from forebay_admin.host.files import HOMES
from forebay_admin.host.layout import Layout

LINKS_MAX = 40
"""As the kernel follows."""


def warnings(answers: Answers, layout: Layout) -> list[str]:
    """A sentence for each environment whose Python the units' accounts would not reach."""
    notebook = Path(answers.notebook or layout.prefix / "notebook")
    found = []
    for prefix in (layout.prefix, notebook):
        python = prefix / "bin" / "python"
        shut = closed(python)
        if shut is not None:
            found.append(
                f"{python} leads through {shut}, which the accounts of the units cannot pass: they will not start. "
                f"Make {prefix} anew with a Python of the system, such as /usr/bin/python3 -m venv."
            )
    return found


def closed(path: Path) -> Path | None:
    """The first folder on the way, wherever links lead, that other users cannot pass, or that units do not see."""
    for folder in _way(path):
        if any(folder == home or folder.is_relative_to(home) for home in HOMES) or not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None


def _way(path: Path) -> Iterable[Path]:
    """The folders that are passed, those of links too. What is not there ends it."""
    left, place, links = list(Path(os.path.abspath(path)).parts[1:]), Path("/"), 0
    while left and links <= LINKS_MAX:
        step = place / left.pop(0)
        if step.is_symlink():
            links += 1
            target = Path(os.path.normpath(place / os.readlink(step)))
            left, place = [*target.parts[1:], *left], Path("/")
        elif step.is_dir():
            place = step
            yield place
        else:
            return
