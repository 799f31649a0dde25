"""Libraries of segments on disk: one tenant's, on one host. What another may have written is not opened."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BYTES_MAX = 2 << 30
NOTES_MAX = 4096
"""Of libraries, and of reasons why there are none."""
COMPILER_SHARE = 4
"""What a compiler keeps for itself is cleared where it is more than this part of what libraries may take."""
SUFFIX = ".so"
PACKED_BYTES_MAX = 64 << 20
"""Of what goes along with a session, as the executor takes it."""
HEAD_BYTES = 4096
KEY = re.compile(r"[0-9a-f]{40}")
REASON_CHARS_MAX = 400
MAKING = ".making-"
"""How the folder begins in which a library is made. Names of all that is on its way begin with a dot."""
OWN = "forebay-libraries-"
"""How a worker's own folder begins."""
LEFT_SECONDS = 24 * 3600.0
"""What was on its way for so long was left by a worker that was killed."""
OF_OTHERS = stat.S_ISVTX | stat.S_IRWXG | stat.S_IRWXO
WITHOUT_A_LOOK = stat.S_ISVTX | stat.S_IWGRP | stat.S_IXGRP
"""How a folder is opened to a group that makes files there, and neither lists nor removes those of others."""
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
        return f"it is for {some}sizes from {self.ranges[0][0]} to {self.ranges[-1][1]}, and was made of {one} and {other}"


