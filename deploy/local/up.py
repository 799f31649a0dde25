"""``make up``: starts the hub with its services, prints where to sign in, and stops every process on Ctrl-C.

Plain standard library: it runs on the system's Python and starts what is installed in ``.venv``.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from accounts import Accounts, AccountsError, found, take_over
from place import CHECKOUT, SERVICES, Place, PlaceError

READY_TIMEOUT_SECONDS = 180
HUB_STOP_TIMEOUT_SECONDS = 40
"""The hub stops servers, services and proxy in turn."""
STRAGGLER_TIMEOUT_SECONDS = 10
POLL_SECONDS = 0.2
LOG_LINES_SHOWN = 12
PAUSE_SECONDS_FIRST = 1.0
PAUSE_SECONDS_MAX = 60.0
"""A hub that ends by itself is started again after a pause, which doubles each time …"""
STEADY_SECONDS = 60.0
"""… until one ran for so long."""
MARK = "forebay:"
"""What lines of the log begin with that are for people (forebay_service.processes.supervisor)."""
PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h: orphaned descendants become our children, so that none is lost."""


class UpError(Exception):
    """Why it does not start; the message says what to do."""


class Interrupted(Exception):
    """Ctrl-C, or a request to terminate."""


def say(line: str) -> None:
    print(line, flush=True)


def interrupt(_number: int, _frame: FrameType | None) -> None:
    raise Interrupted


def prepare(place: Place) -> None:
    """Checks what starting needs. Raises UpError."""
    for environment in (".venv", ".venv/notebook"):
        if not (CHECKOUT / environment / "bin" / "jupyterhub-singleuser").exists():
            raise UpError(f"{environment} is not set up; run: make setup")
    try:
        place.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        (place.state / "log").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UpError(f"{place.state} cannot be used ({error.strerror}); set FOREBAY_STATE to a folder of yours") from None


