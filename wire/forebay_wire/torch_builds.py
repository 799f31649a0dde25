"""Which of a package's extensions is for the installed PyTorch: C++ code may be shared within one minor release of it, and no further.

So a package has a folder for each release that it was built for, ``torch_2_13`` and so on, and all of them travel in one wheel: whoever
installs another PyTorch later needs to install nothing of ours again. Nothing here imports PyTorch.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, MutableSequence
from pathlib import Path

FOLDER = re.compile(r"torch_(\d+)_(\d+)")
_VERSION = re.compile(r"^__version__\s*=\s*[\"']([^\"']+)", re.MULTILINE)


def release(version: str) -> str:
    """``2.13`` of ``2.13.0+cu130``: what C++ code may be shared within."""
    return ".".join(version.split(".")[:2])


def folder_of(version: str) -> str:
    """``torch_2_13`` of ``2.13.0+cu130``."""
    return f"torch_{release(version).replace('.', '_')}"


def installed_version() -> str | None:
    """``2.13.0+cu130``, as PyTorch's files say it; None where there is no PyTorch."""
    spec = importlib.util.find_spec("torch")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        file = Path(place, "version.py")
        found = _VERSION.search(file.read_text(encoding="utf-8")) if file.exists() else None
        if found:
            return found[1]
    return None


def add_to(package_path: MutableSequence[str]) -> None:
    """Lets a package find its extensions: adds to its ``__path__`` the folder that is for the installed PyTorch, if it has one."""
    version = installed_version()
    if version is not None:
        folders = [Path(place, folder_of(version)) for place in package_path]
        package_path.extend(str(folder) for folder in folders if folder.is_dir())


def releases_in(package_path: Iterable[str]) -> list[str]:
    """The releases that a package was built for, oldest first: ``["2.12", "2.13"]``."""
    found = {match for place in package_path for entry in Path(place).glob("torch_*") if (match := FOLDER.fullmatch(entry.name))}
    return [f"{major}.{minor}" for major, minor in sorted({(int(match[1]), int(match[2])) for match in found})]
