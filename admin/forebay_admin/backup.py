"""``forebay admin backup`` and ``restore``: the databases of pool, billing and hub, copied while the services run, and put back.

With the hub go the passwords of its people and the numbers of their accounts, by which their files are theirs. The pool is copied first.
Whatever it delivered in between, billing's copy has, and is sent again after a restore: billing takes each record once. The other way
around, records that the pool had delivered and forgotten would be in neither copy. A restore files all of the pool's records for delivery
again, for the same reason: billing's copy may be older than what the pool knows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from forebay.errors import ForebayError

from forebay_admin import copies

BACKUP = "copy the databases of pool, billing and hub while they run"
RESTORE = "put a backup's databases back; the services must be stopped"
ORDER = ("pool", "billing", "hub")
ACCOUNTS = ("logins.json", "uids.json")
"""Beside the hub's database: passwords' hashes or first passwords, and the uid of each login."""
MANIFEST = "manifest.json"
FORMAT = 1
DATED = "%Y-%m-%dT%H%M%SZ"
PAGES_AT_ONCE = 1000
"""SQLite: so many pages are copied before writers have their turn."""
REDELIVER = "INSERT INTO usage_outbox (segment) SELECT id FROM lease_segments WHERE id NOT IN (SELECT segment FROM usage_outbox)"

EMPTY = """
DO $$ DECLARE line text; BEGIN
    FOR line IN SELECT format('DROP TABLE IF EXISTS %I.%I CASCADE', schemaname, tablename)
        FROM pg_tables WHERE schemaname = ANY (current_schemas(false))
    LOOP EXECUTE line; END LOOP;
    FOR line IN SELECT format('DROP FUNCTION IF EXISTS %s CASCADE', oid::regprocedure)
        FROM pg_proc WHERE pronamespace::regnamespace::text = ANY (current_schemas(false)::text[])
        AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')
    LOOP EXECUTE line; END LOOP;
END $$
"""
"""PostgreSQL: removes the tables and functions of a service's database, but those of extensions."""


class BackupError(ForebayError):
    """A backup that cannot be made or put back; nothing was replaced."""


@dataclass(frozen=True)
class Database:
    """Where a service's data is: a file of SQLite, or the URL of a PostgreSQL database as its own programs take it."""

    name: str
    path: Path | None
    url: str | None

    @property
    def kind(self) -> str:
        return "postgresql" if self.path is None else "sqlite"

    @property
    def copy(self) -> str:
        """Its file in a backup."""
        return f"{self.name}.{'dump' if self.path is None else 'sqlite3'}"


def database_of(name: str, given: str | None, environment: Mapping[str, str]) -> Database:
    """By ``given``, else by the service's own variable, else where a local installation has it. Raises BackupError."""
    state = state_of(environment)
    usual = {"pool": state / "pool/pool.sqlite", "billing": state / "billing/billing.sqlite3", "hub": hub_folder(state) / "hub.sqlite"}
    url = given or environment.get(f"FOREBAY_{name.upper()}_DATABASE_URL") or f"sqlite:///{usual[name]}"
    if url.startswith("sqlite:///"):
        return Database(name, Path(unquote(url.removeprefix("sqlite:///").split("?")[0])), None)
    scheme, _, rest = url.partition("://")
    if scheme in ("postgresql", "postgresql+psycopg"):
        return Database(name, None, f"postgresql://{rest}")
    raise BackupError(f"{name}: {scheme!r} is no database of ours; give sqlite:///PATH or postgresql+psycopg://USER@HOST/NAME.")


def state_of(environment: Mapping[str, str]) -> Path:
    """Where an installation keeps what it knows."""
    return Path(environment.get("FOREBAY_STATE", "var"))


def hub_folder(state: Path) -> Path:
    """An installation of ``forebay admin init`` has one of the hub's own, ``make up`` has not."""
    return state / "hub" if (state / "hub").is_dir() else state


def accounts_in(folder: Path) -> list[Path]:
    """The files of accounts that are there."""
    return [folder / name for name in ACCOUNTS if (folder / name).is_file()]


