"""``forebay``: runs programs on a virtual device, and shows and chooses devices. Other packages add commands by entry points."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

from forebay_wire import torch_builds

import forebay
from forebay.errors import CommandBroken, ForebayError
from forebay.service import answered, login
from forebay.toolkit import device, doctor, flavor, run, smi
from forebay.toolkit.agents import command as agents
from forebay.toolkit.environments import command as environments
from forebay.toolkit.invoices import command as invoices
from forebay.toolkit.jobs import listing, submit
from forebay.toolkit.planner import command as plan
from forebay.toolkit.profiling import command as profile
from forebay.toolkit.reference_models import command as models
from forebay.toolkit.release import update
from forebay.toolkit.remote import command as remote
from forebay.toolkit.sharing import command as sharing

EXIT_ERROR = 1
EXIT_MISUSED = 2
"""As argparse has it."""
EXIT_INTERRUPTED = 130
EXIT_UNREAD = 141
"""As of programs that the signal SIGPIPE ends: nobody reads what they write."""
MISREAD = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""What reading an answer of another shape than expected raises."""
COMMANDS = "forebay.commands"
"""The group of entry points that add a command: each is a function of the parsers of ``forebay``."""
APART = dict.fromkeys(("admin", "node"), "Operators' commands are not installed here; `pip install forebay-admin` brings them.")
"""What is said of commands that come in a package of their own, where it is not installed."""
ENVIRONMENT = """\
environment:
  FOREBAY_URL     address of the pool, http(s)://host/prefix/, or `local`: start one in this machine when it is needed; not set:
                  where `forebay login` signed this machine in
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
    middle = (sharing, environments, profile, plan, smi, flavor, device, models, invoices, agents)
    for module in (run, remote, submit, listing, *middle, update, login, doctor):
        module.add_to(commands)
    flavor.add_switch_to(commands)
    for found in sorted(entry_points(group=COMMANDS)):
        _fault_of_adding(found, commands)  # told by `_check_asked` where it is asked for
    return top


def _fault_of_adding(found: EntryPoint, commands: Any) -> Exception | None:
    """Adds another package's command; what is wrong with that package, whatever it is, if it cannot be added."""
    try:
        found.load()(commands)
    except Exception as error:
        return error
    return None


def _check_asked(words: Sequence[str]) -> None:
    """Raises CommandBroken if the command that is asked for is one of a package that does not load."""
    for found in entry_points(group=COMMANDS, name=words[0]) if words else ():
        error = _fault_of_adding(found, argparse.ArgumentParser().add_subparsers())
        if error is not None:
            package = found.value if found.dist is None else found.dist.name
            raise CommandBroken(found.name, package, error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    lacking = _lacking(words)
    if lacking is not None:
        sys.stderr.write(f"forebay: {lacking}\n")
        return EXIT_MISUSED
    try:
        return _perform(words)
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


def _lacking(words: Sequence[str]) -> str | None:
    """How to install the command that is asked for, where it is one of a package that is not here."""
    sentence = APART.get(words[0]) if words else None
    return None if sentence is None or entry_points(group=COMMANDS, name=words[0]) else sentence


def _perform(arguments: Sequence[str]) -> int:
    """Commands take answers to be as ARCHITECTURE.md says; here alone it is told that one was not."""
    answered.set(None)
    _check_asked(arguments)
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
    """What this is, and what it was built for and is used with: what a report of a fault needs."""
    try:
        ours = version("forebay")
    except PackageNotFoundError:
        ours = "(not installed)"
    built_for = ", ".join(torch_builds.releases_in(forebay.__path__)) or "none"
    torch = torch_builds.installed_version() or "none"
    return f"{ours} (built for torch {built_for}; with torch {torch}, Python {platform.python_version()})"
