"""``forebay admin upgrade`` and ``rollback``: another release for an installation of ``forebay admin init``, and back.

The new release's own code does it, from its wheels, before they are installed: it knows what it needs. The command hands over to it; for a
release before that has no such command, the page on upgrades types what the command does.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from forebay.errors import ForebayError
from forebay.toolkit.release.packages import Packages, Wheel, order

from forebay_admin import backup
from forebay_admin.host.exchange import Host, UpgradeError, UpgradeState
from forebay_admin.host.layout import Layout
from forebay_admin.host.records import RECORDS, RecordCount, counts

UPGRADE = "bring this host to the release in a folder"
ROLLBACK = "go back to the release before the last upgrade"
CODE = ("forebay-admin", "forebay", "forebay-wire")
"""The packages from whose wheels an upgrade runs."""
SUMS = "SHA256SUMS"


@dataclass(frozen=True)
class ReleaseFolder:
    """A folder of wheels with their sums, as ``make release`` lays one."""

    folder: Path
    wheels: dict[str, Wheel]

    @classmethod
    def read(cls, folder: Path) -> ReleaseFolder:
        """Raises UpgradeError where it is not whole."""
        found = [Wheel(path) for path in sorted(folder.absolute().glob("*.whl"))]
        versions = {wheel.version for wheel in found}
        if len(versions) != 1:
            raise UpgradeError(f"{folder} has no wheels of one release ({', '.join(sorted(versions)) or 'none are there'}).")
        _check_sums(folder, [wheel.path for wheel in found])
        return cls(folder.absolute(), {wheel.name: wheel for wheel in found})

    @property
    def version(self) -> str:
        return next(iter(self.wheels.values())).version

    @property
    def code(self) -> str:
        """The value of PYTHONPATH with which its own commands run."""
        return os.pathsep.join(str(self.wheels[name].path) for name in CODE)


def _check_sums(folder: Path, wheels: Sequence[Path]) -> None:
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except OSError:
        raise UpgradeError(f"{folder} has no {SUMS}; `make release` lays a release.") from None
    sums = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for wheel in wheels:
        with wheel.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != sums.get(wheel.name):
                raise UpgradeError(f"{wheel} is not what {SUMS} says; get the release again.")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


# Forward


def upgrade(host: Host, release: ReleaseFolder, check_only: bool) -> None:
    """Raises ForebayError: either nothing is changed, or the release before serves again, or the sentence says what does not."""
    services = host.environments[0]
    before = services.version()
    if order(release.version) <= order(before):
        raise UpgradeError(f"This host has {before}, and {release.folder} is {release.version}; `forebay admin rollback` goes back.")
    plan = [(environment, steps(environment, release)) for environment in host.environments]
    if check_only:
        say("This host can be upgraded so. Nothing was changed.")
        return
    kept = _keep(host, before, release.version)
    try:
        for environment, exchange in plan:
            environment.exchange(*exchange)
            say(f"Installed {release.version} in {environment.prefix}.")
        there = set(host.files().values())
        host.init()
        kept = replace(kept, made=sorted(str(path) for path in set(host.files().values()) - there))
        kept.write(host.state)
        host.start()
    except ForebayError as error:
        say(f"It failed: {error}")
        _undo(host, kept)
        raise UpgradeError(f"The upgrade failed, as told above. This host serves {before} again.") from None
    for name, now in _changed(host, kept).items():
        say(f"Brought the database of {name} from {kept.counts[name].revision} to {now.revision}.")
    say(f"This host serves {release.version}. `forebay admin rollback` goes back to {before}.")


def steps(environment: Packages, release: ReleaseFolder) -> tuple[list[str], list[str], dict[str, str]]:
    """What ``Packages.exchange`` takes to install a release there, once all about it is checked and told. Raises ExchangeError."""
    options = ["--find-links", str(release.folder)]
    tested = release.folder / "constraints.txt"
    options += ["--constraint", str(tested)] if tested.exists() else []
    environment.check(release.wheels)
    wanted = environment.wanted(release.wheels)
    changes = environment.resolve(wanted, options)
    others = [f", {name} {version}" for name, version in sorted(changes.items()) if name not in release.wheels]
    say(f"{environment.prefix}: {environment.version()} -> {release.version}{''.join(others)}")
    return wanted, options, changes


def _keep(host: Host, before: str, after: str) -> UpgradeState:
    """Stops the services, and copies what the upgrade will change."""
    shutil.rmtree(host.folder, ignore_errors=True)
    host.folder.mkdir(mode=0o700)
    host.stop()
    try:
        backup.back_up(host.databases, host.copies)
        host.keep_files()
        kept = UpgradeState(before, after, counts(host.databases))
        kept.write(host.state)
    except ForebayError:
        host.start()
        raise
    say(f"Stopped all services, and copied databases and settings into {host.folder}.")
    return kept


def _undo(host: Host, kept: UpgradeState) -> None:
    """After an upgrade that failed in its middle. Raises UpgradeError."""
    host.stop()
    try:
        _go_back(host, kept, lose_records=False)
    except ForebayError as error:
        raise UpgradeError(f"The upgrade failed, as told above, and this host does not serve: {error}") from None


# Back


def rollback(host: Host, lose_records: bool) -> None:
    """Raises ForebayError."""
    if not host.state.exists():
        raise UpgradeError(f"{host.folder} has nothing to go back to: no upgrade was made here, or it was undone.")
    kept = UpgradeState.read(host.state)
    _check_loss(host, kept, lose_records)
    host.stop()
    try:
        _check_loss(host, kept, lose_records)  # what was written until they stopped counts, too
    except UpgradeError:
        host.start()
        raise
    _go_back(host, kept, lose_records)
    say(f"This host serves {kept.before} again.")


def _go_back(host: Host, kept: UpgradeState, lose_records: bool) -> None:
    """With the services stopped. Databases whose schema is as it was stay, with all that was written since."""
    _check_loss(host, kept, lose_records)
    changed = _changed(host, kept)
    if changed:
        databases = [database for database in host.databases if database.name in changed]
        folder = backup.dated(host.layout.state / "backups", time.time())
        backup.back_up(host.databases, folder)
        backup.restore(databases, host.copies, replace=True)
        say(f"Put back the databases of {', '.join(changed)}; what they held is in {folder}.")
        if "billing" in changed:
            backup.redeliver(host.databases[0])
    host.put_files_back(kept.made)
    for environment in reversed(host.environments):
        if environment.before() is not None:
            environment.put_back()
            say(f"Put back {kept.before} in {environment.prefix}.")
    host.start()
    shutil.rmtree(host.folder)


def _changed(host: Host, kept: UpgradeState) -> dict[str, RecordCount]:
    """The databases whose schema is another now, as they are."""
    return {name: now for name, now in counts(host.databases).items() if now.revision != kept.counts[name].revision}


def _check_loss(host: Host, kept: UpgradeState, lose_records: bool) -> None:
    """Raises UpgradeError."""
    lost = [word for name, now in _changed(host, kept).items() for word in now.since(kept.counts[name], RECORDS[name])]
    if lost and not lose_records:
        raise UpgradeError(
            f"Databases that {kept.before} reads would be put back, and what was written since the upgrade would be lost: "
            f"{', '.join(lost)}. Nothing is changed; --lose-records does it, and leaves a copy with them among the back-ups."
        )


# The commands


def arguments_of(command: argparse.ArgumentParser) -> None:
    """What an upgrade is told."""
    command.add_argument("folder", type=Path, help="of a release, as `make release` lays one")
    command.add_argument("--root", type=Path, default=Path("/"), metavar="FOLDER", help="below which all is laid (default: /)")
    command.add_argument("--check", action="store_true", help="only check, and change nothing")


def add_to(things: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds both actions."""
    command = things.add_parser("upgrade", help=UPGRADE, description=f"{UPGRADE[0].upper()}{UPGRADE[1:]}.")
    arguments_of(command)
    command.set_defaults(perform=perform_upgrade)
    back = things.add_parser("rollback", help=ROLLBACK, description=f"{ROLLBACK[0].upper()}{ROLLBACK[1:]}.")
    back.add_argument("--root", type=Path, default=Path("/"), metavar="FOLDER", help="below which all is laid (default: /)")
    back.add_argument("--lose-records", action="store_true", help="also where records that were written since are lost")
    back.set_defaults(perform=perform_rollback)


def become(arguments: argparse.Namespace, module: str) -> NoReturn:
    """Becomes the new release's own command. Raises UpgradeError."""
    release = ReleaseFolder.read(arguments.folder)
    words = [str(release.folder), "--root", str(arguments.root.absolute()), *(["--check"] if arguments.check else [])]
    variables = {**os.environ, "PYTHONPATH": release.code}
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", module, *words], variables)  # noqa: S606 no shell is the point


def perform_upgrade(arguments: argparse.Namespace) -> int:
    become(arguments, __name__)


def perform_rollback(arguments: argparse.Namespace) -> int:
    rollback(Host.read(Layout(arguments.root.absolute())), arguments.lose_records)
    return 0


def run(program: str, description: str | None, perform: Callable[[Layout, ReleaseFolder, bool], None]) -> int:
    """As the new release's own command; the exit status."""
    command = argparse.ArgumentParser(prog=program, description=description)
    arguments_of(command)
    arguments = command.parse_args()
    try:
        perform(Layout(arguments.root.absolute()), ReleaseFolder.read(arguments.folder), arguments.check)
    except ForebayError as error:
        sys.stderr.write(f"forebay: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run("forebay admin upgrade", __doc__, lambda layout, release, check: upgrade(Host.read(layout), release, check)))
