"""A folder of regular files that goes from one host to another, and back: what is read of it, and what may be written into it.

Whoever sends names is not trusted. Every step below the folder is taken by an open folder's descriptor and follows no symbolic link, so
that neither a name nor what changes meanwhile leads out of it (``openat``, ``O_NOFOLLOW``).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from forebay_wire.remote.frames import PATH_BYTES_MAX, PIECE_BYTES

NAME_BYTES_MAX = 255
DEPTH_MAX = 64
LEFT_MAX = 64
LEFT_CHARACTERS_MAX = 256
"""Of sentences about what is not sent, and of each."""
HALF_BYTES_MIN = 2**20
"""Less of a file that broke off is not kept."""
HOLES_BYTES_MAX = 2**20
"""Of a file that is sent: a larger one that has more is sparse, and would fill a disk that it did not fill before."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Opens no FIFO or device so that it waits, or does anything."""
WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


LeavesOut = Callable[[str, bool], bool]
"""Says of a path, and whether it is a folder, that it stays where it is."""
Left = Callable[[str], None]
"""Hears of each other thing that does, in a sentence."""


class NameRefused(ValueError):
    """A path that leads out of the folder, or is none."""


class ContentsRefused(ValueError):
    """Contents that are other than was told of."""


class Found(NamedTuple):
    """A regular file."""

    path: str
    seen: os.stat_result


class Mark(NamedTuple):
    """What changes with each change of a file's contents: nobody but root sets the time of its last change."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int


def mark_of(seen: os.stat_result) -> Mark:
    """Of a file as it is."""
    return Mark(seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)


def parts_of(path: str) -> list[str]:
    """The names of a path below the folder. Raises NameRefused for one that others may read otherwise, or that leads elsewhere."""
    parts = path.split("/")
    try:
        encoded = [part.encode() for part in parts]
    except UnicodeEncodeError:
        raise NameRefused(f"{path!r} is no UTF-8") from None
    if len(parts) > DEPTH_MAX or sum(map(len, encoded)) + len(parts) > PATH_BYTES_MAX:
        raise NameRefused(f"{path[:64]!r}… is too long")
    for part, name in zip(parts, encoded, strict=True):
        if part in ("", ".", "..") or "\0" in part or len(name) > NAME_BYTES_MAX:
            raise NameRefused(f"{path!r} is no name of a file below the folder")
    return parts


def found_in(folder: int, leaves_out: LeavesOut, left: Left) -> Iterator[Found]:
    """The regular files below an open folder, in the order of their names."""
    yield from _found(folder, "", 1, leaves_out, left)


def _found(folder: int, above: str, depth: int, leaves_out: LeavesOut, left: Left) -> Iterator[Found]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        path = f"{above}{name}"
        seen = _seen(folder, name)
        if seen is None or leaves_out(path, stat.S_ISDIR(seen.st_mode)):
            continue
        kind = _kind(seen.st_mode)
        try:
            parts_of(path)
        except NameRefused as refused:
            left(str(refused))
            continue
        if kind == "folder" and depth < DEPTH_MAX:
            yield from _below(folder, name, path, depth, leaves_out, left)
        elif kind == "file":
            yield Found(path, seen)
        else:
            left(f"{path} is a {kind}")


def _below(folder: int, name: str, path: str, depth: int, leaves_out: LeavesOut, left: Left) -> Iterator[Found]:
    try:
        below = os.open(name, FOLDER, dir_fd=folder)
    except OSError as error:
        left(f"{path} cannot be read: {error.strerror}")
        return
    try:
        yield from _found(below, f"{path}/", depth + 1, leaves_out, left)
    finally:
        os.close(below)


def _seen(folder: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=folder, follow_symlinks=False)
    except OSError:  # it went meanwhile
        return None


def _kind(mode: int) -> str:
    kinds = {stat.S_ISREG: "file", stat.S_ISDIR: "folder", stat.S_ISLNK: "symbolic link", stat.S_ISFIFO: "FIFO", stat.S_ISSOCK: "socket"}
    return next((name for is_it, name in kinds.items() if is_it(mode)), "device file")


@contextlib.contextmanager
def _parent(folder: int, parts: list[str], makes: bool = False, owner: int | None = None) -> Iterator[int]:
    """The open folder in which a path's last name is. With ``makes``, missing ones are made, and given to ``owner``. Raises OSError."""
    here = os.dup(folder)
    try:
        for part in parts[:-1]:
            if makes:
                _make(part, here, owner)
            below = os.open(part, FOLDER, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)


def _make(name: str, folder: int, owner: int | None) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o777, dir_fd=folder)
        if owner is not None:
            os.chown(name, owner, owner, dir_fd=folder, follow_symlinks=False)


def shortened(left: Iterable[str]) -> tuple[str, ...]:
    """Sentences of what is not sent, as a message takes them."""
    cut = [one if len(one) <= LEFT_CHARACTERS_MAX else f"{one[:LEFT_CHARACTERS_MAX]}…" for one in left]
    if len(cut) > LEFT_MAX:
        cut[LEFT_MAX - 1 :] = [f"{len(cut) - LEFT_MAX + 1} more are left out"]
    return tuple(one.encode("utf-8", "replace").decode() for one in cut)


