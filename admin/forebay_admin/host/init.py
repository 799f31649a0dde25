"""``forebay admin init``: makes one host an installation that systemd keeps, of five answers."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from forebay.toolkit.table import counted

from forebay_admin.actions import Parsers
from forebay_admin.host import answers as questions
from forebay_admin.host.answers import Answers, InitError
from forebay_admin.host.files import File, files
from forebay_admin.host.layout import Layout
from forebay_admin.host.passage import warnings

DESCRIPTION = "make this host an installation that systemd keeps: settings, secrets, certificates and units"
SECRET_FOLDERS = ("secrets", "tls")
NEXT = """\
Next:
  systemd-sysusers
  systemctl daemon-reload
  systemctl enable --now forebay.target {timers}
Browsers reach it at {url}/ and know it by {authority}.
Passwords of {operator} and {owner}: {logins}, once forebay-hub has started.
"""


def add_to(things: Parsers) -> None:
    """Adds the action."""
    command = things.add_parser("init", help=DESCRIPTION, description=f"{DESCRIPTION[0].upper()}{DESCRIPTION[1:]}.")
    command.add_argument("--answers", type=Path, metavar="FILE", help="TOML file of the answers, instead of asking")
    command.add_argument("--root", type=Path, default=Path("/"), metavar="FOLDER", help="below which all is laid (default: /)")
    command.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")
    command.add_argument("--force", action="store_true", help="also write over files that are there and differ")
    command.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    layout = Layout(arguments.root.absolute())
    given = _answers(layout, arguments.answers, input)
    planned = files(given, layout)
    changed = [file for file in planned if differs(file)]
    for file in changed:
        sys.stdout.write(f"{'would write' if arguments.dry_run else 'write'} {file.path} ({file.mode:04o})\n")
    sys.stdout.write(f"{counted(len(planned) - len(changed), 'file is', 'files are')} as they should be.\n")
    for warning in warnings(given, layout):
        sys.stderr.write(f"warning: {warning}\n")
    if arguments.dry_run:
        return 0
    changed_by_others = [file.path for file in changed if file.path.exists()]
    if changed_by_others and not arguments.force:
        names = ", ".join(map(str, changed_by_others))
        raise InitError(f"Nothing is written, since these are there and differ: {names}. Add --force to write over them.")
    write(changed, layout)
    sys.stdout.write(_next(given, layout, planned))
    return 0


def _answers(layout: Layout, file: Path | None, ask: Callable[[str], str]) -> Answers:
    """Of a file, of the time before, or of a person. Raises InitError."""
    before = layout.settings / "answers.toml"
    if file is not None or before.exists():
        return questions.read(file or before)
    if not sys.stdin.isatty():
        raise InitError("There is nobody to ask: give the answers with --answers FILE.")
    return questions.asked(ask)


def differs(file: File) -> bool:
    """Whether a file is not there as it should be."""
    if not file.path.exists():
        return True
    return not file.kept and (file.path.read_bytes() != file.content or file.path.stat().st_mode & 0o777 != file.mode)


def lay(planned: list[File], layout: Layout) -> bool:
    """Writes those that are not as they should be, and tells which; whether there were any. Raises OSError."""
    changed = [file for file in planned if differs(file)]
    write(changed, layout)
    for file in changed:
        sys.stdout.write(f"write {file.path}\n")
    sys.stdout.write(f"{counted(len(planned) - len(changed), 'file is', 'files are')} as they should be.\n")
    return bool(changed)


def write(changed: list[File], layout: Layout) -> None:
    """Writes files, each whole or not at all, and makes the folders that no unit makes. Raises OSError."""
    for name in SECRET_FOLDERS:
        (layout.settings / name).mkdir(parents=True, exist_ok=True)
        (layout.settings / name).chmod(0o700)
    homes = layout.state / "homes"
    homes.mkdir(parents=True, exist_ok=True)
    homes.chmod(0o711)
    for file in changed:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        draft = file.path.with_name(f".{file.path.name}.new")
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file.mode), "wb") as output:
            output.write(file.content)
            os.fchmod(output.fileno(), file.mode)
        draft.replace(file.path)


def _next(given: Answers, layout: Layout, planned: list[File]) -> str:
    timers = " ".join(sorted(file.path.name for file in planned if file.path.suffix == ".timer"))
    authority = given.certificate or (given.acme and f"a certificate of {given.acme_server}") or layout.settings / "tls" / "ca.crt"
    logins = layout.state / "hub" / "logins.json"
    return NEXT.format(timers=timers, url=given.url, authority=authority, operator=given.operator, owner=given.owner, logins=logins)
