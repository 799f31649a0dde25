"""The user's environments: which there are, and which is in use. All of it lies in one folder of the home, ``~/.forebay``.

``environments/NAME`` is a virtual environment, ``jupyter`` what JupyterLab reads (kernels, its terminals' shell), ``in-use`` a name.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError
from forebay.toolkit.environments import overlay

DEFAULT = "default"
NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
DEFAULT_KERNEL = "python3"
KERNEL_PREFIX = "forebay-"
SHELL = ("-I", "-m", "forebay.toolkit.environments")
BLOCK_BYTES = 512
"""Of ``st_blocks``."""


def root() -> Path:
    """The one folder in the home."""
    return Path.home() / ".forebay"


def _jupyter() -> Path:
    return root() / "jupyter"


@dataclass(frozen=True)
class Environment:
    """One that there is, or may be."""

    name: str

    @property
    def path(self) -> Path:
        return root() / "environments" / self.name

    @property
    def python(self) -> Path:
        return self.path / "bin" / "python"

    @property
    def kernel(self) -> str:
        """The name of its kernel, as notebooks keep it."""
        return DEFAULT_KERNEL if self.name == DEFAULT else KERNEL_PREFIX + self.name

    @property
    def exists(self) -> bool:
        return self.python.exists()

    def packages(self) -> list[str]:
        """``name==version`` of what is installed in it, without the shared packages, in order."""
        found = distributions(path=[str(folder) for folder in self.path.glob("lib/python*/site-packages")])
        return sorted((f"{each.metadata['Name']}=={each.version}" for each in found), key=str.lower)

    def size_bytes(self) -> int:
        """What it takes on the disk."""
        files = (os.path.join(folder, name) for folder, _, names in os.walk(self.path) for name in names)
        return sum(os.lstat(file).st_blocks * BLOCK_BYTES for file in files)

    def activated(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The variables of a process whose commands are this environment's; another environment's are no more."""
        others = str(root() / "environments") + os.sep
        rest = [folder for folder in variables.get("PATH", os.defpath).split(os.pathsep) if not folder.startswith(others)]
        folders = variables.get("JUPYTER_PATH", "").split(os.pathsep)
        jupyter = os.pathsep.join(folder for folder in folders if not folder.startswith(others))
        return {
            **variables,
            "VIRTUAL_ENV": str(self.path),
            "PATH": os.pathsep.join([str(self.path / "bin"), *rest]),
            "JUPYTER_PATH": overlay.jupyter_path(self.path, jupyter),
        }


def environments() -> list[Environment]:
    """All that there are, the default one first."""
    found = [Environment(path.name) for path in (root() / "environments").glob("*") if NAME.fullmatch(path.name)]
    return sorted((each for each in found if each.exists), key=lambda each: (each.name != DEFAULT, each.name))


def environment(name: str) -> Environment:
    """Raises ForebayError where there is none of that name."""
    if (NAME.fullmatch(name) and Environment(name).exists) or name == DEFAULT:
        return Environment(name)
    raise ForebayError(f"There is no environment {name!r}; `forebay env list` shows yours, and `forebay env create` makes one.")


def of_kernel(kernel: str) -> Environment:
    """Whose kernel has that name; it need not be there. Raises ForebayError."""
    name = DEFAULT if kernel == DEFAULT_KERNEL else kernel.removeprefix(KERNEL_PREFIX)
    if NAME.fullmatch(name) and Environment(name).kernel == kernel:
        return Environment(name)
    raise ForebayError(f"The kernel {kernel!r} is not one of an environment of forebay; choose another kernel in the notebook.")


def kernel_of(notebook: Any) -> str:
    """The name of the kernel that the notebook's metadata records."""
    return str(notebook.get("metadata", {}).get("kernelspec", {}).get("name", DEFAULT_KERNEL))


def check_kernel(kernel: str, notebook: Path) -> None:
    """Raises ForebayError for the kernel of an environment that is not there; what is no environment's is left to Jupyter."""
    name = kernel.removeprefix(KERNEL_PREFIX)
    if kernel != name and NAME.fullmatch(name) and not Environment(name).exists:
        ways = f"`forebay env create {name}` makes it, `forebay env restore {notebook}` with what the notebook recorded"
        raise ForebayError(f"{notebook} is to run in the environment {name!r}, and there is none; {ways}.")


def current() -> Environment | None:
    """The one that this process runs in."""
    path = Path(sys.prefix)
    return Environment(path.name) if overlay.SHARED_KEY in overlay.configuration(path) else None


def in_use() -> Environment | None:
    """The one that new terminals and jobs of scripts have; None where nothing is prepared."""
    try:
        name = (root() / "in-use").read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        name = DEFAULT
    chosen = Environment(name if NAME.fullmatch(name) else DEFAULT)
    return next((each for each in (chosen, Environment(DEFAULT)) if each.exists), None)


def use(name: str) -> Environment:
    """Has new terminals and jobs of scripts use it. Raises ForebayError, OSError."""
    chosen = environment(name)
    with _alone():
        (root() / "in-use").write_text(f"{chosen.name}\n", encoding="utf-8")
    return chosen


def create(name: str) -> Environment:
    """A new one, without packages of its own. Raises ForebayError, OSError."""
    if NAME.fullmatch(name) is None:
        raise ForebayError(f"{name!r} is no name of an environment: small letters, digits, _ and -, 32 at most.")
    made = Environment(name)
    with _alone():
        if made.exists:
            raise ForebayError(f"There is an environment {name} already.")
        _lay(made)
    return made


def remove(name: str) -> None:
    """Removes one with all that is installed in it; the default one is there again at once, empty. Raises ForebayError, OSError."""
    gone = environment(name)
    with _alone():
        for folder in (gone.path, _jupyter() / "kernels" / gone.kernel):
            if folder.exists():
                shutil.rmtree(folder)
        if name == DEFAULT:
            _lay(gone)


def prepare() -> Path:
    """Brings all environments up to date with the shared one, the default one into being; Jupyter's folder. Raises OSError."""
    with _alone():
        for each in {Environment(DEFAULT), *environments()}:
            _lay(each)
        shell = [str(overlay.SHARED / "bin" / "python"), *SHELL]
        settings = {"ServerApp": {"terminado_settings": {"shell_command": shell}}}
        (_jupyter() / "jupyter_server_config.json").write_text(json.dumps(settings) + "\n", encoding="utf-8")
    return _jupyter()


def _lay(made: Environment) -> None:
    overlay.lay(made.path)
    overlay.lay_kernel(_jupyter() / "kernels" / made.kernel, made.path, None if made.name == DEFAULT else made.name)


@contextmanager
def _alone() -> Iterator[None]:
    """No two processes change environments at once."""
    root().mkdir(mode=0o700, exist_ok=True)
    with open(root() / ".lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
