"""Where a line of a program stands, in words that its author knows: a notebook's cell instead of the file that IPython makes of it."""

from __future__ import annotations

from forebay.spans import running_shell


def place(file: str, line: int, function: str) -> str:
    """``train.py, line 12, in fit``, or ``cell [5], line 3``."""
    shown = shown_file(file)
    where = f"{shown}, line {line}"
    return where if function == "<module>" and shown != file else f"{where}, in {function}"


def shown_file(file: str) -> str:
    """``cell [5]`` for the file of a cell, by the execution count that IPython's own tracebacks tell, too; others are what they are."""
    compiler = getattr(running_shell(), "compile", None)
    number = getattr(compiler, "_filename_map", {}).get(file)
    return f"cell [{number}]" if isinstance(number, int) else file
