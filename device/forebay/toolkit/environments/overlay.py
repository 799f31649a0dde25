"""How an environment is laid over the shared one: a virtual environment that has the shared packages at the end of its path."""

from __future__ import annotations

import json
import os
import shutil
import sys
import sysconfig
import venv
from importlib.metadata import distributions, version
from pathlib import Path
from types import SimpleNamespace

SHARED_KEY = "forebay-shared"
"""In an environment's ``pyvenv.cfg``: the prefix of what it lies over."""
MARK = "# A command of the shared environment, run in this one. Written anew by forebay.\n"
PIP = "forebay.toolkit.environments.pip:main"
LINK = "_forebay_shared.pth"
KERNEL = Path("share", "jupyter", "kernels", "python3")


def configuration(prefix: Path) -> dict[str, str]:
    """What ``pyvenv.cfg`` says; nothing where there is none."""
    try:
        lines = (prefix / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition("=") for line in lines)}


SHARED = Path(configuration(Path(sys.prefix)).get(SHARED_KEY, sys.prefix))
"""The prefix of the shared environment: this process's own, or what its environment lies over. Known before that may be removed."""


def shared_python() -> Path:
    """The Python of the shared environment, whatever a person has installed over it."""
    return SHARED / "bin" / "python" if str(SHARED) != sys.prefix else Path(sys.executable)


def jupyter_path(prefix: Path, before: str) -> str:
    """``JUPYTER_PATH`` of an environment's processes: Jupyter looks for templates and the like below its own prefix alone."""
    return os.pathsep.join(filter(None, [before, *(str(each / "share" / "jupyter") for each in (prefix, SHARED))]))


def packages_of(prefix: Path) -> list[str]:
    """The folders of packages of a virtual environment with this Python."""
    told = {"base": str(prefix), "platbase": str(prefix)}
    return list(dict.fromkeys(sysconfig.get_path(kind, "venv", vars=told) for kind in ("purelib", "platlib")))


class _Builder(venv.EnvBuilder):
    """Of an environment that says what it lies over."""

    def create_configuration(self, context: SimpleNamespace) -> None:
        super().create_configuration(context)
        with open(context.cfg_path, "a", encoding="utf-8") as file:
            file.write(f"{SHARED_KEY} = {SHARED}\n")


def lay(path: Path) -> None:
    """Makes the environment, or brings it up to date with the shared one. What was installed in it stays. Raises OSError."""
    base = SHARED
    found, own = configuration(path), configuration(base)
    if found.get(SHARED_KEY) != str(base) or found.get("version") != ".".join(map(str, sys.version_info[:3])):
        for old in path.glob("bin/python*"):
            old.unlink()
        system = own.get("include-system-site-packages", "true") == "true"
        _Builder(system_site_packages=system, symlinks=True, with_pip=False).create(path)
    folders = packages_of(base) if own else []
    _write(Path(packages_of(path)[0], LINK), "".join(f"import site; site.addsitedir({folder!r})\n" for folder in folders))
    _write(path / "constraints.txt", f"torch=={version('torch')}\n")
    _write(path / "pip.conf", f"[global]\ndisable-pip-version-check = true\n[install]\nconstraint = {path / 'constraints.txt'}\n")
    _lay_commands(path / "bin", folders)
    _link(path / "etc" / "ipython", base / "etc" / "ipython")


def _link(link: Path, target: Path) -> None:
    """What IPython runs first in each kernel of the shared environment, it runs in kernels of this one too."""
    if not link.is_symlink() or link.readlink() != target:
        link.parent.mkdir(exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def _lay_commands(folder: Path, packages: list[str]) -> None:
    """The shared environment's commands begin in this one; one that was installed here has the name first."""
    wanted: dict[str, str] = {}
    for each in distributions(path=packages):
        pip = each.metadata["Name"] == "pip"
        wanted |= {entry.name: PIP if pip else entry.value for entry in each.entry_points if entry.group == "console_scripts"}
    for old in folder.iterdir():
        if old.name not in wanted and _is_ours(old):
            old.unlink()
    for name, value in wanted.items():
        if not (folder / name).exists() or _is_ours(folder / name):
            _write(folder / name, _command(folder / "python", value), 0o755)


def _is_ours(script: Path) -> bool:
    return not script.is_symlink() and script.read_bytes().partition(b"\n")[2].startswith(MARK.encode())


def _command(python: Path, value: str) -> str:
    module, _, attribute = value.partition("[")[0].strip().partition(":")
    return f"#!{python}\n{MARK}import sys\nfrom {module} import {attribute.partition('.')[0]}\nsys.exit({attribute}())\n"


def lay_kernel(folder: Path, path: Path, name: str | None) -> None:
    """The kernel of an environment in ``folder``, as the shared one is but for its Python, and with the environment's name, if any."""
    source = SHARED / KERNEL
    spec = json.loads((source / "kernel.json").read_text(encoding="utf-8"))
    spec["argv"][0] = str(path / "bin" / "python")
    spec["env"] = {**spec.get("env", {}), "VIRTUAL_ENV": str(path), "PATH": f"{path / 'bin'}:${{PATH}}"}
    spec["env"]["JUPYTER_PATH"] = jupyter_path(path, "${JUPYTER_PATH}")
    if name is not None:
        spec["display_name"] = f"{name}: {spec['display_name']}"
    folder.mkdir(parents=True, exist_ok=True)
    for picture in source.glob("logo*"):
        shutil.copyfile(picture, folder / picture.name)
    _write(folder / "kernel.json", json.dumps(spec, indent=1) + "\n")


def _write(path: Path, text: str, mode: int = 0o644) -> None:
    """At once or not at all; a file that is as it should be is left alone."""
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    draft = path.with_name(f".{path.name}.new")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(mode)
    os.replace(draft, path)
