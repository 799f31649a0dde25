"""``forebay run``: a program on the virtual device, or a command that starts such programs, without any change to it."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import sys
from pathlib import Path

from forebay import monitors
from forebay.errors import ForebayError, NotConfigured
from forebay.service import FLAVOR_VARIABLE, LOCAL, URL_VARIABLE, check_url, configured
from forebay.toolkit import flavor, image

DESCRIPTION = """\
Runs a Python program whose cuda:0 is a virtual device. Without FOREBAY_URL, a pool with one development device
is started on this machine when the program first uses cuda:0, and ends with it. The exit status is the program's.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "run",
        help="run a script or module on a virtual device",
        description=DESCRIPTION,
        usage="forebay run [-h] [--flavor NAME] [--image IMAGE [--volume FROM:TO]] (script.py | -m module | torchrun) [arguments ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--image", help="run a command in a container of an image with stock PyTorch: --image IMAGE -- python train.py")
    folder = "with --image: a folder that the container sees besides this one"
    command.add_argument("--volume", action="append", default=[], metavar="FROM:TO", help=folder)
    add_program_to(command)
    command.set_defaults(perform=start)


def start(arguments: argparse.Namespace) -> int:
    """The program here, or in a container."""
    if arguments.image is None:
        if arguments.volume:
            raise ForebayError("--volume goes with --image: here a program sees all folders.")
        return perform(arguments)
    if arguments.module:
        raise ForebayError("--image takes a command of the image: forebay run --image IMAGE -- python -m module.")
    if arguments.flavor:
        _check_flavor(arguments.flavor)
    return image.perform(arguments)


def add_program_to(command: argparse.ArgumentParser) -> None:
    """Adds what names a program and its device."""
    command.add_argument("--flavor", metavar="NAME", help="flavor of the device; see `forebay flavor list`")
    command.add_argument("-m", dest="module", action="store_true", help="what follows is a module's name, as in `python -m`")
    command.add_argument("program", help="the script, the module after -m, or a command on PATH, such as torchrun")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="given to the program as they are")


def environment(arguments: argparse.Namespace, command: str | None = None) -> dict[str, str]:
    """What the program runs with, or the command in its place. Raises ForebayError where it cannot."""
    found = dict(os.environ)
    url = configured() or LOCAL
    check_url(url)
    if url == LOCAL and importlib.util.find_spec("forebay_pool") is None:
        raise NotConfigured(
            f"Running without a service needs the package forebay-pool in this environment ({sys.executable}); "
            f"install it, or set {URL_VARIABLE} to the address of a pool."
        )
    if url == LOCAL:
        found[URL_VARIABLE] = url
    if not arguments.module and command is None and not Path(arguments.program).exists():
        raise ForebayError(f"There is no file {arguments.program}; give a script's path, or -m and a module's name.")
    if arguments.flavor:
        _check_flavor(arguments.flavor)
        found[FLAVOR_VARIABLE] = arguments.flavor
    monitors.offer(found)
    return found


def _check_flavor(name: str) -> None:
    """Raises ForebayError for a flavor that nothing here can serve: better one sentence now than a program that ends in its middle."""
    found = flavor.row_of(name)
    if not found.get("servable", True):
        reason = found.get("reason") or f"{name} cannot be served here."
        raise ForebayError(f"{reason} Choose another flavor (`forebay flavor list`).")


def command_of(name: str) -> str | None:
    """Where a command is that is no path: beside this interpreter first, as in an environment that is not activated."""
    folders = [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    return None if os.sep in name else shutil.which(name, path=os.pathsep.join(folders))


def perform(arguments: argparse.Namespace) -> int:
    """Becomes the program: the same process, so that its signals and exit status are the program's own."""
    command = None if arguments.module or Path(arguments.program).exists() else command_of(arguments.program)
    kept = environment(arguments, command)
    program = [command] if command else [sys.executable, *(["-m"] if arguments.module else []), arguments.program]
    sys.stdout.flush()
    os.execve(program[0], [*program, *arguments.arguments], kept)  # noqa: S606 no shell is the point
