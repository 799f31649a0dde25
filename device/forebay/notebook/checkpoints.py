"""``%checkpoint``, ``%undo`` and ``%restore``, and what is said when tensors have gone back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from forebay.notebook.magics import in_one_sentence

if TYPE_CHECKING:
    from forebay.texts import Texts

USAGE = "usage: %checkpoint [NAME | --each-cell [off]]"
NAMES_MAX = 12
"""More are counted."""


class WentBack(Protocol):
    """What is said of it: :class:`forebay.facade.checkpoint.WentBack`."""

    @property
    def name(self) -> str: ...
    @property
    def tensors(self) -> int: ...
    @property
    def gone(self) -> Sequence[str]: ...
    @property
    def newer(self) -> Sequence[str]: ...
    @property
    def resized(self) -> int: ...


def text(went: WentBack, texts: Texts) -> str:
    """Sentences, one a line."""
    lines = [texts("went_back", name=went.name, count=went.tensors)]
    if went.gone:
        lines.append(texts("went_back_gone", names=_listed(went.gone)))
    if went.newer:
        lines.append(texts("went_back_newer", names=_listed(went.newer)))
    if went.resized:
        lines.append(texts("went_back_resized", count=went.resized))
    lines.append(texts("went_back_host"))
    return "\n".join(lines)


def _listed(names: Sequence[str]) -> str:
    more = f" … +{len(names) - NAMES_MAX}" if len(names) > NAMES_MAX else ""
    return ", ".join(names[:NAMES_MAX]) + more


def register(shell: Any, texts: Texts) -> None:
    """Adds the magics to an IPython shell."""

    def checkpoint(line: str) -> None:
        """%checkpoint [NAME]: keeps what tensors on the device hold now. %undo goes back there, and %restore NAME.

        %checkpoint --each-cell: takes one at the end of each cell from now on; %checkpoint --each-cell off: no more.
        """
        with in_one_sentence():
            print(_checkpoint(line.split(), texts))

    def restore(line: str) -> None:
        """%restore NAME: tensors on the device, and its generators, hold again what they held at that checkpoint."""
        with in_one_sentence():
            print(text(_forebay().restore(line.strip()), texts))

    def undo(line: str) -> None:
        """%undo [N]: back to the last checkpoint before what tensors on the device hold now, or to the N-th one."""
        with in_one_sentence():
            print(text(_forebay().undo(int(line) if line.strip() else 1), texts))

    for magic in (checkpoint, restore, undo):
        shell.register_magic_function(magic, "line")


def _checkpoint(words: list[str], texts: Texts) -> str:
    match words:
        case ["--each-cell"]:
            _forebay().checkpoints(each_cell=True)
            return texts("checkpoints_each_cell")
        case ["--each-cell", "off"]:
            _forebay().checkpoints(each_cell=False)
            return texts("checkpoints_no_more")
        case [] | [_]:
            return texts("checkpoint", name=_forebay().checkpoint(*words).name)
    raise ValueError(f"%checkpoint: {' '.join(words)!r} is not known; {USAGE}")


def _forebay() -> Any:
    import torch  # noqa: F401 activates the virtual device

    import forebay

    return forebay
