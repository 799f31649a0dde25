"""``forebay exec``: a whole process beside a device, with the files of this folder."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

from forebay.service.files.size_argument import LIMIT_BYTES, bytes_of
from forebay.toolkit import pool, table
from forebay.toolkit.jobs.costs import amount
from forebay.waiting import short

if TYPE_CHECKING:
    from forebay_wire import messages

DESCRIPTION = """\
Runs a command beside a device: the whole process is there, and not only its calls. It is in a sandbox that has no network, but for places
that an operator lists. The files of this folder go there, and those that it changes come back. Its lease begins when it starts and ends
when it ends. The exit status is the command's.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "exec",
        help="run a whole process beside a device",
        description=DESCRIPTION,
        usage="forebay exec [-h] [--flavor NAME] [--limit SIZE] [-n] -- command [arguments ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--flavor", metavar="NAME", help="flavor of the device; see `forebay flavor list`")
    size = "most that goes, and most that comes back: 500M, 10G (2G)"
    command.add_argument("--limit", type=bytes_of, default=LIMIT_BYTES, metavar="SIZE", help=size)
    command.add_argument("-n", dest="reads", action="store_false", help="the process reads nothing from standard input")
    command.add_argument("command", help="a program of the worker's environment, such as python")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="given to the program as they are")
    command.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    """Runs the process, and returns its exit status. Raises ForebayError."""
    from forebay.service import FLAVOR_VARIABLE
    from forebay.service.files.copies import Copies, in_words
    from forebay.spans import LABEL_VARIABLE, Spans
    from forebay.toolkit.remote.process_session import ProcessSession
    from forebay.toolkit.remote.process_stream import ProcessStream
    from forebay.toolkit.remote.remote_run import RemoteRun

    words = [arguments.command, *arguments.arguments]
    os.environ.setdefault(LABEL_VARIABLE, f"exec {shlex.join(words)}")
    copies = Copies(Path.cwd(), arguments.limit)
    if copies.left:
        sys.stderr.write(f"forebay: not sent: {in_words(copies.left)}\n")
    stream = ProcessStream()
    with pool.remote_or_own() as service:
        session = ProcessSession(service, stream, arguments.flavor or os.environ.get(FLAVOR_VARIABLE) or None)
        try:
            flavor = session.flavor()
            _say(f"{shlex.join(words)} on {flavor.name}, {table.rate(flavor.price_nano_per_hour, flavor.currency)}")
            session.acquire(Spans(lambda: None).current())
            exited = RemoteRun(stream, copies, words, arguments.reads).perform(arguments.limit)
            if exited.why:
                _say(f"the process was ended: {exited.why}")
            _tell_bill(session.bill(), flavor)
        finally:
            stream.close()
            session.close()
            copies.close()
    return exited.status


def _tell_bill(closed: messages.LeaseClosed | None, flavor: messages.Flavor) -> None:
    if closed is None:
        _say("it is over; the pool has not said yet what it cost")
        return
    cost = "not billed"
    if closed.cost_nano is not None and flavor.currency is not None:
        cost = f"{amount(Decimal(closed.cost_nano) / 10**9)} {flavor.currency}"
    _say(f"{short(closed.duration_ns / 1e9)} s on {flavor.name}: {cost}")


def _say(text: str) -> None:
    sys.stderr.write(f"forebay: {text}\n")
    sys.stderr.flush()
