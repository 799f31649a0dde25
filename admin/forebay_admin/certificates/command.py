"""``forebay admin certificates``: an authority of the installation's own, and certificates of its services and hosts."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from forebay_admin.actions import Parsers, action, cells, show, things
from forebay_admin.certificates.folder import AUTHORITY, CertificateError, CertificateFolder, Entry

FOLDER = Path("/etc/forebay/certificates")
DAYS = 90
HEADERS = ("name", "hosts", "ends", "days left", "SHA-256")
FINGERPRINT_SHOWN = 16
"""Digits of a fingerprint in a table; JSON has all of them."""


def add_to(parsers: Parsers) -> None:
    """Adds the thing with its actions."""
    actions = things(parsers, "certificates", "certificates of services and hosts, by an authority of your own; without a token")
    making = _action(actions, "init", _init, "make the authority, which signs certificates for ten years")
    making.add_argument("--name", default=socket.getfqdn(), metavar="TEXT", help="what it calls itself (default: this host's name)")
    making.add_argument("--yes", action="store_true", help="replace the one that is there, without a question")
    issuing = _action(actions, "issue", _issue, "make a certificate, and a key for it")
    issuing.add_argument("name", help="name of the service or host, under which its peers reach it")
    issuing.add_argument("--host", action="append", default=[], metavar="NAME", help="another name or address of it; may be repeated")
    issuing.add_argument("--days", type=int, default=DAYS, metavar="N", help=f"how long it is good (default: {DAYS})")
    issuing.add_argument("--yes", action="store_true", help="replace the one that is there, without a question")
    renewing = _action(actions, "renew", _renew, "make certificates anew that end soon; for a timer")
    renewing.add_argument("names", nargs="*", metavar="NAME", help="only these (default: all)")
    renewing.add_argument("--within", type=float, metavar="DAYS", help="that end within so many days (default: a third of their life)")
    renewing.add_argument("--all", action="store_true", help="whenever they end, as after another authority was made")
    _action(actions, "list", _list, "what there is, for which hosts, and when it ends")


def _action(actions: Parsers, name: str, perform: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    made = action(actions, name, perform, text)
    made.add_argument("--folder", type=Path, default=FOLDER, metavar="FOLDER", help=f"where all of them lie (default: {FOLDER})")
    return made


def _init(arguments: argparse.Namespace) -> int:
    folder = CertificateFolder(arguments.folder)
    if folder.has_authority():
        signed = len(folder.entries()) - 1
        _confirm(arguments.yes, f"Replace the authority in {folder.path}? Peers refuse the {signed} certificates that it signed.")
    made = folder.make_authority(arguments.name)
    return _show(arguments, [made], f"{folder.path}/{AUTHORITY}.crt is for every peer to trust; {AUTHORITY}.key stays here.")


def _issue(arguments: argparse.Namespace) -> int:
    folder = CertificateFolder(arguments.folder)
    if folder.has(arguments.name):
        _confirm(arguments.yes, f"Replace the certificate and the key of {arguments.name} in {folder.path}?")
    made = folder.issue(arguments.name, arguments.host, arguments.days)
    files = f"{folder.path}/{made.name}.crt and {made.name}.key"
    return _show(arguments, [made], f"{files} are for {made.name}: give the key to the account that uses it, and to nobody else.")


def _renew(arguments: argparse.Namespace) -> int:
    folder, now = CertificateFolder(arguments.folder), datetime.now(UTC)
    found = {entry.name: entry for entry in folder.entries()[1:]}
    unknown = [name for name in arguments.names if name not in found]
    if unknown:
        raise CertificateError(f"There is no certificate of {', '.join(unknown)} in {folder.path}.")
    wanted = [found[name] for name in arguments.names or found]
    made = [folder.renew(entry) for entry in wanted if arguments.all or entry.ends_within(arguments.within, now)]
    told = f"{len(made)} of {len(wanted)} renewed. Services take them with the next connection."
    return _show(arguments, made, told if made else "No certificate ends soon.")


def _list(arguments: argparse.Namespace) -> int:
    entries = CertificateFolder(arguments.folder).entries()
    for entry in entries:
        remark = _remark(entry, datetime.now(UTC))
        if remark:
            sys.stderr.write(f"warning: {entry.name} {remark}\n")
    return _show(arguments, entries, "")


def _remark(entry: Entry, now: datetime) -> str:
    """What somebody should do something about; empty where there is nothing."""
    if entry.end <= now:
        return "has ended: peers refuse it"
    if not entry.is_ours:
        return "was signed by another authority: `renew --all` makes it anew"
    if entry.name == AUTHORITY:
        return "ends within a year: plan another one" if entry.ends_within(365, now) else ""
    return "ends soon: `renew` makes it anew" if entry.ends_within(None, now) else ""


def _show(arguments: argparse.Namespace, entries: Sequence[Entry], told: str) -> int:
    now = datetime.now(UTC)
    rows = [entry.row(now) for entry in entries]

    def text() -> str:
        lines = [
            (row["name"], " ".join(entry.hosts), f"{entry.end:%Y-%m-%d}", row["days_left"], entry.fingerprint[:FINGERPRINT_SHOWN])
            for entry, row in zip(entries, rows, strict=True)
        ]
        return "\n".join(part for part in (cells(HEADERS, lines, ""), told) if part)

    return show(arguments, rows, text)


def _confirm(is_said: bool, question: str) -> None:
    """Raises CertificateError unless somebody says yes."""
    if is_said:
        return
    if not sys.stdin.isatty():
        raise CertificateError(f"{question} There is nobody to ask: add --yes.")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise CertificateError("Nothing was changed.")