def back_up(
    databases: list[Database], folder: Path, accounts: Sequence[Path] = (), parts: Mapping[str, Path] | None = None
) -> dict[str, object]:
    """Copies all into ``folder``, which must be new or empty; the manifest is written last. ``parts`` are folders that go along.

    Raises BackupError, CopyError."""
    if folder.exists() and any(folder.iterdir()):
        raise BackupError(f"{folder} is not empty; name a new folder for each backup.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    entries = {}
    for database in sorted(databases, key=lambda each: ORDER.index(each.name)):
        target = folder / database.copy
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT, 0o600))
        if database.path is None:
            _run("pg_dump", "--format=custom", "--no-owner", f"--file={target}", f"--dbname={database.url}")
        else:
            _copy_sqlite(database.path, target)
        entries[database.name] = {"file": database.copy, "kind": database.kind, "sha256": _digest(target)}
    for path in accounts:
        _put(path, folder / path.name)
    sums = {path.name: _digest(folder / path.name) for path in accounts}
    archives = {}
    for name, place in (parts or {}).items():
        archive = folder / f"{name}.tar.gz"
        copies.pack(place, archive)
        archives[name] = {"file": archive.name, "sha256": _digest(archive)}
    made_at = int(time.time())
    manifest: dict[str, object] = {"format": FORMAT, "made_at_unix": made_at, "databases": entries, "accounts": sums, "archives": archives}
    draft = folder / f"{MANIFEST}.new"
    draft.write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    draft.replace(folder / MANIFEST)
    return manifest


def restore(databases: list[Database], folder: Path, replace: bool, accounts: Path | None = None) -> None:
    """Puts the copies of ``databases`` back, with the services stopped, and those of accounts into the folder ``accounts``.

    Raises BackupError, before anything is replaced where it can."""
    entries, sums = _entries(folder)
    for database in databases:
        entry = entries.get(database.name)
        if entry is None:
            raise BackupError(f"{folder} holds no copy of {database.name}.")
        if entry["kind"] != database.kind:
            raise BackupError(f"{database.name} was copied from {entry['kind']} and cannot be put into {database.kind}.")
        if _digest(folder / entry["file"]) != entry["sha256"]:
            raise BackupError(f"{folder / entry['file']} is not what was copied: its checksum differs from the manifest's.")
        _check_place(database.path, replace)
    targets = {name: accounts / name for name in sums} if accounts else {}
    for name, target in targets.items():
        _check_place(target, replace)
        if _digest(folder / name) != sums[name]:
            raise BackupError(f"{folder / name} is not what was copied: its checksum differs from the manifest's.")
    for database in databases:
        if database.path is None:
            _put_postgresql(folder / database.copy, str(database.url))
        else:
            _put_sqlite(folder / database.copy, database.path)
    for name, target in targets.items():
        _put(folder / name, target)


def restore_parts(folder: Path, parts: Mapping[str, Path], replace: bool) -> None:
    """Unpacks the archives of a back-up, each into its folder. Raises BackupError, before anything is unpacked, and CopyError."""
    archives = _archives(folder)
    for name, place in parts.items():
        if name not in archives:
            raise BackupError(f"{folder} holds no {name}.")
        if place.is_dir() and any(place.iterdir()) and not replace:
            raise BackupError(f"{place} is not empty; add --replace to unpack {name} over what is there.")
        if _digest(folder / archives[name]["file"]) != archives[name]["sha256"]:
            raise BackupError(f"{folder / archives[name]['file']} is not what was copied: its checksum differs from the manifest's.")
    for name, place in parts.items():
        copies.unpack(folder / archives[name]["file"], place)


def _archives(folder: Path) -> dict[str, dict[str, str]]:
    """By the part that is in them; a back-up of before has none."""
    _entries(folder)
    archives: dict[str, dict[str, str]] = json.loads((folder / MANIFEST).read_text(encoding="utf-8")).get("archives", {})
    return archives


def _check_place(path: Path | None, replace: bool) -> None:
    if path is not None and path.exists() and not replace:
        raise BackupError(f"{path} is there already; stop the services and add --replace to put the copy in its place.")


def holds(folder: Path, name: str) -> bool:
    """Whether a back-up has a copy of that database. Raises BackupError."""
    return name in _entries(folder)[0]


def dated(folder: Path, now_seconds: float) -> Path:
    """Where a back-up of this moment goes, among others of the same folder."""
    return folder / time.strftime(DATED, time.gmtime(now_seconds))


