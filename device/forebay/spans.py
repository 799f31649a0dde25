"""What device work is attributed to: the cell that runs under IPython, else the whole process."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from forebay_wire.messages import Span

LINES_VARIABLE = "FOREBAY_CELL_LINES"
LABEL_VARIABLE = "FOREBAY_LABEL"
"""What usage calls this process, in place of its notebook's name or its command line."""
JOB_VARIABLE, ATTEMPT_VARIABLE = "FOREBAY_JOB", "FOREBAY_JOB_ATTEMPT"
"""The number of the job that this process belongs to, and of its run; set by the runner of jobs."""
FIRST_LINE_CHARS_MAX = 200
"""More than the links let through: what is longer shows there that it goes on."""
CHECK_PYCS = "--check-hash-based-pycs"
"""The one long option of Python's that has a value."""


@dataclass(frozen=True)
class Work:
    """One span; the fields are those of :class:`forebay_wire.messages.Span`, which takes time to load."""

    id: str
    kind: Literal["cell", "process"]
    label: str
    cell: int | None = None
    cell_id: str | None = None
    first_line: str | None = None

    @property
    def span(self) -> Span:
        """As the links have it."""
        from forebay_wire.messages import Span

        return Span(**asdict(self))


class Follower(Protocol):
    """Who wants to know of cells; called in the cell's thread."""

    def began(self, work: Work, /) -> None: ...
    def ended(self, work: Work, /) -> None: ...


def process_label(argv: list[str]) -> str:
    """A command line without its interpreter, ``train.py --epochs 3``; the links make a label of it (:mod:`forebay_wire.texts`)."""
    return " ".join(_program(argv[1:])) or (os.path.basename(argv[0]) if argv else "") or "python"


def _program(arguments: list[str]) -> list[str]:
    """What follows the interpreter's own options: a script or module with its arguments; of code in ``-c`` nothing is told."""
    for place, option in enumerate(arguments):
        if not option.startswith("-") or option == "-":
            return arguments[place:]
        letters = "" if option.startswith("--") else option[1:]
        ending = next((letter for letter in letters if letter in "cmWX"), "")
        rest = letters.partition(ending)[2] if ending else ""
        if ending == "c":
            return ["python -c"]
        if ending == "m":
            return [*([rest] if rest else []), *arguments[place + 1 :]]
        if (ending or option == CHECK_PYCS) and not rest:
            return _program(arguments[place + 2 :])
    return []


def notebook_label(environment: Mapping[str, str], namespace: Mapping[str, Any]) -> str:
    """The notebook's file name: JPY_SESSION_NAME is Jupyter Server's, the other is set by VS Code."""
    if told := environment.get(LABEL_VARIABLE):
        return told
    path = environment.get("JPY_SESSION_NAME") or str(namespace.get("__vsc_ipynb_file__", ""))
    return os.path.basename(path) or "notebook"


def own_label() -> str:
    """What people know this process by: its notebook, else its command line."""
    shell = running_shell()
    return notebook_label(os.environ, shell.user_ns) if shell is not None else _own_process()


def _own_process() -> str:
    return os.environ.get(LABEL_VARIABLE) or process_label(sys.orig_argv)


def first_line(source: str, environment: Mapping[str, str]) -> str | None:
    """How a cell begins, or None where its user wants that told to nobody."""
    if environment.get(LINES_VARIABLE, "").lower() in ("0", "no", "off", "false"):
        return None
    start = source.lstrip()
    return start[: start.find("\n") if "\n" in start else None][:FIRST_LINE_CHARS_MAX].rstrip() or None


class Spans:
    """Knows the current span. ``on_end`` is called when a cell ends, and before one begins: between cells threads may have worked."""

    def __init__(self, on_end: Callable[[], object]) -> None:
        self._on_end = on_end
        self._between = Work(_new_id(), "process", _own_process())
        self._cell: Work | None = None
        self._depth = 0
        self.follower: Follower | None = None

    def current(self) -> Work:
        """The cell that runs; between cells, and without IPython, the process."""
        return self._cell or self._between

    def follow(self, shell: Any) -> None:
        """Follows the cells of an IPython shell, beginning with the one that is running now, if any."""
        self._between = Work(self._between.id, "process", notebook_label(os.environ, shell.user_ns))

        def begin(_info: object = None) -> None:
            self._depth += 1
            if self._depth == 1:
                self._on_end()
                label = notebook_label(os.environ, shell.user_ns)  # an agent's kernel works for several experiments in turn
                if label != self._between.label:
                    self._between = Work(_new_id(), "process", label)
                self._cell = _work(label, running_cell(shell))
                if self.follower is not None:
                    self.follower.began(self._cell)

        def end(_result: object = None) -> None:
            self._depth = max(0, self._depth - 1)
            if self._depth == 0:
                cell, self._cell = self._cell, None
                self._on_end()
                if self.follower is not None and cell is not None:
                    self.follower.ended(cell)

        if running_cell(shell) is not None:
            begin()
        shell.events.register("pre_run_cell", begin)
        shell.events.register("post_run_cell", end)


def _new_id() -> str:
    """Of a span; in a run of a job it begins with the numbers of both, by which billing tells what each run costs."""
    job, attempt = os.environ.get(JOB_VARIABLE, ""), os.environ.get(ATTEMPT_VARIABLE, "")
    of_run = f"job-{job}/{attempt}/" if job.isdecimal() and attempt.isdecimal() else ""
    return of_run + uuid.uuid4().hex


def running_shell() -> Any | None:
    """The IPython shell of this process, if there is one; IPython is not imported for it."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None and hasattr(module, "get_ipython") else None


@dataclass(frozen=True)
class _Execution:
    """A cell that runs: its number, its source, and the front end's id of it."""

    count: int
    source: str
    id: str | None


def _work(label: str, execution: _Execution | None) -> Work:
    if execution is None:
        return Work(_new_id(), "cell", label)
    return Work(_new_id(), "cell", label, execution.count, execution.id, first_line(execution.source, os.environ))


def running_cell(shell: Any) -> _Execution | None:
    """The cell that this thread runs, or None outside one. It is in no event where PyTorch is imported by the cell itself.

    ``shell.execution_count`` alone does not say it: newer IPython counts on before the cell runs, older IPython after.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "run_cell_async" and frame.f_globals.get("__name__") == "IPython.core.interactiveshell":
            return _execution(frame.f_locals, shell)
        frame = frame.f_back
    return None


def _execution(values: Mapping[str, Any], shell: Any) -> _Execution:
    cell_id = values.get("cell_id")
    count = int(values.get("execution_count", shell.execution_count))
    return _Execution(count, str(values.get("raw_cell") or ""), str(cell_id) if cell_id else None)


def place(file: str, line: int, function: str) -> str:
    """Where a line stands, in words that its author knows: ``train.py, line 12, in fit``, or ``cell [5], line 3``."""
    shown = shown_file(file)
    where = f"{shown}, line {line}"
    return where if function == "<module>" and shown != file else f"{where}, in {function}"


def shown_file(file: str) -> str:
    """``cell [5]`` for the file of a cell, by the execution count that IPython's own tracebacks tell, too; others are what they are."""
    compiler = getattr(running_shell(), "compile", None)
    number = getattr(compiler, "_filename_map", {}).get(file)
    return f"cell [{number}]" if isinstance(number, int) else file