@contextmanager
def alone(place: Place) -> Iterator[None]:
    """Holds the state folder's lock. Raises UpError where another installation runs on it."""
    with open(place.state / "up.lock", "a+", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            raise UpError(
                f"Forebay already runs on {place.state} (process {lock.read().strip() or 'unknown'}); stop it with Ctrl-C there, "
                "or set FOREBAY_STATE and FOREBAY_PORT to run a second one"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def refuse_taken_ports(place: Place) -> None:
    """Raises UpError where another program listens on one of our ports."""
    taken = place.taken()
    if taken:
        names = ", ".join(f"{place.port_of(listener)} ({listener})" for listener in taken)
        raise UpError(f"Port {names} is taken by another program; stop it, or choose other ports: make up FOREBAY_PORT={place.port + 1000}")


def separate(place: Place) -> Accounts | None:
    """Says who can read what, and gives what lies in the state folder to the accounts that use it. Raises AccountsError."""
    (place.state / "billing").mkdir(exist_ok=True)
    for part in place.state.glob("billing.sqlite3*"):  # where it was before services had folders of their own
        part.rename(place.state / "billing" / part.name)
    place.state.chmod(0o700)
    accounts, sentence = found(place, os.environ, os.geteuid())
    say(sentence)
    if accounts is not None:
        changed = take_over(place, accounts)
        if changed:
            say(f"{changed} files and folders in {place.state} had other owners, and now belong to the accounts that use them.")
    return accounts


def start_hub(place: Place, accounts: Accounts | None, log: Path) -> subprocess.Popen[bytes]:
    """Starts JupyterHub in a session of its own, so that Ctrl-C reaches it through us alone; what it writes goes on in the log."""
    binaries = CHECKOUT / ".venv" / "bin"
    told = {} if accounts is None else accounts.environment
    environment = {**os.environ, **place.environment, **told, "PATH": f"{binaries}:{os.environ.get('PATH', os.defpath)}"}
    command = [
        str(binaries / "python"),
        *("-m", "forebay_service.processes.parent_death", str(binaries / "python")),
        *("-m", "jupyterhub", "--config", str(CHECKOUT / "deploy" / "local" / "jupyterhub_config.py")),
    ]
    with log.open("ab") as output:
        return subprocess.Popen(
            command, cwd=place.state, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )


def answers(url: str) -> bool:
    """Whether a health check succeeds."""
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - our own http address
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def wait_ready(place: Place, hub: subprocess.Popen[bytes], log: Path) -> None:
    """Waits until hub and services answer on the public port. Raises UpError."""
    public = place.url_of("public")
    health = {"hub": f"{public}/hub/health", **{name: f"{public}/services/{name}/health" for name in SERVICES}}
    started = time.monotonic()
    while health:
        if hub.poll() is not None:
            raise UpError(f"JupyterHub ended while starting (exit code {hub.returncode}):\n{tail(log)}")
        if time.monotonic() - started > READY_TIMEOUT_SECONDS:
            raise UpError(f"No answer from {', '.join(health)} within {READY_TIMEOUT_SECONDS} s:\n{tail(log)}")
        for name in [name for name, url in health.items() if answers(url)]:
            say(f"  {name} is up ({time.monotonic() - started:.1f} s)")
            del health[name]
        time.sleep(POLL_SECONDS)


def tail(log: Path) -> str:
    """The end of the log, and where the rest is."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
    return "\n".join([*(f"  | {line}" for line in lines), f"The whole log: {log}"])


def announce(place: Place, accounts: Accounts | None, log: Path) -> None:
    logins = json.loads((place.state / "logins.json").read_text(encoding="utf-8"))
    width = max(map(len, logins))
    say(f"\nForebay is up: {place.url_of('public')}\n\nDemo logins (kept in {place.state / 'logins.json'}):")
    for name, password in logins.items():
        say(f"  {name:<{width}}  {password}")
    if accounts is None and place.address not in ("127.0.0.1", "localhost", "::1"):
        say(f"\nListening on {place.address}: everybody who signs in runs code as your own user. Do this among friends only.")
    say(f"\nLog: {log}\nCtrl-C stops everything.")


def stop(hub: subprocess.Popen[bytes]) -> None:
    """Stops the hub, which stops what it started; then whatever is left."""
    if hub.poll() is None:
        say("\nStopping …")
        hub.terminate()
    deadline = time.monotonic() + HUB_STOP_TIMEOUT_SECONDS
    while hub.poll() is None and time.monotonic() < deadline:
        reap(hub)  # the hub waits until servers that a hub before it started are gone, and those are our children by now
        time.sleep(POLL_SECONDS / 4)
    if hub.poll() is None:
        say(f"The hub has not stopped within {HUB_STOP_TIMEOUT_SECONDS} s; it is killed.")
        hub.kill()
        hub.wait()
    for number in (signal.SIGTERM, signal.SIGKILL):
        end_descendants(number)
    say("Stopped.")


def end_descendants(number: signal.Signals) -> None:
    """Signals every descendant until none is left, or STRAGGLER_TIMEOUT_SECONDS have passed."""
    deadline = time.monotonic() + STRAGGLER_TIMEOUT_SECONDS
    signalled: set[int] = set()
    while (left := descendants(os.getpid())) and time.monotonic() < deadline:
        for pid in left - signalled:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
            signalled.add(pid)
        reap()
        time.sleep(POLL_SECONDS / 4)


def reap(hub: subprocess.Popen[bytes] | None = None) -> None:
    """Buries the children that have ended; of the hub it is remembered how."""
    try:
        while ended := os.waitpid(-1, os.WNOHANG):
            pid, status = ended
            if not pid:
                return
            if hub is not None and pid == hub.pid:
                hub.returncode = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return


def descendants(root: int) -> set[int]:
    """Every process below ``root``, from /proc."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


class Watch:
    """Keeps the hub running, and tells what the log says to people: the hub keeps the proxy, and each service has a keeper."""

    def __init__(self, place: Place, accounts: Accounts | None, log: Path) -> None:
        self._place = place
        self._accounts = accounts
        self._log = log
        self.hub = start_hub(place, accounts, log)
        self._read_to = 0

    def keep(self) -> None:
        """Until interrupted."""
        pause, began = PAUSE_SECONDS_FIRST, time.monotonic()
        while True:
            time.sleep(POLL_SECONDS)
            reap(self.hub)
            self._tell()
            if self.hub.poll() is None:
                continue
            if time.monotonic() - began >= STEADY_SECONDS:
                pause = PAUSE_SECONDS_FIRST
            say(f"JupyterHub ended by itself (exit code {self.hub.returncode}); it is started again in {pause:g} s:\n{tail(self._log)}")
            time.sleep(pause)
            began, pause = time.monotonic(), min(PAUSE_SECONDS_MAX, 2 * pause)
            self._start_again()

    def _start_again(self) -> None:
        """Once what the old hub had started has let go of its ports; notebook servers go on, and the new hub finds them."""
        deadline = time.monotonic() + STRAGGLER_TIMEOUT_SECONDS
        while self._place.taken() and time.monotonic() < deadline:
            reap(self.hub)
            time.sleep(POLL_SECONDS)
        self.hub = start_hub(self._place, self._accounts, self._log)
        try:
            wait_ready(self._place, self.hub, self._log)
        except UpError as error:
            say(str(error))
        else:
            say("JupyterHub is back.")

    def _tell(self) -> None:
        """Lines for people that are new in the log."""
        with self._log.open("rb") as log:
            log.seek(self._read_to)
            whole, _, _ = log.read().rpartition(b"\n")
        self._read_to += len(whole) + bool(whole)
        for line in whole.decode("utf-8", "replace").splitlines():
            if line.startswith(MARK):
                say(f"{time.strftime('%H:%M:%S')} {line.removeprefix(MARK).strip()}")


def run(place: Place) -> None:
    """Runs until interrupted. Raises UpError where it cannot start."""
    log = place.state / "log" / "hub.log"
    say(f"Starting Forebay in {place.state} …")
    accounts = separate(place)
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    watch = Watch(place, accounts, log)
    try:
        wait_ready(place, watch.hub, log)
        announce(place, accounts, log)
        watch.keep()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        stop(watch.hub)


def main() -> int:
    """The exit status: 0 after Ctrl-C, 1 where it could not start or ended by itself."""
    argparse.ArgumentParser(
        prog="make up",
        description=__doc__,
        epilog="Settings are environment variables: FOREBAY_PORT (8000; this one and the six after it), FOREBAY_STATE (var/ of the\n"
        "checkout), FOREBAY_ADDRESS (127.0.0.1), and as root FOREBAY_UIDS (60706-61183) and FOREBAY_WORKER_UIDS (60514-60577). See\n"
        "docs/operators/local.md.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    ).parse_args()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        place = Place.from_environment(os.environ)
        prepare(place)
        with alone(place):
            refuse_taken_ports(place)
            os.umask(0o077)
            run(place)
    except (UpError, PlaceError, AccountsError) as error:
        print(f"make up: {error}", file=sys.stderr, flush=True)
        return 1
    except Interrupted:
        return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
