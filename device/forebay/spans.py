"""What device work is attributed to: the cell that runs under IPython, else the whole process."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal, Protocol

LABEL_CHARACTERS_MAX = 2048


@dataclass(frozen=True)
class Work:
    """One span; the fields are those of :class:`forebay_wire.messages.Span`."""

    id: str
    kind: Literal["cell", "process"]
    label: str
    cell: int | None = None


class Follower(Protocol):
    """Who wants to know of cells; called in the cell's thread."""

    def began(self, work: Work, /) -> None: ...
    def ended(self, work: Work, /) -> None: ...


def process_label(argv: list[str]) -> str:
    """The command line as the user typed it, or close to it."""
    return " ".join(argv)[:LABEL_CHARACTERS_MAX] or "python"


def notebook_label(environment: Mapping[str, str], namespace: Mapping[str, Any]) -> str:
    """The notebook's file name: JPY_SESSION_NAME is Jupyter Server's, the other is set by VS Code."""
    path = environment.get("JPY_SESSION_NAME") or str(namespace.get("__vsc_ipynb_file__", ""))
    return os.path.basename(path)[:LABEL_CHARACTERS_MAX] or "notebook"


class Spans:
    """Knows the current span. ``on_end`` is called when a cell ends, and before one begins: between cells threads may have worked."""

    def __init__(self, on_end: Callable[[], object]) -> None:
        self._on_end = on_end
        self._between = Work(uuid.uuid4().hex, "process", process_label(sys.orig_argv))
        self._cell: Work | None = None
        self._depth = 0
        self.follower: Follower | None = None

    def current(self) -> Work:
        """The cell that runs; between cells, and without IPython, the process."""
        return self._cell or self._between

    def follow(self, shell: Any) -> None:
        """Follows the cells of an IPython shell, beginning with the one that is running now, if any."""
        label = notebook_label(os.environ, shell.user_ns)
        self._between = Work(self._between.id, "process", label)

        def begin(_info: object = None) -> None:
            self._depth += 1
            if self._depth == 1:
                self._on_end()
                self._cell = Work(uuid.uuid4().hex, "cell", label, _running_cell(shell))
                if self.follower is not None:
                    self.follower.began(self._cell)

        def end(_result: object = None) -> None:
            self._depth = max(0, self._depth - 1)
            if self._depth == 0:
                cell, self._cell = self._cell, None
                self._on_end()
                if self.follower is not None and cell is not None:
                    self.follower.ended(cell)

        if _running_cell(shell) is not None:
            begin()
        shell.events.register("pre_run_cell", begin)
        shell.events.register("post_run_cell", end)


def running_shell() -> Any | None:
    """The IPython shell of this process, if there is one; IPython is not imported for it."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None


def _running_cell(shell: Any) -> int | None:
    """The execution count of the cell that this thread runs, or None outside one.

    ``shell.execution_count`` alone does not say it: newer IPython counts on before the cell runs, older IPython after.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run_cell_async" and frame.f_globals.get("__name__") == "IPython.core.interactiveshell":
            return int(frame.f_locals.get("execution_count", shell.execution_count))
        frame = frame.f_back
    return None
