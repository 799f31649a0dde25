"""The packages that a notebook needs, written in its metadata on request, and installed from there."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError
from forebay.toolkit.environments import environment
from forebay.toolkit.environments.environment import Environment

KEY = "forebay"
"""In a notebook's metadata: what is recorded, under ``python`` and ``requirements``."""


def frozen(of: Environment) -> list[str]:
    """Lines of a ``requirements.txt``: what is installed in the environment, as pip tells it. Raises ForebayError."""
    listed = [str(of.python), "-m", "pip", "freeze", "--local"]
    told = subprocess.run(listed, capture_output=True, text=True, check=False)
    if told.returncode:
        raise ForebayError(f"pip cannot tell what is installed in {of.name}: {told.stderr.strip()}")
    lines: list[str] = told.stdout.splitlines()
    return lines


def recorded(of: Environment) -> dict[str, Any]:
    """What stands under KEY of a notebook whose kernel has the environment. Raises ForebayError."""
    return {"python": platform.python_version(), "requirements": frozen(of)}


def recorded_here() -> dict[str, Any]:
    """That of the kernel that this process is; its page writes it into the notebook, which has it open. Raises ForebayError."""
    here = environment.current()
    if here is None:
        raise ForebayError("This kernel runs in no environment of forebay; choose another kernel in the notebook.")
    return recorded(here)


def record(path: Path) -> list[str]:
    """Writes into the notebook what the environment of its kernel has; the lines. Raises ForebayError, OSError."""
    notebook = _read(path)
    found = recorded(environment.environment(_environment(notebook).name))
    notebook.metadata[KEY] = {**notebook.metadata.get(KEY, {}), **found}
    _write(notebook, path)
    lines: list[str] = found["requirements"]
    return lines


def restore(path: Path) -> tuple[Environment, int]:
    """Installs what is recorded into the environment of the notebook's kernel, made where there is none; pip's exit status.

    Raises ForebayError, OSError.
    """
    notebook = _read(path)
    lines = notebook.metadata.get(KEY, {}).get("requirements")
    if not isinstance(lines, list):
        raise ForebayError(f"No packages are recorded in {path}; `forebay env record {path}` writes them, where they are installed.")
    of = _environment(notebook)
    if not of.exists:
        environment.create(of.name)
    if not lines:
        return of, 0
    install = [str(of.python), "-m", "forebay.toolkit.environments.pip", "install", "-r", "/dev/stdin"]
    return of, subprocess.run(install, input="\n".join(lines), text=True, check=False).returncode


def _environment(notebook: Any) -> Environment:
    return environment.of_kernel(environment.kernel_of(notebook))


def _read(path: Path) -> Any:
    import nbformat

    try:
        return nbformat.read(path, nbformat.NO_CONVERT)
    except ValueError as error:
        raise ForebayError(f"{path} cannot be read as a notebook: {error}") from None


def _write(notebook: Any, path: Path) -> None:
    import nbformat

    draft = path.with_name(f".{path.name}.new")
    nbformat.write(notebook, draft)
    os.replace(draft, path)
