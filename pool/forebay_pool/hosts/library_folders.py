"""Where each tenant's libraries of compiled segments are kept on a host, by its workers (docs/reference/compiled.md)."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

KEY_FILE = ".key"
KEY_BYTES = 32


@dataclass(frozen=True)
class LibraryFolders:
    """A folder for each tenant in ``parent``. With a key nobody finds the name of another tenant's who does not know it."""

    parent: Path
    key: bytes = b""

    def of(self, tenant: str) -> str:
        return str(self.parent / blake2b(tenant.encode(), key=self.key, digest_size=16).hexdigest())


def keyed(parent: Path) -> LibraryFolders:
    """Of workers that have accounts of their own, of which each may write to ``parent``, and list it not. The key lies there, for the pool
    alone; it stays, so that the folders do. Raises OSError."""
    path = parent / KEY_FILE
    if not path.exists():
        made = parent / f"{KEY_FILE}.{os.getpid()}"
        made.touch(mode=0o600)
        made.write_bytes(secrets.token_bytes(KEY_BYTES))
        made.replace(path)
    return LibraryFolders(parent, path.read_bytes())
