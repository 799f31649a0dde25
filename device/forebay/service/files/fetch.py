"""What a job left, as it is written into a folder."""

from __future__ import annotations

from pathlib import Path

from forebay_wire.remote import folder
from forebay_wire.remote.frames import File
from forebay_wire.remote.job_files import Listed

from forebay.errors import ForebayError
from forebay.service import Service
from forebay.service.files.file_link import FileLink, Moved


class Fetch:
    """What a job left, on its way into a folder. Files that are there already with the same contents are not fetched again."""

    def __init__(self, service: Service, job: int, into: Path, moved: Moved = lambda done, total: None) -> None:
        self._service, self._job, self._into, self._moved = service, job, into, moved
        self.listed = Listed(files=())
        """All that it left."""
        self.aside: list[str] = []
        """Where files are that could not have their own names, in sentences."""
        self._written: list[Path] = []

    def perform(self) -> list[Path]:
        """The files that were written. Raises ForebayError."""
        with FileLink(self._service, self._moved) as link:
            self.listed = link.ask(self._job, "results")
            try:
                places = [place for place, file in enumerate(self.listed.files) if not _is_there(self._into, file)]
            except folder.NameRefused as refused:
                raise ForebayError(f"The pool told of what is no file of a folder: {refused}.") from None
            link.take(self.listed, places, self._into, self._name_of)
        return self._written

    def _name_of(self, file: File) -> str:
        """A file that is another here stays."""
        path = self._into / file.path
        if path.is_symlink() or path.exists():
            path = path.with_name(f"{path.name}.from-job-{self._job}")
            self.aside.append(f"{file.path} is another file here, and stays; the job's is beside it as {path.name}")
        self._written.append(path)
        return path.name


def _is_there(into: Path, file: File) -> bool:
    """Whether the file has the job's contents here already. Raises NameRefused."""
    folder.parts_of(file.path)
    path = into / file.path
    try:
        if path.is_symlink() or path.stat().st_size != file.size:
            return False
        with path.open("rb") as opened:
            return folder.hash_of(opened.fileno(), file.size) == file.hash
    except OSError:
        return False
