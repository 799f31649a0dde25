"""Executables of programs on disk, so that a tenant's next worker need not compile what one of its workers did.

They lie in the folder of the tenant's libraries, under the same rules: nothing is opened that another tenant may have written, and what is
not whole is not taken. An executable is machine code, so its key has all that XLA made it of.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from forebay_worker.libraries import Libraries, key_of, processor

LOG = logging.getLogger(__name__)
LEAST_SECONDS = 0.1
"""How long a program must have taken to compile: reading a file is no quicker else."""
BYTES_MAX = 256 << 20
"""Of one executable."""
FORM = "1"
"""Of what is kept; another one is another key."""


class KeptPrograms:
    """Those of one tenant, in ``folder``; None: nowhere, unless it is told a folder before the first program comes."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def keep_in(self, folder: Path) -> None:
        """To be called before a session."""
        self._folder = self._folder or folder

    @property
    def _libraries(self) -> Libraries | None:
        return None if self._folder is None else self._opened

    @cached_property
    def _opened(self) -> Libraries | None:
        if self._folder is None:
            return None
        try:
            return Libraries(self._folder)
        except OSError as error:  # its name is the tenant's secret
            LOG.warning("no folder keeps this tenant's programs: %s", error.strerror or "", extra={"action": "programs_not_kept"})
            return None

    @staticmethod
    def key(module: bytes, placement: tuple[object, ...], devices: int) -> str:
        """Of a program as it came, for these places among so many devices of the host's processor."""
        compiler = (version("jaxlib"), processor(), os.environ.get("NPROC", str(os.cpu_count())), os.environ.get("XLA_FLAGS", ""))
        return key_of(module, "program", FORM, "cpu", *compiler, repr(placement), str(devices))

    def find(self, key: str) -> bytes | None:
        """None where it is not there, or not as it was kept."""
        if self._libraries is None:
            return None
        with contextlib.suppress(OSError):
            return self._libraries.content(key)
        return None

    def keep(self, key: str, executable: bytes, seconds: float) -> None:
        """Keeps what took so long to compile. Where that fails, it is compiled again."""
        if self._libraries is None or len(executable) > BYTES_MAX:
            return
        try:
            with tempfile.TemporaryDirectory(prefix=".program-", dir=self._libraries.folder) as scratch:
                made = Path(scratch) / key
                made.write_bytes(executable)
                self._libraries.keep(key, made, seconds)
        except OSError as error:
            LOG.warning("a program is not kept: %s", error.strerror or "", extra={"action": "programs_not_kept"})

    def forget(self, key: str) -> None:
        """What XLA does not take is compiled anew."""
        if self._libraries is not None:
            self._libraries.forget(key)