def open_file(folder: int, path: str) -> int:
    """Opens a regular file below the folder to read it. Raises NameRefused, OSError."""
    parts = parts_of(path)
    with _parent(folder, parts) as parent:
        opened = os.open(parts[-1], READ, dir_fd=parent)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise NameRefused(f"{path} is no regular file")
    return opened


def pieces_of(opened: int, size: int) -> Iterator[bytes]:
    """The first ``size`` bytes of an open file. Raises OSError where it has become shorter."""
    place = 0
    while place < size:
        piece = os.pread(opened, min(PIECE_BYTES, size - place), place)
        if not piece:
            raise OSError("the file became shorter while it was read")
        place += len(piece)
        yield piece


def hash_of(opened: int, size: int) -> str:
    """SHA-256 of the first ``size`` bytes of an open file. Raises OSError."""
    made = hashlib.sha256()
    for piece in pieces_of(opened, size):
        made.update(piece)
    return made.hexdigest()


class Written:
    """A file that is being written below the folder: it has its name once all of it is there and has the hash that was told of it."""

    def __init__(
        self, folder: int, path: str, size: int, expected: str, executable: bool, owner: int | None = None, mode: int = 0o666
    ) -> None:
        """``owner``: whose it is to be, if not this process's; ``mode`` as for ``open``. Raises NameRefused, OSError."""
        self._folder, self._parts, self._expected, self._left = folder, parts_of(path), expected, size
        self._path, self._owner = path, owner
        self._hash = hashlib.sha256()
        self._copied = ""
        self._temporary = f".forebay-{secrets.token_hex(8)}"
        with _parent(folder, self._parts, True, owner) as parent:
            self._opened = os.open(self._temporary, WRITE, 0o777 if executable else mode, dir_fd=parent)

    @property
    def complete(self) -> bool:
        """Whether nothing more is to come."""
        return not self._left

    def add(self, piece: bytes | memoryview) -> None:
        """The next bytes. Raises ContentsRefused where there are more than were told of, OSError."""
        if len(piece) > self._left:
            raise ContentsRefused(f"{self._path} has more bytes than its size says")
        self._left -= len(piece)
        self._hash.update(piece)
        while piece:
            piece = piece[os.write(self._opened, piece) :]

    def go_on(self, half: str) -> int:
        """Begins with what is beside it under this name, of the same contents, which loses the name; how many bytes are there now. To be
        called first. Raises OSError."""
        with _parent(self._folder, self._parts) as parent:
            try:
                os.replace(half, self._temporary, src_dir_fd=parent, dst_dir_fd=parent)
            except FileNotFoundError:
                return 0
            os.close(self._opened)
            self._opened = os.open(self._temporary, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        size = os.fstat(self._opened).st_size
        begun = size if size < self._left else 0  # more is no half of it
        for piece in pieces_of(self._opened, begun):
            self._hash.update(piece)
        os.ftruncate(self._opened, begun)
        os.lseek(self._opened, begun, os.SEEK_SET)
        self._left -= begun
        return begun

    def copy(self, opened: int) -> None:
        """All of it, from an open file, whose contents are hashed meanwhile. Raises OSError."""
        size = self._left
        with ThreadPoolExecutor(max_workers=1) as beside:
            hashed = beside.submit(hash_of, opened, size)
            while self._left and (count := os.sendfile(self._opened, opened, size - self._left, self._left)):
                self._left -= count
            self._copied = hashed.result()

    def take_name(self, name: str | None = None) -> os.stat_result:
        """Gives the file its name, or another one beside it, in place of what has it. Raises ContentsRefused for other contents than
        were told of, OSError."""
        if self._left or (self._copied or self._hash.hexdigest()) != self._expected:
            raise ContentsRefused(f"{self._path} came with other contents than were told of")
        if self._owner is not None:
            os.fchown(self._opened, self._owner, self._owner)
        with _parent(self._folder, self._parts) as parent:
            os.replace(self._temporary, name or self._parts[-1], src_dir_fd=parent, dst_dir_fd=parent)
        seen = os.fstat(self._opened)
        os.close(self._opened)
        self._opened = -1
        return seen

    def drop(self, half: str | None = None) -> None:
        """Removes what was written, where it has no name yet; or gives it the name ``half``, by which :meth:`go_on` finds it, if it is much
        and more is to come."""
        if self._opened >= 0:
            keeps = half is not None and self._left and os.fstat(self._opened).st_size >= HALF_BYTES_MIN
            os.close(self._opened)
            self._opened = -1
            with contextlib.suppress(OSError), _parent(self._folder, self._parts) as parent:
                if half is not None and keeps:
                    os.replace(self._temporary, half, src_dir_fd=parent, dst_dir_fd=parent)
                else:
                    os.unlink(self._temporary, dir_fd=parent)