@dataclass(frozen=True)
class Found:
    """What is known of a segment: its library, or why there is none."""

    library: Path | None = None
    refused: str = ""
    sizes: Sizes | None = None
    """Where the library is for several."""
    alone: str = ""
    """Why it is not, where others have the same calls."""
    made_seconds: float = 0.0
    """How long its compiler took."""
    takes: float | None = None
    """Of tier 1's time, in a session before, where it was quicker."""
    is_judged: bool = False
    """Whether it is known if it is."""

    @property
    def note(self) -> str:
        """What is said of the library."""
        sizes = self.alone if self.sizes is None else str(self.sizes)
        return "; ".join(filter(None, (f"it took {self.made_seconds:.0f} s to make", sizes)))


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
    """A folder of libraries, and of reasons why there are none: this user's alone. Or, in one to which workers of several accounts write,
    those of one tenant's workers alone, whatever their accounts: others are of the same group, but do not know its name. Raises OSError
    where it cannot be made, or is not that."""

    def __init__(self, folder: Path, workshop: Path | None = None, bytes_max: int = BYTES_MAX) -> None:
        """``workshop``: where libraries are made, this process's alone; None: in the folder."""
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        parent = folder.parent.stat()
        self._group = parent.st_gid if parent.st_mode & OF_OTHERS == WITHOUT_A_LOOK else None
        self.folder = folder
        self._make_folder()
        if not self._is_ours(folder.stat()):
            raise OSError(f"{folder} can be written to by others than this worker's user")
        self.workshop = workshop or folder
        self._clear_left()
        self.compiler_folder = self.workshop / "compiler"
        self._bytes_max = bytes_max

    def _make_folder(self) -> None:
        """Whole or not at all, since other workers may look for it."""
        if self.folder.exists():
            return
        made = Path(tempfile.mkdtemp(prefix=".", dir=self.folder.parent))
        if self._group is not None:
            os.chown(made, -1, self._group)
            made.chmod(0o2770)
        try:
            made.rename(self.folder)
        except OSError:  # another worker was first
            made.rmdir()

    def _is_ours(self, found: os.stat_result) -> bool:
        if self._group is None:
            return found.st_uid == os.geteuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return found.st_gid == self._group and not found.st_mode & stat.S_IRWXO

    def _open_to_ours(self, path: Path) -> None:
        path.chmod(0o600 if self._group is None else 0o660)

    def find(self, key: str) -> Found | None:
        """None where nothing is known."""
        noted = self._noted(key)
        takes, is_judged = noted.get("takes"), "takes" in noted
        if "shared" in noted:
            key = noted["shared"]
            noted = self._noted(key)
            if "refused" in noted:
                return None
        if "refused" in noted:
            return Found(refused=str(noted["refused"]))
        library = self.folder / (key + SUFFIX)
        if not self._is_library(library) or _hash(library) != noted.get("hash"):
            return None
        os.utime(library)
        return Found(library, "", _sizes(noted), str(noted.get("alone", "")), float(noted.get("seconds", 0)), takes, is_judged)

    def content(self, key: str) -> bytes | None:
        """What was kept, where it is whole; for what is read, and not opened by a loader."""
        library = self.folder / (key + SUFFIX)
        if not self._is_library(library):
            return None
        content = library.read_bytes()
        if hashlib.blake2b(content).hexdigest() != self._noted(key).get("hash"):
            return None
        os.utime(library)
        return content

    def keep(self, key: str, made: Path, seconds: float, sizes: Sizes | None = None, alone: str = "") -> Path:
        """Moves the library, which took so long to make, into the folder; those not used for longest make room for it. Which operators of
        our own it calls is noted: there PyTorch looks for that."""
        library, calls = self.folder / (key + SUFFIX), made.with_suffix(".json")
        called = json.loads(calls.read_text()) if calls.exists() else {}
        self._put(key, made.read_bytes())
        made.unlink()
        self._write(key, called | {"hash": _hash(library), "alone": alone, "seconds": seconds} | _sizes_noted(sizes))
        self._make_room()
        return library

    def share(self, key: str, shared: str) -> None:
        """The segment has the library of another key, which is for several sizes."""
        self._write(key, {"shared": shared})

    def changing(self, form: str) -> set[tuple[int, int]]:
        """Which numbers changed in segments of the form that got libraries."""
        return {(call, word) for call, word in self._noted(form).get("changing", ())}

    def note_changing(self, form: str, changing: set[tuple[int, int]]) -> None:
        """Those of one that gets a library, beside those that did before."""
        noted = self.changing(form)
        if not changing <= noted:
            self._write(form, {"changing": sorted(changing | noted)})

    def judge(self, key: str, takes: float | None) -> None:
        """Notes what the segment's library takes of tier 1's time; None where it is not quicker."""
        noted = self._noted(key)
        if noted:
            self._write(key, noted | {"takes": takes})

    def forget(self, key: str) -> None:
        """Nothing is known of the segment any more."""
        self._drop(key)

    def refuse(self, key: str, reason: str) -> None:
        """There is no library of this segment, for good."""
        (self.folder / (key + SUFFIX)).unlink(missing_ok=True)
        self._write(key, {"refused": reason[:REASON_CHARS_MAX]})
        self._make_room()

    def packed(self, keys: Iterable[str], circumstances: Sequence[str]) -> bytes:
        """Libraries and notes of these keys for another folder, of ``PACKED_BYTES_MAX`` at most: a line of JSON, and what it tells of.
        Reasons why there is no library stay here."""
        notes: dict[str, dict[str, Any]] = {}
        sizes: dict[str, int] = {}
        contents, room = [], PACKED_BYTES_MAX - HEAD_BYTES
        for key in dict.fromkeys(keys):
            noted, library = self._noted(key), self.folder / (key + SUFFIX)
            content = library.read_bytes() if "hash" in noted and self._is_library(library) else b""
            room -= len(content) + len(json.dumps(noted)) + len(key)
            if noted and "refused" not in noted and room >= 0:
                notes[key] = noted
                sizes[key] = len(content)
                contents.append(content)
        head = {"circumstances": key_of(b"", *circumstances), "notes": notes, "sizes": sizes}
        return json.dumps(head).encode() + b"\n" + b"".join(contents)

    def unpack(self, packed: bytes, circumstances: Sequence[str]) -> int:
        """Keeps what is not there yet, where circumstances are the same. Returns how many libraries that were. Raises ValueError for what
        is not from such a folder."""
        line, _, content = packed.partition(b"\n")
        head, at, kept = json.loads(line), 0, 0
        try:
            if head["circumstances"] != key_of(b"", *circumstances):
                return 0
            for key, size in head["sizes"].items():
                one, at = content[at : at + int(size)], at + int(size)
                noted = dict(head["notes"][key])
                if not KEY.fullmatch(key) or not KEY.fullmatch(noted.get("shared", key)) or "refused" in noted:
                    raise ValueError(f"no note of a library: {key}")
                if one and hashlib.blake2b(one).hexdigest() != noted["hash"]:
                    raise ValueError(f"the library {key} is not the one that was kept")
                if self._noted(key):
                    continue
                if one:
                    self._put(key, one)
                    kept += 1
                self._write(key, noted)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no libraries of a worker: {error!r}") from error
        self._make_room()
        return kept

    def _put(self, key: str, content: bytes) -> None:
        temporary = self._temporary(key + SUFFIX)
        temporary.write_bytes(content)
        self._open_to_ours(temporary)
        temporary.replace(self.folder / (key + SUFFIX))

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
        temporary = self._temporary(key)
        temporary.write_text(json.dumps(noted))
        self._open_to_ours(temporary)
        temporary.replace(self._note(key))

    def _temporary(self, name: str) -> Path:
        return self.folder / f".{name}.{os.getpid()}"

    def _is_library(self, path: Path) -> bool:
        with contextlib.suppress(OSError):
            found = path.lstat()
            return stat.S_ISREG(found.st_mode) and self._is_ours(found)
        return False

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


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()
