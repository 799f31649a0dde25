"""``forebay``: runs programs on a virtual device, and shows and chooses devices."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from forebay.errors import ForebayError
from forebay.service import answered
from forebay.toolkit import admin, device, doctor, flavor, profile, run, smi

EXIT_ERROR = 1
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141
"""As of programs that the signal SIGPIPE ends: nobody reads what they write."""
MISREAD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What reading an answer of another shape than expected raises."""
ENVIRONMENT = """\
environment:
  FOREBAY_URL     address of the pool, http(s)://host/prefix/, or `local`: start one in this machine when it is needed
  FOREBAY_TOKEN   your token; in a JupyterHub server JUPYTERHUB_API_TOKEN is taken
  FOREBAY_FLAVOR  flavor of new sessions; without it your last choice (`forebay flavor set`), else the pool's default
  FOREBAY_DEVICES how many virtual devices a process has (2), or their flavors (a,b); else what `forebay device` keeps
"""


def parser() -> argparse.ArgumentParser:
    """The command line of ``forebay``."""
    top = argparse.ArgumentParser(
        prog="forebay",
        description="Virtual devices cuda:0, cuda:1 … for stock PyTorch, served by a shared pool of accelerators.",
        epilog=ENVIRONMENT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"forebay {_version()}")
    commands = top.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for module in (run, profile, smi, flavor, device, doctor, admin):
        module.add_to(commands)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    try:
        return _perform(arguments)
    except ForebayError as error:
        sys.stderr.write(f"forebay: {error}\n")
        return EXIT_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("forebay: Interrupted.\n")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return EXIT_UNREAD
    except OSError as error:
        _drop_output()
        sys.stderr.write(f"forebay: {error}.\n")
        return EXIT_ERROR


def _perform(arguments: Sequence[str] | None) -> int:
    """Commands take answers to be as ARCHITECTURE.md says; here alone it is told that one was not."""
    answered.set(None)
    try:
        parsed = parser().parse_args(arguments)
        return int(parsed.perform(parsed))
    except MISREAD as error:
        service = answered.get()
        if service is None:
            raise
        raise service.misread(error) from error
    finally:
        print(end="", flush=True)


def _drop_output() -> None:
    """What is still to be written goes nowhere, else the interpreter tries once more at its end, and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _version() -> str:
    try:
        return version("forebay")
    except PackageNotFoundError:
        return "(not installed)"
