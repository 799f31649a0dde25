"""``%%gpu profile``: a notebook's cell, and below it where its time went."""

from __future__ import annotations

import argparse
import ast
import shlex
import sys
from typing import Any, NoReturn

from forebay.toolkit.profile import add_options, write


class _Line(argparse.ArgumentParser):
    """Of the words behind ``%%gpu``: an error is an exception, since the process is the notebook's."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"%%gpu: {message}; {self.format_usage().strip()}")


def parser() -> argparse.ArgumentParser:
    """What may stand behind ``%%gpu``."""
    line = _Line(prog="%%gpu", add_help=False)
    profile = line.add_subparsers(required=True, metavar="profile").add_parser("profile", add_help=False)
    add_options(profile)
    return line


def register(shell: Any) -> None:
    """Adds the magic to an IPython shell."""

    def gpu(line: str, cell: str) -> None:
        """%%gpu profile [--top N] [--json FILE]: runs the cell, then says where its time went."""
        arguments = parser().parse_args(shlex.split(line))
        _profile(shell, cell, arguments)

    shell.register_magic_function(gpu, "cell", "gpu")


def _profile(shell: Any, cell: str, arguments: argparse.Namespace) -> None:
    from forebay.profile import Profiler

    blocks = _compiled(shell, cell)
    profiler = Profiler()
    profiler.start()
    failure: RuntimeError | None = None
    try:
        for block in blocks:
            exec(block, shell.user_ns)  # noqa: S102 the user's own code
    finally:
        profile, failure = profiler.stop()
        sys.stdout.flush()
        write(profile, arguments, sys.stdout)
    if failure is not None:
        raise failure


def _compiled(shell: Any, cell: str) -> list[Any]:
    """The cell's code with the cell's line numbers; a last expression apart, in the way that shows its value."""
    source = "\n" + shell.transform_cell(cell)
    file = shell.compile.cache(source, shell.execution_count, raw_code=source)
    tree = ast.parse(source, file)
    blocks: list[ast.Module | ast.Interactive] = [tree]
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not cell.rstrip().endswith(";"):
        blocks.append(ast.Interactive([tree.body.pop()]))
    return [
        compile(block, file, "single" if isinstance(block, ast.Interactive) else "exec", shell.compile.flags, dont_inherit=True)
        for block in blocks
    ]
