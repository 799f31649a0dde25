"""``python -m forebay.toolkit.jobs.notebook NOTEBOOK OUTPUT [KERNEL]``: runs a notebook's cells and keeps them with outputs.

The output notebook is written after each cell, so that a run which is lost leaves what it had. What cells print is printed.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode
from traitlets.config import Config

from forebay.errors import ForebayError
from forebay.toolkit.environments.environment import check_kernel, kernel_of

ENCRYPTED = Config({"KernelManager": {"transport_encryption": "auto"}})
"""What kernel and runner say goes through a port of the machine, which others may be on."""
EXIT_FAILED = 1
EXIT_UNREADABLE = 2


class _Printing(NotebookClient):
    """Prints what cells show, as far as it is text, while they run."""

    def output(self, outs: list[NotebookNode], msg: dict[str, Any], display_id: str | None, cell_index: int) -> NotebookNode | None:
        content = msg["content"]
        if msg["msg_type"] == "stream":
            print(content["text"], end="", flush=True)
        elif msg["msg_type"] == "error":
            print("\n".join(content["traceback"]), flush=True)
        elif "text/plain" in content.get("data", {}):
            print(content["data"]["text/plain"], flush=True)
        return super().output(outs, msg, display_id, cell_index)


def run(source: Path, kept: Path, kernel: str | None = None) -> int:
    """With that kernel, else the notebook's own; the exit status."""
    try:
        notebook = nbformat.read(source, nbformat.NO_CONVERT)
        notebook = nbformat.convert(notebook, nbformat.current_nbformat)
    except (OSError, ValueError) as error:
        print(f"forebay: {source} cannot be read as a notebook: {error}", file=sys.stderr)
        return EXIT_UNREADABLE
    name = kernel or kernel_of(notebook)
    try:
        check_kernel(name, source)
    except ForebayError as error:
        print(f"forebay: {error}", file=sys.stderr)
        return EXIT_UNREADABLE
    cells = len(notebook.cells)

    def began(cell: NotebookNode, cell_index: int) -> None:
        if cell.cell_type == "code":
            print(f"\n--- cell {cell_index + 1} of {cells} ---", flush=True)

    def executed(**_: object) -> None:
        write(notebook, kept)

    bounds: dict[str, Any] = {"timeout": None, "kernel_name": name, "resources": {"metadata": {"path": str(Path.cwd())}}}
    client = _Printing(notebook, on_cell_start=began, on_cell_executed=executed, config=ENCRYPTED, **bounds)
    try:
        client.execute()
    except (CellExecutionError, DeadKernelError) as error:
        if isinstance(error, DeadKernelError):
            print("forebay: the kernel died", file=sys.stderr)
        return EXIT_FAILED
    finally:
        write(notebook, kept)
    return 0


def write(notebook: NotebookNode, kept: Path) -> None:
    """At once or not at all."""
    draft = kept.with_name(f".{kept.name}.new")
    nbformat.write(notebook, draft)
    os.replace(draft, kept)


if __name__ == "__main__":
    sys.exit(run(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:]))
