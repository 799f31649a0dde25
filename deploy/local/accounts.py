"""Whom the processes of a local installation run as: where ``make up`` is root, under accounts that are numbers alone.

Plain standard library: runs before anything is installed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from place import CHECKOUT, Place

sys.path += [str(CHECKOUT / "hub"), str(CHECKOUT / "service")]  # of the checkout, as long as nothing is installed

from forebay_hub.uids import NUMBERS, AccountsError, Register, range_of, taken
from forebay_service.account import device_groups

__all__ = ["Accounts", "AccountsError", "Register", "account_command", "device_groups", "found", "range_of", "take_over", "taken"]

GROUP, SERVICES, WORKERS, PROXY = "@group", "@services", "@workers", "@proxy"
"""The first four names of a register; no login begins with ``@``."""
WORKER_NUMBERS = "60514-60577"
"""Of FOREBAY_WORKER_UIDS; given out by nobody either, and containers have them. As many as a pool starts workers."""
PYTHON = CHECKOUT / ".venv" / "bin" / "python"
PROBE_SECONDS_MAX = 30
SHARED = "so every cell can read every secret of this installation: it is for one person, or for trying"


@dataclass(frozen=True)
class Accounts:
    """Of a root installation. ``namespace`` is the process whose user namespace knows services and workers; without one they are the same
    account. ``worker_uids`` are FIRST-LAST, of which each worker has one. ``hide``: ``/proc`` shows to each its own."""

    register: Register
    hide: bool
    namespace: int | None
    worker_uids: str = WORKER_NUMBERS

    @classmethod
    def from_environment(cls, place: Place, environment: Mapping[str, str]) -> Accounts | None:
        """As ``make up`` has told the hub; None: all is one account."""
        told = environment.get("FOREBAY_ACCOUNTS")
        return None if told is None else cls(register_of(place, environment), **json.loads(told))

    @property
    def environment(self) -> dict[str, str]:
        return {"FOREBAY_ACCOUNTS": json.dumps({"hide": self.hide, "namespace": self.namespace, "worker_uids": self.worker_uids})}

    @property
    def group(self) -> int:
        return self.register.of(GROUP)

    @property
    def services(self) -> int:
        return self.register.of(SERVICES)

    @property
    def proxy(self) -> int:
        return self.register.of(PROXY)

    @property
    def device_users(self) -> tuple[int, ...]:
        """Gids of the pool and of workers besides their own."""
        return (self.group, *device_groups())

    @property
    def workers(self) -> int:
        """The group of all workers; without a namespace, the services'."""
        return self.services if self.namespace is None else self.register.of(WORKERS)


def register_of(place: Place, environment: Mapping[str, str]) -> Register:
    """Raises AccountsError."""
    return Register(place.state / "uids.json", range_of(environment.get("FOREBAY_UIDS") or NUMBERS))


def closed_folder(paths: Iterable[Path]) -> Path | None:
    """The first folder on the way to these paths, wherever links lead, that other users cannot pass."""
    for path in paths:
        for place in _places(path):
            for folder in reversed(place.parents):
                if not folder.stat().st_mode & 0o001:
                    return folder
    return None


def _places(path: Path) -> Iterator[Path]:
    """Where a path really lies, and what it leads to, link by link."""
    while True:
        path = path.parent.resolve() / path.name
        yield path
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()


def worker_uids_of(environment: Mapping[str, str], others: range) -> str:
    """FIRST-LAST of the workers, which are none of ``others``. Raises AccountsError."""
    text = environment.get("FOREBAY_WORKER_UIDS") or WORKER_NUMBERS
    first, dash, last = text.partition("-")
    if not (dash and first.isdecimal() and last.isdecimal() and 0 < int(first) < int(last) < 2**31):
        raise AccountsError(f"FOREBAY_WORKER_UIDS={text} cannot be used; give the first and the last number, as in {WORKER_NUMBERS}")
    if int(first) < others.stop and others.start <= int(last):
        raise AccountsError(f"FOREBAY_WORKER_UIDS={text} and FOREBAY_UIDS have numbers in common; workers are no login's")
    return text


def account_command(uid: int | str, groups: Iterable[int], *options: str) -> list[str]:
    """Begins a command line that runs the rest under an account (forebay_service.account)."""
    return [str(PYTHON), "-I", "-m", "forebay_service.account", str(uid), ",".join(map(str, groups)), *options, "--"]


def refused(command: list[str]) -> str | None:
    """Why a command fails; None where it does not."""
    try:
        finished = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROBE_SECONDS_MAX)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return last_line(finished.stderr) if finished.returncode else None


def last_line(output: str) -> str:
    """What a command that failed said last."""
    return (output.strip().splitlines() or ["it says nothing"])[-1]


