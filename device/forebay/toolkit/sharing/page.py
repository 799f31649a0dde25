"""A notebook as one HTML page, made by the nbconvert of the shared environment, which JupyterLab brings."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from forebay.errors import ForebayError
from forebay.toolkit.environments import overlay

RENDER_SECONDS_MAX = 120.0
RENDERER = ("nbconvert", "--to", "html", "--stdout", "--embed-images", "--log-level", "ERROR")
OWN_TAB = '<base target="_blank">'
"""Links of the page are followed in tabs of their own: the frame that it is shown in leads nowhere else."""


def page_of(notebook: Path) -> str:
    """The notebook as one HTML page. Raises ForebayError."""
    _check_notebook(notebook)
    command = [str(overlay.shared_python()), "-P", "-X", "utf8", "-m", *RENDERER, str(notebook.absolute())]
    try:
        done = subprocess.run(command, capture_output=True, timeout=RENDER_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        raise ForebayError(f"{notebook} was no page after {RENDER_SECONDS_MAX:.0f} s; clear outputs that are large.") from None
    if done.returncode:
        *_, why = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no word of it"]
        raise ForebayError(f"nbconvert, which JupyterLab brings, makes no page of {notebook}: {why}")
    return done.stdout.decode().replace("<head>", f"<head>{OWN_TAB}", 1)


def _check_notebook(path: Path) -> None:
    """Raises ForebayError for what is no notebook."""
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise ForebayError(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError):
        found = None
    if not (isinstance(found, dict) and "nbformat" in found):
        raise ForebayError(f"{path} is no notebook; a notebook is a file that Jupyter writes, as digits.ipynb.")
