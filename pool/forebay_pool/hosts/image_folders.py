"""Where workers keep images of sessions that outlive them (docs/reference/leases.md, images)."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from forebay_pool.model.policies import ImagePolicy

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageFolders:
    """A folder for each session, in the one of a policy. Nobody finds its name who does not know the session's secret."""

    parents: Mapping[ImagePolicy, Path]
    database: str
    """Of this pool: others may have folders beside its own."""

    def of(self, secret: bytes, policy: ImagePolicy, hosts: int = 1) -> str | None:
        """Of the session with this secret, whose devices are on so many hosts; None where its images are nowhere. Its next devices may be
        on others: with several hosts it has images only where all see them."""
        parent = self.parents.get(policy) if hosts == 1 or policy == "node" else None
        return None if parent is None else str(parent / self._name(secret))

    def all_of(self, secret: bytes) -> list[str]:
        """Where images of the session with this secret may be, on any host."""
        return [str(parent / self._name(secret)) for parent in self.parents.values()]

    def remove_others(self, secrets: Collection[bytes]) -> None:
        """Of sessions that a pool left, but for those that go on. Raises OSError where a parent cannot be read."""
        kept = {self._name(secret) for secret in secrets}
        for parent in self.parents.values():
            remove_folders([folder for folder in parent.glob(f"{self._own}-*") if folder.name not in kept])

    @property
    def _own(self) -> str:
        return blake2b(self.database.encode(), digest_size=8).hexdigest()

    def _name(self, secret: bytes) -> str:
        return f"{self._own}-{blake2b(b'images', key=secret, digest_size=16).hexdigest()}"


def is_own(parent: Path) -> bool:
    """Makes it, if it is not there. False if it cannot be made, or is somebody else's, who could put other images there."""
    with contextlib.suppress(OSError):
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return not parent.is_symlink() and parent.stat().st_uid == os.getuid()
    return False


def remove_folders(folders: Collection[Path | str]) -> None:
    """Removes those that there are. What cannot be removed is logged."""
    for folder in folders:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            log.warning("images in %s cannot be removed: %s", folder, error, extra={"action": "images_left"})