def whole(folder: Path) -> list[Path]:
    """The back-ups in a folder that ``dated`` names, oldest first; what has no manifest is none."""
    return sorted(manifest.parent for manifest in folder.glob(f"*/{MANIFEST}"))


def forget(folder: Path, keep: int) -> list[Path]:
    """Removes all but the newest so many; what was removed."""
    old = whole(folder)[:-keep]
    for backup in old:
        shutil.rmtree(backup)
    return old


def redeliver(pool: Database) -> None:
    """Files all of the pool's records for delivery; those that billing has it takes for what they are. Raises BackupError."""
    if pool.path is None:
        _run("psql", "--quiet", "--set=ON_ERROR_STOP=1", f"--dbname={pool.url}", f"--command={REDELIVER}")
        return
    try:
        with closing(sqlite3.connect(pool.path)) as connection, connection:
            connection.execute(REDELIVER)
    except sqlite3.Error as error:
        raise BackupError(f"The pool's records cannot be filed for delivery again in {pool.path} ({error}).") from None


def _entries(folder: Path) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The databases' copies by name, and the checksums of accounts' files by theirs."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise BackupError(f"{folder} has the format {manifest['format']}, and this is for {FORMAT}; use the version that made it.")
        sums = {name: str(digest) for name, digest in manifest.get("accounts", {}).items() if name in ACCOUNTS}
        return {name: dict(entry) for name, entry in manifest["databases"].items()}, sums
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackupError(f"{folder / MANIFEST} cannot be read ({type(error).__name__}): the folder holds no whole backup.") from None


def _copy_sqlite(source: Path, target: Path) -> None:
    """SQLite's online backup: one moment of a database that goes on being written."""
    if not source.is_file():
        raise BackupError(f"There is no database {source}; name it with --pool, --billing or --hub.")
    try:
        with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True)) as live, closing(sqlite3.connect(target)) as copy:
            live.backup(copy, pages=PAGES_AT_ONCE)
            found = copy.execute("PRAGMA integrity_check").fetchone()[0]
    except sqlite3.Error as error:
        raise BackupError(f"{source} cannot be copied ({error}).") from None
    if found != "ok":
        raise BackupError(f"The copy of {source} is damaged: {found}.")


def _put_sqlite(copy: Path, target: Path) -> None:
    _put(copy, target, *(target.with_name(target.name + suffix) for suffix in ("-wal", "-shm")))


def _put_postgresql(copy: Path, url: str) -> None:
    """In one transaction. What a later release has made in the database goes too: nothing would be in the way of the next upgrade."""
    with tempfile.NamedTemporaryFile(suffix=".sql") as script:
        _run("pg_restore", "--no-owner", f"--file={script.name}", str(copy))
        options = ["--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1", f"--dbname={url}"]
        _run("psql", *options, f"--command={EMPTY}", f"--file={script.name}")


def _put(source: Path, target: Path, *stale: Path) -> None:
    """Whole or not at all, for whom it was before, or for whom the folder is: root puts back what services under other uids read.

    ``stale`` is what belongs to the file before, and goes with it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.restored")
    owner = (target if target.exists() else target.parent).stat()
    with open(draft, "wb", opener=lambda path, flags: os.open(path, flags, 0o600)) as file, source.open("rb") as copy:
        shutil.copyfileobj(copy, file)
        file.flush()
        os.fsync(file.fileno())
        if os.geteuid() == 0:
            os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
    for path in stale:
        path.unlink(missing_ok=True)
    draft.replace(target)


def _run(program: str, *arguments: str) -> None:
    path = shutil.which(program)
    if path is None:
        raise BackupError(f"{program} is not installed; it comes with PostgreSQL's client programs.")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BackupError(f"{program} failed: {' '.join(done.stderr.split())[:500]}")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# The command


def add_to(things: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds both actions."""
    copy = things.add_parser("backup", help=BACKUP, description=f"{BACKUP[0].upper()}{BACKUP[1:]}.")
    copy.add_argument("folder", type=Path, help="a new folder; it holds every tenant's usage")
    copy.add_argument("--dated", action="store_true", help="into a folder named by the time, in FOLDER")
    copy.add_argument("--keep", type=int, metavar="N", help="with --dated: remove all but the newest N")
    copy.add_argument("--to", metavar="TARGET", help="also to rclone:REMOTE:PATH or restic:REPOSITORY; with --keep the newest N stay there")
    copy.set_defaults(perform=perform_backup)
    puts = things.add_parser("restore", help=RESTORE, description=f"{RESTORE[0].upper()}{RESTORE[1:]}.")
    puts.add_argument("folder", type=Path)
    puts.add_argument("--newest", action="store_true", help="the newest of the back-ups in FOLDER")
    puts.add_argument("--replace", action="store_true", help="also where there is a database already")
    puts.set_defaults(perform=perform_restore)
    for command in (copy, puts):
        command.add_argument("--with", dest="parts", default="", metavar="PARTS", help="also settings, homes, or settings,homes")
        told = f"where settings are (default: {copies.SETTINGS})"
        command.add_argument("--settings", type=Path, default=copies.SETTINGS, metavar="FOLDER", help=told)
        command.add_argument("--only", choices=(*ORDER, *copies.PARTS), help="one database alone, or settings or homes alone")
        for name in ORDER:
            command.add_argument(f"--{name}", metavar="URL", help=f"{name}'s database; else FOREBAY_{name.upper()}_DATABASE_URL")


