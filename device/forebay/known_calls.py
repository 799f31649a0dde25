"""The file in which the processes of an installation keep which kinds of calls a worker carries out: only the first of a kind waits."""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

from forebay import _C

VARIABLE = "FOREBAY_KNOWN_CALLS"
NAME = "known-calls"


def keep() -> None:
    """Reads the file, and adds at the end of the process what it has learnt."""
    path = _path()
    if path is None:
        return
    _C.open_known_calls(str(path))
    atexit.register(_save, path)


def _path() -> Path | None:
    """What the variable says (nothing: none); else in the virtual environment, or in the user's cache where that is not writable."""
    given = os.environ.get(VARIABLE)
    if given is not None:
        return Path(given) if given else None
    environment = Path(sys.prefix)
    if sys.prefix != sys.base_prefix and os.access(environment, os.W_OK):
        return environment / "var" / "forebay" / NAME
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "forebay" / NAME


def _save(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    _C.save_known_calls()
