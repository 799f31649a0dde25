"""Libraries of segments on disk: one tenant's, on one host. What another may have written is not opened."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

BYTES_MAX = 2 << 30
NOTES_MAX = 4096
"""Of libraries, and of reasons why there are none."""
COMPILER_SHARE = 4
"""What a compiler keeps for itself is cleared where it is more than this part of what libraries may take."""
SUFFIX = ".so"
REASON_CHARS_MAX = 400


@dataclass(frozen=True)
class Found:
    """What is known of a segment: its library, or why there is none."""

    library: Path | None = None
    refused: str = ""


def key_of(description: bytes, *circumstances: str) -> str:
    """The same for the same segment under the same circumstances: PyTorch's version, the processor, threads, the compiler's version."""
    digest = hashlib.blake2b(description, digest_size=20)
    for one in circumstances:
        digest.update(b"\0" + one.encode())
    return digest.hexdigest()


def processor() -> str:
    """What this host's processor can do."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


class Libraries:
    """A folder of libraries, and of reasons why there are none. Raises OSError where it cannot be made, or is not this user's alone."""

    def __init__(self, folder: Path, bytes_max: int = BYTES_MAX) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f"{folder} can be written to by others than this worker's user")
        self.folder = folder
        self.compiler_folder = folder / "compiler"
        self._bytes_max = bytes_max

    def find(self, key: str) -> Found | None:
        """None where nothing is known."""
        try:
            noted = json.loads(self._note(key).read_text())
            os.utime(self._note(key))
        except (OSError, ValueError):
            return None
        if "refused" in noted:
            return Found(refused=str(noted["refused"]))
        library = self.folder / (key + SUFFIX)
        if not _is_own(library) or _hash(library) != noted.get("hash"):
            return None
        os.utime(library)
        return Found(library)

    def keep(self, key: str, made: Path) -> Path:
        """Moves the library into the folder; those not used for longest make room for it."""
        library = self.folder / (key + SUFFIX)
        made.chmod(0o600)
        made.replace(library)
        self._write(key, {"hash": _hash(library)})
        self._make_room()
        return library

    def refuse(self, key: str, reason: str) -> None:
        """There is no library of this segment, for good."""
        (self.folder / (key + SUFFIX)).unlink(missing_ok=True)
        self._write(key, {"refused": reason[:REASON_CHARS_MAX]})
        self._make_room()

    def _note(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _write(self, key: str, noted: dict[str, str]) -> None:
        temporary = self.folder / f".{key}.{os.getpid()}"
        temporary.write_text(json.dumps(noted))
        temporary.replace(self._note(key))

    def _make_room(self) -> None:
        total = 0
        for path in self._latest(SUFFIX):
            total += path.stat().st_size
            if total > self._bytes_max:
                self._drop(path.stem)
        for path in self._latest(".json")[NOTES_MAX:]:
            self._drop(path.stem)
        held = sum(path.stat().st_size for path in self.compiler_folder.rglob("*") if path.is_file())
        if held > self._bytes_max // COMPILER_SHARE:
            shutil.rmtree(self.compiler_folder, ignore_errors=True)

    def _latest(self, suffix: str) -> list[Path]:
        return sorted(self.folder.glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime, reverse=True)

    def _drop(self, key: str) -> None:
        (self.folder / (key + SUFFIX)).unlink(missing_ok=True)
        self._note(key).unlink(missing_ok=True)


def _is_own(path: Path) -> bool:
    with contextlib.suppress(OSError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return False


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