def obstacle(place: Place, uid: int, group: int) -> str | None:
    """Why this installation's processes cannot run under other uids, such as this one: half a sentence."""
    shut = closed_folder((place.state, PYTHON, CHECKOUT / ".venv" / "notebook" / "bin" / "python"))
    if shut is not None:
        return f"other users cannot pass {shut} (mode {shut.stat().st_mode & 0o7777:04o})"
    command = account_command(uid, [group])
    for environment in (".venv", ".venv/notebook"):
        problem = refused([*command, str(CHECKOUT / environment / "bin" / "python"), "-I", "-c", "import numpy, traitlets"])
        if problem is not None:
            return f"another user cannot use {CHECKOUT / environment} ({problem})"
    return None


def found(place: Place, environment: Mapping[str, str], euid: int) -> tuple[Accounts | None, str]:
    """The accounts of this installation, and one sentence on who can read what. Raises AccountsError."""
    if euid != 0:
        return None, f"Everything runs as your own user (uid {euid}), {SHARED}."
    register = register_of(place, environment)
    group, services, workers, proxy = (register.of(name) for name in (GROUP, SERVICES, WORKERS, PROXY))
    problem = obstacle(place, services, group)
    if problem is not None:
        return None, f"Everything runs as root, since {problem}, {SHARED}."
    unhidden = refused([*account_command(services, [group], "--hide"), "true"])
    uids = worker_uids_of(environment, range_of(environment.get("FOREBAY_UIDS") or NUMBERS))
    namespace, joined = keep_namespace(services, f"{workers},{uids}", (workers, group, *device_groups()))
    accounts = Accounts(register, unhidden is None, namespace, uids)
    workers_too = f"services and workers under {services}"
    ours = f"services under {services}, each worker under one of {uids}" if namespace is not None else workers_too
    notes = [
        f"workers have no account of their own ({joined})" if namespace is None else "",
        f"they see each other's processes, though not what is in them ({unhidden})" if unhidden else "",
    ]
    but = "".join(f"; {note}" for note in notes if note)
    who = f"each login runs under a uid of its own, {ours}, the proxy under {proxy}, none of them reads another's files"
    return accounts, f"Started as root: {who}{but}."


def keep_namespace(services: int, workers: str, groups: Iterable[int]) -> tuple[int | None, str | None]:
    """Starts the process that keeps the user namespace of services and workers while this one lives; its id, or None and why not."""
    leash = [str(PYTHON), "-I", "-m", "forebay_service.processes.parent_death"]
    command = [*leash, *account_command(services, groups, "--knows", workers), "sh", "-c", "echo ready; exec sleep infinity"]
    keeper = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    if keeper.stdout is None or keeper.stdout.readline() != "ready\n":
        return None, last_line(keeper.communicate()[1])
    worker = account_command(workers.rpartition(",")[2], groups)
    problem = refused([*account_command(services, groups, "--joins", str(keeper.pid)), *worker, "true"])
    if problem is not None:
        keeper.kill()
        keeper.wait()
        return None, problem
    return keeper.pid, None


def take_over(place: Place, accounts: Accounts) -> int:
    """Gives folders and files to the accounts that use them; how many had another owner, as after a start of another kind, or a restore.

    What lies in the state folder itself is the hub's.
    """
    place.state.chmod(0o710)
    os.chown(place.state, 0, accounts.group)
    homes, sockets, libraries, proxy = (place.state / name for name in ("homes", "sockets", "libraries", "proxy"))
    for folder in (homes, sockets, libraries, proxy):
        folder.mkdir(exist_ok=True)
    homes.chmod(0o711)
    os.chown(proxy, 0, accounts.proxy)
    proxy.chmod(0o750)
    for folder, mode in ((sockets, 0o1771), (libraries, 0o1730)):
        os.chown(folder, accounts.services, accounts.workers)
        folder.chmod(mode)
    owners = {place.state / name: accounts.services for name in ("pool", "billing")}
    owners |= {home: accounts.register.of(home.name) for home in homes.iterdir() if home.is_dir() and not home.name.startswith(".")}
    changed = sum(give(folder, uid, past_root=folder.parent == place.state) for folder, uid in owners.items())
    for path in place.state.iterdir():
        if path not in (*owners, homes, sockets, libraries, proxy):
            path.chmod(0o700 if path.is_dir() else 0o600)
    return changed


def give(folder: Path, uid: int, past_root: bool) -> int:
    """Makes a folder a uid's alone, with all in it that had the same owner before, or, with ``past_root``, root; how much that was.

    Links are not followed, and a file that is linked from elsewhere too stays its owner's: who owned the folder may have put it there.
    """
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    if not any(folder.iterdir()):
        os.chown(folder, uid, uid)
    owners = {folder.stat().st_uid, *((0,) if past_root else ())} - {uid}
    changed = 0
    if not owners:
        return changed
    for _, _, files, descriptor in os.fwalk(folder, topdown=False):
        for name in files:
            entry = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
            if entry.st_uid in owners and entry.st_nlink == 1:
                os.chown(name, uid, uid, dir_fd=descriptor, follow_symlinks=False)
                changed += 1
        if os.fstat(descriptor).st_uid in owners:
            os.fchown(descriptor, uid, uid)
            changed += 1
    return changed
