"""``forebay submit``: a program, or a notebook, that runs without anybody being there: once, or at the times of a schedule."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError, NotConfigured
from forebay.service import URL_VARIABLE, Service
from forebay.service.files.size_argument import LIMIT_BYTES, bytes_of
from forebay.toolkit import pool, run
from forebay.toolkit.environments import environment
from forebay.toolkit.jobs import listing
from forebay.toolkit.jobs.output import output_of

DESCRIPTION = """\
Has a script, a module, a command or a notebook run as a job: in a server of its own, as you, with the packages that your notebooks have.
It goes on when the browser is closed and your notebook server has ended, and is run again when a worker or a host is lost.

From a machine of your own the files of this folder go along (--upload): the job has them in a folder of its own, and `forebay jobs fetch`
brings what it writes there. At the hub it runs in your home, and the files are read when a run begins (--no-upload). Of a notebook a copy
with its outputs is kept beside it.
"""
NOTEBOOK = ".ipynb"
NOTIFY = ("none", "failures", "all")
UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    command = commands.add_parser(
        "submit",
        help="have a program or notebook run as a job, also when you are away",
        description=DESCRIPTION,
        usage="forebay submit [options] (script.py | -m module | command | notebook.ipynb) [arguments ...]",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--flavor", metavar="NAME", help="flavor of its device; see `forebay flavor list`")
    command.add_argument(
        "--env", metavar="NAME", help="one of your environments; without it a notebook's own, else the one in use when a run begins"
    )
    command.add_argument("--name", help="what it is called in lists and in usage; without it the file's name")
    command.add_argument("--retries", type=int, metavar="COUNT", help="how often it is run again after a loss (3)")
    command.add_argument("--time-limit", type=seconds_of, metavar="TIME", help="longest that a run may take, as 90m, 12h or 2d")
    command.add_argument("--notify", choices=NOTIFY, help="of what you are told where you said: none, failures, all; else as you prefer")
    command.add_argument("--cron", metavar="FIELDS", help="run it again and again: minute, hour, day, month and weekday, as '30 2 * * 1-5'")
    command.add_argument("--zone", default=None, metavar="ZONE", help="time zone of --cron, as Asia/Seoul; without it TZ, else UTC")
    what = "send the files of this folder along, but those that .forebayignore names; without it from outside of the hub alone"
    command.add_argument("--upload", action=argparse.BooleanOptionalAction, default=None, help=what)
    most = "most that the folder may have: 500M, 10G (2G)"
    command.add_argument("--limit", type=bytes_of, default=LIMIT_BYTES, metavar="SIZE", help=most)
    command.add_argument("--yes", action="store_true", help="send more than 200 MB without asking")
    command.add_argument("-f", "--follow", action="store_true", help="print what it prints, until it is over; its end is the exit status")
    command.add_argument("-m", dest="module", action="store_true", help="what follows is a module's name, as in `python -m`")
    command.add_argument("program", help="the script, the module after -m, a command on PATH, or a notebook")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="given to the program as they are")
    command.set_defaults(perform=perform)


def seconds_of(text: str) -> int:
    """``90m`` as seconds. Raises ArgumentTypeError."""
    found = re.fullmatch(r"(\d{1,9})([smhd]?)", text.strip())
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 90m, 12h or 2d")
    return int(found[1]) * UNITS[found[2]]


def perform(arguments: argparse.Namespace) -> int:
    """Submits it."""
    service = pool.remote()
    if service is None:
        ways = f"sign in with `forebay login`, or set {URL_VARIABLE} to your pool's address"
        raise NotConfigured(f"Jobs are run by a service: {ways}. `forebay run` runs a program here.")
    if arguments.cron is None and arguments.zone is not None:
        raise ForebayError("--zone goes with --cron.")
    if arguments.cron is not None and arguments.follow:
        raise ForebayError("--follow goes with a job, not with a schedule; follow its runs with `forebay jobs logs -f NUMBER`.")
    return _schedule(service, arguments) if arguments.cron is not None else _submit(service, arguments)


def _submit(service: Service, arguments: argparse.Namespace) -> int:
    body = _body(service, arguments)
    job = pool.row(service, service.post("api/jobs", body), "id")
    _tell_whose_files(service, body)
    sys.stdout.write(f"Job {job['id']} ({job['name']}) is queued. `forebay jobs logs -f {job['id']}` follows it.\n")
    if job["kind"] == "notebook" and "files" not in body:
        sys.stdout.write(f"The notebook with its outputs will be ~/{output_of(job)}.\n")
    return listing.follow(service, int(job["id"])) if arguments.follow else 0


def _schedule(service: Service, arguments: argparse.Namespace) -> int:
    zone = arguments.zone or os.environ.get("TZ") or "UTC"
    body = _body(service, arguments)
    row = pool.row(service, service.post("api/schedules", {**body, "cron": arguments.cron, "zone": zone}), "id")
    _tell_whose_files(service, body)
    when = listing.time_of(row["next_at_ns"])
    sys.stdout.write(f"Schedule {row['id']} ({row['name']}) is set: '{row['cron']}' in {row['zone']}, next at {when}.\n")
    return 0


def _tell_whose_files(service: Service, body: Mapping[str, Any]) -> None:
    """To somebody on another machine than the hub's, whose home a job does not see."""
    if service.outside and "files" not in body:
        where = f"~/{body['folder']}".removesuffix("/")
        sys.stderr.write(f"forebay: No file of this machine is sent: it runs in {where} of your home at the hub, with what is there.\n")


