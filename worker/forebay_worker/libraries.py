"""Libraries of segments on disk: one tenant's, on one host. What another may have written is not opened."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BYTES_MAX = 2 << 30
NOTES_MAX = 4096
"""Of libraries, and of reasons why there are none."""
COMPILER_SHARE = 4
"""What a compiler keeps for itself is cleared where it is more than this part of what libraries may take."""
SUFFIX = ".so"
REASON_CHARS_MAX = 400
MAKING = ".making-"
"""How the folder begins in which a library is made. Names of all that is on its way begin with a dot."""
OWN = "forebay-libraries-"
"""How a worker's own folder begins."""
LEFT_SECONDS = 24 * 3600.0
"""What was on its way for so long was left by a worker that was killed."""
NEW_SECONDS = 60.0
"""A folder of one that is beginning may not be locked yet."""


@dataclass(frozen=True)
class Sizes:
    """Of segments that differ in a size, and in what follows from it: for which a library is, and what it was made of."""

    ranges: tuple[tuple[int, int], ...]
    """Each with its end."""
    made_of: tuple[int, int]
    described: tuple[bytes, bytes]
    """Both segments."""

    def __contains__(self, size: int) -> bool:
        return any(first <= size <= last for first, last in self.ranges)

    def __str__(self) -> str:
        some = "some " if len(self.ranges) > 1 else ""
        one, other = sorted(self.made_of)
        return f"its library is for {some}sizes from {self.ranges[0][0]} to {self.ranges[-1][1]}, and was made of {one} and {other}"


@dataclass(frozen=True)
class Found:
    """What is known of a segment: its library, or why there is none."""

    library: Path | None = None
    refused: str = ""
    sizes: Sizes | None = None
    """Where the library is for several."""
    alone: str = ""
    """Why it is not, where others have the same calls."""
    gained: bool = False
    """It was quicker for the segment than tier 1, in a session before."""

    @property
    def note(self) -> str:
        """What is said of the library."""
        return self.alone if self.sizes is None else str(self.sizes)


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
        self._clear_left()
        self.compiler_folder = folder / "compiler"
        self._bytes_max = bytes_max

    def find(self, key: str) -> Found | None:
        """None where nothing is known."""
        noted = self._noted(key)
        gained = bool(noted.get("gained"))
        if "shared" in noted:
            key = noted["shared"]
            noted = self._noted(key)
            if "refused" in noted:
                return None
        if "refused" in noted:
            return Found(refused=str(noted["refused"]))
        library = self.folder / (key + SUFFIX)
        if not _is_own(library) or _hash(library) != noted.get("hash"):
            return None
        os.utime(library)
        return Found(library, sizes=_sizes(noted), alone=str(noted.get("alone", "")), gained=gained)

    def keep(self, key: str, made: Path, sizes: Sizes | None = None, alone: str = "") -> Path:
        """Moves the library into the folder; those not used for longest make room for it. Which operators of our own it calls is noted:
        there PyTorch looks for that."""
        library, calls = self.folder / (key + SUFFIX), made.with_suffix(".json")
        called = json.loads(calls.read_text()) if calls.exists() else {}
        made.chmod(0o600)
        made.replace(library)
        self._write(key, called | {"hash": _hash(library), "alone": alone} | _sizes_noted(sizes))
        self._make_room()
        return library

    def share(self, key: str, shared: str) -> None:
        """The segment has the library of another key, which is for several sizes."""
        self._write(key, {"shared": shared})

    def judge(self, key: str, gained: bool) -> None:
        """Notes whether the segment's library was quicker than tier 1, where that is not known yet."""
        noted = self._noted(key)
        if noted and bool(noted.get("gained")) != gained:
            self._write(key, noted | {"gained": gained})

    def forget(self, key: str) -> None:
        """Nothing is known of the segment any more."""
        self._drop(key)

    def refuse(self, key: str, reason: str) -> None:
        """There is no library of this segment, for good."""
        (self.folder / (key + SUFFIX)).unlink(missing_ok=True)
        self._write(key, {"refused": reason[:REASON_CHARS_MAX]})
        self._make_room()

    def _note(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _noted(self, key: str) -> dict[str, Any]:
        try:
            noted = json.loads(self._note(key).read_text())
            os.utime(self._note(key))
        except (OSError, ValueError):
            return {}
        return noted if isinstance(noted, dict) else {}

    def _write(self, key: str, noted: dict[str, Any]) -> None:
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

    def _clear_left(self) -> None:
        for path in self.folder.glob(".*"):
            with contextlib.suppress(OSError):
                if time.time() - path.lstat().st_mtime > LEFT_SECONDS:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _latest(self, suffix: str) -> list[Path]:
        return sorted(self.folder.glob(f"*{suffix}"), key=lambda path: path.stat().st_mtime, reverse=True)

    def _drop(self, key: str) -> None:
        (self.folder / (key + SUFFIX)).unlink(missing_ok=True)
        self._note(key).unlink(missing_ok=True)


class OwnFolder:
    """A new folder that goes with this process. Where the process is killed, the next one that makes its own removes it."""

    def __init__(self) -> None:
        for left in Path(tempfile.gettempdir()).glob(f"{OWN}*"):
            _remove_left(left)
        self.path = Path(tempfile.mkdtemp(prefix=OWN))
        self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _remove_left(folder: Path) -> None:
    """If it is this user's, and no process has it."""
    with contextlib.suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(lock)
            if found.st_uid == os.geteuid() and time.time() - found.st_mtime > NEW_SECONDS:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
        finally:
            os.close(lock)


def _sizes_noted(sizes: Sizes | None) -> dict[str, Any]:
    if sizes is None:
        return {}
    described = [base64.b64encode(zlib.compress(one)).decode() for one in sizes.described]
    return {"sizes": sizes.ranges, "made_of": sizes.made_of, "described": described}


def _sizes(noted: dict[str, Any]) -> Sizes | None:
    if "sizes" not in noted:
        return None
    one, other = (zlib.decompress(base64.b64decode(described)) for described in noted["described"])
    return Sizes(tuple((first, last) for first, last in noted["sizes"]), (noted["made_of"][0], noted["made_of"][1]), (one, other))


def _is_own(path: Path) -> bool:
    with contextlib.suppress(OSError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return False


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
