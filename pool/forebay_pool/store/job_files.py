"""The files that members send along with their jobs, and those that jobs leave, until nobody needs them any more."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock

from forebay_wire.remote import job_files as wire
from forebay_wire.remote.folder import Written
from forebay_wire.remote.frames import File
from forebay_wire.remote.job_files import Listed

from forebay_pool.errors import FilesRefused
from forebay_pool.model.jobs import FileLimits
from forebay_pool.store.member_files import FOLDER_MODE, HALF, Contents, MemberFiles, Which, on_disk

SUBMIT_NS = 3600 * 10**9
"""A list that was sent so recently may be that of a job which is about to be submitted."""
NAME_CHARACTERS = 32


class Upload:
    """A list of files on its way in. ``wanted`` are the places of those whose contents are to come, in this order."""

    def __init__(self, member: MemberFiles, files: Sequence[File], wanted: Sequence[int]) -> None:
        """Raises OSError."""
        self.member, self.files, self.wanted = member, tuple(files), tuple(wanted)
        self.hashes = frozenset(file.hash for file in files)
        self.left_bytes = sum(on_disk(files[place].size) for place in wanted)
        """What is still to come, as it takes room on disk."""
        self._waiting = deque(files[place] for place in wanted)
        self._written: Written | None = None
        self._lock = Lock()
        """One thread may end it while another writes."""
        self._folder = member.opened()
        self._begin_next()

    @property
    def complete(self) -> bool:
        """Whether nothing more is to come."""
        return self._written is None

    def go_on(self) -> int:
        """Begins the first file with what came of it before; how many bytes. To be called first. Raises OSError."""
        with self._lock:
            return 0 if self._written is None else self._written.go_on(f"{self._waiting[0].hash}{HALF}")

    def add(self, piece: bytes) -> None:
        """The next bytes. Raises ContentsRefused where they are not what was told of, OSError."""
        with self._lock:
            if self._written is None:
                raise FilesRefused("More contents came than were wanted.")
            self._written.add(piece)
            if self._written.complete:
                self._take()
                self._begin_next()

    def _begin_next(self) -> None:
        """Files that are empty have all of their contents already."""
        while self._waiting:
            self._written = self.member.writing(self._folder, self._waiting[0])
            if not self._written.complete:
                return
            self._take()

    def _take(self) -> None:
        if self._written is not None:
            self._written.take_name()
            self._written = None
            self.left_bytes -= on_disk(self._waiting.popleft().size)

    def close(self) -> None:
        """What has come stays for the next time, whole or by half."""
        with self._lock:
            if self._written is not None:
                self._written.drop(f"{self._waiting[0].hash}{HALF}")
                self._written = None
            if self._folder >= 0:
                os.close(self._folder)
                self._folder = -1


class JobFiles:
    """Of all members, each in a folder of their own. Calls may be made on any thread."""

    def __init__(self, path: Path, limits: FileLimits, clock_ns: Callable[[], int]) -> None:
        """``clock_ns`` tells dates, as the file system does."""
        self._path = path
        self._limits = limits
        self._clock_ns = clock_ns
        self._lock = Lock()
        """Held wherever is decided what goes, and what is there."""
        self._uploads: list[Upload] = []

    def begin(self) -> None:
        """Makes the folder, and removes what another pool left by half. Raises OSError."""
        self._path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        for member in self._members():
            member.drop_halves()

    def _members(self) -> list[MemberFiles]:
        return [MemberFiles(path) for path in self._path.iterdir() if path.is_dir() and not path.is_symlink()]

    def _member(self, tenant: str, user: str) -> MemberFiles:
        return MemberFiles(self._path / folder_of(tenant, user))

    # What comes

    def take(self, tenant: str, user: str, files: Sequence[File], needed: Collection[str]) -> Upload:
        """Files that a member wants to send; ``needed`` are the lists that jobs of theirs still need.

        Raises FilesRefused where there is no room for them, NameRefused for paths that cannot be, OSError.
        """
        wire.check(files)
        member = self._member(tenant, user)
        with self._lock:
            member.make()
            there: dict[str, bool] = {}
            for file in files:
                if file.hash not in there:
                    there[file.hash] = member.use(file)
            first = {file.hash: place for place, file in reversed(list(enumerate(files)))}
            wanted = [place for hash_, place in first.items() if not there[hash_]]
            upload = Upload(member, files, sorted(wanted, key=lambda place: (not member.has_half(files[place]), place)))
            try:
                self._make_room(upload, needed)
            except BaseException:
                upload.close()
                raise
            self._uploads.append(upload)
        return upload

    def _make_room(self, upload: Upload, needed: Collection[str]) -> None:
        """Raises FilesRefused."""
        most, coming = self._limits.user_bytes_max, upload.left_bytes
        mine = [one for one in self._uploads if one.member.path == upload.member.path]
        over = upload.member.bytes + sum(one.left_bytes for one in mine) + coming - most
        if over > 0:
            kept = upload.hashes.union(*(one.hashes for one in mine))
            over -= self._drop(upload.member, self._unneeded(upload.member, needed, kept, SUBMIT_NS), over)
        if over > 0:
            raise FilesRefused(
                f"The files of your jobs may take {_gib(most)}, and these would be {_gib(over)} too many. Those of jobs that are not over"
                f" stay until they are, and what jobs left for {self._limits.keep_seconds / 86_400:g} days."
            )
        disk = os.statvfs(self._path)
        free = disk.f_bavail * disk.f_frsize - sum(one.left_bytes for one in self._uploads) - coming
        if coming and free < self._limits.free_bytes_min:
            raise FilesRefused("The disk that keeps the files of jobs is full; tell an operator, or try again later.")

    def keep(self, upload: Upload, job: int | None, left: Sequence[str]) -> str:
        """The name of a list whose contents are all there: of what a job is to begin with, or of what that job left. Raises OSError."""
        name = wire.name_of(upload.files)
        with self._lock:
            if job is None:
                upload.member.keep("sent", name, Listed(files=upload.files))
            else:
                upload.member.keep("results", str(job), Listed(files=upload.files, left=tuple(left)))
        return name

    def drop(self, upload: Upload) -> None:
        """It is over, well or not."""
        with self._lock:
            upload.close()
            self._uploads.remove(upload)

    # What is there

    def use(self, tenant: str, user: str, name: str) -> bool:
        """Whether the member has sent files under this name that are still kept; they stay for long enough that a job takes them."""
        with self._lock:
            return self._member(tenant, user).use_list(name)

    def listed(self, tenant: str, user: str, which: Which, name: str) -> Listed | None:
        """A list; None where there is none any more."""
        return self._member(tenant, user).listed(which, name)

    def pieces(self, tenant: str, user: str, file: File, begun: int) -> Iterator[bytes]:
        """As :meth:`MemberFiles.pieces`."""
        return self._member(tenant, user).pieces(file, begun)

    # What goes

    def sweep(self, needed: Mapping[tuple[str, str], Collection[str]]) -> int:
        """Removes what nobody needs and nobody used for long; ``needed`` are the lists that jobs still need, by member. What is left, in
        bytes."""
        lists = {folder_of(*member): names for member, names in needed.items()}
        return sum(self._sweep(member, lists.get(member.path.name, ())) for member in self._members())

    def _sweep(self, member: MemberFiles, needed: Collection[str]) -> int:
        keep_ns = round(self._limits.keep_seconds * 10**9)
        with self._lock:
            kept = frozenset[str]().union(*(one.hashes for one in self._uploads if one.member.path == member.path))
            old = self._clock_ns() - keep_ns
            gone = [one for one in self._unneeded(member, needed, kept, keep_ns) if one.used_ns < old]
            self._drop(member, gone, sum(one.bytes for one in gone))
            left = member.bytes
            if not left and not any(one.member.path == member.path for one in self._uploads):
                member.drop_if_empty()
        return left

    def _unneeded(self, member: MemberFiles, needed: Collection[str], kept: Collection[str], sent_ns: int) -> list[Contents]:
        """Contents that no list needs, those first that were not used for longest. Lists that are not needed are removed.

        ``sent_ns``: for how long a list of sent files is kept that no job needs.
        """
        now, keep_ns, hashes = self._clock_ns(), round(self._limits.keep_seconds * 10**9), set(kept)
        for one in list(member.lists()):
            stays = one.used_ns > now - (keep_ns if one.which == "results" else sent_ns) or (one.which == "sent" and one.name in needed)
            listed = member.listed(one.which, one.name) if stays else None
            if listed is None:
                member.drop_list(one.which, one.name)
            else:
                hashes.update(file.hash for file in listed.files)
        return sorted(one for one in member.contents() if one.name not in hashes)

    def _drop(self, member: MemberFiles, unneeded: Sequence[Contents], wanted: int) -> int:
        """Removes contents until so many bytes are free; how many are."""
        freed = 0
        for one in unneeded:
            if freed >= wanted:
                break
            member.drop(one.name)
            freed += one.bytes
        return freed


def folder_of(tenant: str, user: str) -> str:
    """The name of a member's folder, in which no name of theirs is."""
    return hashlib.sha256(f"{tenant}\0{user}".encode()).hexdigest()[:NAME_CHARACTERS]


def _gib(count: int) -> str:
    return f"{count / 2**30:.2g} GiB" if count >= 2**30 // 10 else f"{-(-count // 2**20)} MiB"