def _body(service: Service, arguments: argparse.Namespace) -> dict[str, Any]:
    """What the pool is asked for, once the files are there that go along. Raises ForebayError."""
    sends = service.outside if arguments.upload is None else arguments.upload
    if not sends:
        return body_of(arguments)
    from forebay.toolkit.jobs import sending

    here = Path.cwd()
    body = body_of(arguments, here)
    is_file = body["kind"] != "module" and (here / body["file"]).is_file()
    return {**body, "files": sending.send(service, here, arguments.limit, body["file"] if is_file else None, arguments.yes)}


def body_of(arguments: argparse.Namespace, sent: Path | None = None) -> dict[str, Any]:
    """What the pool is asked for: with paths from the folder on that is sent along, else from the user's home on.

    Raises ForebayError where the program is not to be found there, or the environment in the home.
    """
    program = str(arguments.program)
    kind = "module" if arguments.module else "notebook" if program.endswith(NOTEBOOK) else "script"
    if kind == "notebook" and arguments.arguments:
        raise ForebayError("A notebook takes no arguments.")
    bounds = {"flavor": arguments.flavor, "name": arguments.name, "retries_max": arguments.retries, "notify": arguments.notify}
    bounds |= {"time_limit_seconds": arguments.time_limit}
    bounds |= {"environment": _environment(arguments, kind) if sent is None else arguments.env}
    given = {key: value for key, value in bounds.items() if value is not None}
    body = {"kind": kind, "file": _file(program, kind, sent), "folder": _path(Path.cwd(), sent), **given}
    return {**body, "arguments": list(arguments.arguments)}


def _environment(arguments: argparse.Namespace, kind: str) -> str | None:
    """The one that is asked for by name. Raises ForebayError where that, or a notebook's own, is not there."""
    if arguments.env is not None:
        return environment.environment(arguments.env).name
    path = Path(arguments.program)
    if kind == "notebook" and path.is_file():
        with contextlib.suppress(ValueError, AttributeError):  # what is no notebook is told of by the run
            environment.check_kernel(environment.kernel_of(json.loads(path.read_text(encoding="utf-8"))), path)
    return None


def _path(path: Path, sent: Path | None) -> str:
    """As the pool takes it. Raises ForebayError."""
    if sent is None:
        return in_home(path)
    found = _below(sent, path)
    if found is None:
        raise ForebayError(f"{path} is not in this folder ({sent}), which is what is sent along; change to a folder that has it.")
    return found


def _file(program: str, kind: str, sent: Path | None) -> str:
    path = Path(program)
    if kind == "module" or (kind == "script" and os.sep not in program and not path.exists() and run.command_of(program)):
        return program
    if not path.is_file():
        raise ForebayError(f"There is no file {program}; give a script's or notebook's path, or -m and a module's name.")
    return _path(path, sent)


def in_home(path: Path) -> str:
    """The path from the user's home on, links as they are. Raises ForebayError."""
    home = Path.home().absolute()
    found = _below(home, path)
    if found is None:
        why = f"is not in your home ({home}), and a job sees nothing else of this server; copy it there, or say --upload"
        raise ForebayError(f"{os.path.abspath(path)} {why}.")
    return found


def _below(folder: Path, path: Path) -> str | None:
    """The path from the folder on; None where it is not below it."""
    absolute = Path(os.path.abspath(path))
    for one, other in ((absolute, folder.absolute()), (absolute.resolve(), folder.resolve())):
        if one.is_relative_to(other):
            found = str(one.relative_to(other))
            return "" if found == "." else found
    return None