def _databases(arguments: argparse.Namespace) -> dict[str, Database]:
    return {name: database_of(name, getattr(arguments, name), os.environ) for name in ORDER}


def _chosen(databases: Mapping[str, Database], only: str | None, has_hub: bool) -> list[Database]:
    """The one that is named; without a name all, the hub's where there is one."""
    names = (only,) if only else ORDER if has_hub else ORDER[:-1]
    return [databases[name] for name in names]


def _accounts_folder(hub: Database) -> Path:
    """Where the files of accounts are: beside the hub's database, or where it would be."""
    return hub.path.parent if hub.path else hub_folder(state_of(os.environ))


def perform_backup(arguments: argparse.Namespace) -> int:
    keep = arguments.keep
    if keep is not None and (keep < 1 or not arguments.dated):
        raise BackupError("--keep is a number from 1 on, and goes with --dated.")
    if arguments.only in copies.PARTS:
        raise BackupError(f"{arguments.only} go with the databases: --with {arguments.only}.")
    if arguments.to is not None:
        copies.check_target(arguments.to)
    folder = dated(arguments.folder, time.time()) if arguments.dated else arguments.folder
    parts = copies.places(copies.chosen(arguments.parts), state_of(os.environ), arguments.settings)
    databases, only = _databases(arguments), arguments.only
    hub = databases["hub"]
    has_hub = hub.path is None or hub.path.is_file()
    accounts = accounts_in(_accounts_folder(hub)) if only in (None, "hub") else ()
    back_up(_chosen(databases, only, has_hub), folder, accounts, parts)
    sys.stdout.write(f"Backed up into {folder}.\n")
    if arguments.to is not None:
        copies.send(folder, arguments.to, keep)
        sys.stdout.write(f"Copied it to {arguments.to}.\n")
    for old in forget(arguments.folder, keep) if keep is not None else ():
        sys.stdout.write(f"Removed {old}.\n")
    return 0


def perform_restore(arguments: argparse.Namespace) -> int:
    folder = arguments.folder
    if arguments.newest:
        found = whole(folder)
        if not found:
            raise BackupError(f"{folder} holds no whole back-up.")
        folder = found[-1]
    if arguments.only in copies.PARTS:
        restore_parts(folder, copies.places([arguments.only], state_of(os.environ), arguments.settings), arguments.replace)
        sys.stdout.write(f"Restored {arguments.only}.\n")
        return 0
    parts = copies.places(copies.chosen(arguments.parts), state_of(os.environ), arguments.settings)
    databases, only = _databases(arguments), arguments.only
    accounts = _accounts_folder(databases["hub"]) if only in (None, "hub") else None
    restore(_chosen(databases, only, holds(folder, "hub")), folder, arguments.replace, accounts)
    restore_parts(folder, parts, arguments.replace)
    if only == "hub":
        sys.stdout.write("Restored.\n")
        return 0
    redeliver(databases["pool"])
    sys.stdout.write("Restored. Once the services run, the pool tells billing anew of all it metered.\n")
    return 0
