"""``forebay profile``: a program on the virtual device, and afterwards where its time went."""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from forebay import process
from forebay.errors import ForebayError
from forebay.toolkit import run

if TYPE_CHECKING:
    from forebay.profile import Profile, Profiler

DESCRIPTION = """\
Runs a Python program as `forebay run` does, and then says on standard error where its time went: recording calls,
waiting for a lease, waiting for the device (with source lines), the device itself, and bytes each way. The time that
`import torch` takes is not in it. The exit status is the program's.
"""
EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
TOP_DEFAULT = 10


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "profile",
        help="run a script or module and say where its time went",
        description=DESCRIPTION,
        usage="forebay profile [-h] [--flavor NAME] [--top N] [--json FILE] (script.py | -m module) [arguments ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(command)
    run.add_program_to(command)
    command.set_defaults(perform=perform)


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds what `write` asks for; the notebook's magic has it, too."""
    command.add_argument(
        "--top", type=int, default=TOP_DEFAULT, metavar="N", help="how many source lines and operators are shown (%(default)s)"
    )
    command.add_argument("--json", type=Path, metavar="FILE", help="also write the whole profile there, times in nanoseconds")


def write(profile: Profile, arguments: argparse.Namespace, out: TextIO) -> None:
    """Writes the text to ``out``, and the file where one is wanted."""
    from forebay.toolkit.profiling import report

    out.write(report.text(profile, arguments.top))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(profile.as_json(), indent=2) + "\n", encoding="utf-8")


def perform(arguments: argparse.Namespace) -> int:
    """Runs the program in this process. Raises SystemExit where the program does."""
    os.environ.update(run.environment(arguments))
    import torch  # noqa: F401 activates the virtual device

    if not process.active:
        raise ForebayError(f"The virtual device is off, so there is nothing to profile: {process.failure}")
    from forebay.profile import Profiler

    profiler = Profiler()
    profiler.start()
    try:
        return _run(arguments)
    finally:
        _report(profiler, arguments)


def _run(arguments: argparse.Namespace) -> int:
    """The program, as the interpreter would run it."""
    sys.argv = [arguments.program, *arguments.arguments]
    sys.path[0] = os.getcwd() if arguments.module else str(Path(arguments.program).resolve().parent)
    try:
        if arguments.module:
            runpy.run_module(arguments.program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(arguments.program, run_name="__main__")
    except SystemExit:
        raise
    except BaseException as error:
        error = error.with_traceback(_own_frames(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        return EXIT_INTERRUPTED if isinstance(error, KeyboardInterrupt) else EXIT_ERROR
    return 0


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The program's part of a traceback; all of it where the program did not begin."""
    own = trace
    while own is not None and (own.tb_frame.f_code.co_filename == __file__ or "runpy" in own.tb_frame.f_code.co_filename):
        own = own.tb_next
    return own or trace


def _report(profiler: Profiler, arguments: argparse.Namespace) -> None:
    profile, failure = profiler.stop()
    sys.stdout.flush()
    if failure is not None:
        sys.stderr.write(f"forebay: work that nothing waited for failed: {failure}\n")
    write(profile, arguments, sys.stderr)
