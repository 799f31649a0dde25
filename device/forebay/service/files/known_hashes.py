"""Hashes of the files of a folder that were computed before, as long as the files have not changed since."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from pathlib import Path

from forebay_wire.remote.folder import Mark

SETTLED_NS = 2 * 10**9
"""A file that was changed so shortly before it was read may change again without another time."""


class KnownHashes:
    """Kept in the user's cache. A file that says nothing useful is as none."""

    def __init__(self, folder: Path) -> None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:32]
        self._file = cache / "forebay" / "exec" / f"{name}.json"
        self._before = self._read()
        self._now: dict[str, tuple[Mark, str]] = {}

    def _read(self) -> dict[str, tuple[Mark, str]]:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            return {str(path): (Mark(*map(int, mark)), str(known)) for path, (mark, known) in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}

    def of(self, path: str, mark: Mark) -> str | None:
        """The hash of a file that is as it was; None where it is not known."""
        before = self._before.get(path)
        if before is None or before[0] != mark:
            return None
        self._now[path] = before
        return before[1]

    def note(self, path: str, mark: Mark, known: str) -> None:
        """Of a file that was read just now, and was as ``mark`` says before and after."""
        if time.time_ns() - max(mark.modified_ns, mark.changed_ns) > SETTLED_NS:
            self._now[path] = (mark, known)

    def keep(self) -> None:
        """For the next time; where it cannot be written, all is read again then."""
        if not (self._now or self._before):
            return
        with contextlib.suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            made = self._file.with_suffix(f".{os.getpid()}")
            made.write_text(json.dumps(self._now), encoding="utf-8")
            made.replace(self._file)
