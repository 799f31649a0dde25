"""``systemctl`` of a host that is a set of namespaces: starts and stops the units that lie there, as the runner of units reads them.

It knows the words that the pages and ``forebay node`` use, and ``default``, which starts what of ours is enabled, as a host that is turned
on does. A unit's processes are known by ``INVOCATION_ID``, as systemd sets it. Each unit has a keeper, a process that starts it again as it
says.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from unit_runner import STOP_SECONDS_MAX, Runner, Unit

LOG = Path("/var/lib/units.log")
RUNNING = Path("/run/units")
"""A file for each unit with the id of its main process, and one of its keeper."""
ENABLED = Path("/etc/systemd/system/multi-user.target.wants")
MARK = "INVOCATION_ID"
SIGNALLED = 143
"""The exit status of a shell's child that SIGTERM ended."""


class MarkedRunner(Runner):
    """Its units' processes can be found again by another process."""

    def _variables(self, unit: Unit) -> dict[str, str]:
        return {**super()._variables(unit), MARK: unit.name}


def processes(name: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and f"{MARK}={name}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def noted(name: str) -> int:
    """A process id; 0: there is none."""
    file = RUNNING / name
    return int(file.read_text() or 0) if file.exists() else 0


def main_of(name: str) -> int | None:
    """The process that was started first, if it lives."""
    pid = noted(name)
    return pid if pid in processes(name) else None


def start(runner: Runner, name: str) -> None:
    units = runner.units()
    unit = units[name]
    if name.endswith(".target"):
        order = [other for other in ("forebay-proxy.service", "forebay-hub.service") if other in unit.words("Wants")]
        for other in [*order, *sorted(set(unit.words("Wants")) - set(order))]:
            start(runner, other)
        return
    for other in unit.words("Wants"):
        if other in units:
            start(runner, other)
    if not name.endswith(".timer") and main_of(name) is None:
        RUNNING.mkdir(exist_ok=True)
        (RUNNING / name).unlink(missing_ok=True)
        with LOG.open("ab") as log:
            keeper = subprocess.Popen([sys.executable, __file__, "keep", name], start_new_session=True, stdout=log, stderr=log)
        (RUNNING / f"{name}.keeper").write_text(str(keeper.pid))
        while keeper.poll() is None and main_of(name) is None:
            time.sleep(0.05)


def keep(runner: Runner, unit: Unit) -> None:
    """Runs a unit, again and again if it says so; each time what its main process leaves is killed."""
    policy = unit.one("Restart", "no")
    while True:
        process = runner.start_unit(unit)
        (RUNNING / unit.name).write_text(str(process.pid))
        status = process.wait()
        end(unit.name)
        if policy == "no" or (policy == "on-failure" and status in (0, SIGNALLED, -signal.SIGTERM)):
            return
        time.sleep(float(unit.one("RestartSec", "0.1")))


def end(name: str) -> None:
    for pid in processes(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def stop(runner: Runner, name: str) -> None:
    """Its main process is asked, and what is left of it is killed. With a target goes what is a part of it."""
    for unit in runner.units().values():
        if name in unit.words("PartOf"):
            stop(runner, unit.name)
    keeper, main = noted(f"{name}.keeper"), main_of(name)
    with contextlib.suppress(ProcessLookupError):
        if keeper:
            os.kill(keeper, signal.SIGKILL)
            (RUNNING / f"{name}.keeper").unlink()
    if main is not None:
        os.kill(main, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while main is not None and main in processes(name) and time.monotonic() < deadline:
        time.sleep(0.1)
    end(name)


def enable(name: str, wanted: bool) -> None:
    """Whether it is to be started with the host."""
    ENABLED.mkdir(parents=True, exist_ok=True)
    (ENABLED / name).unlink(missing_ok=True)
    if wanted:
        (ENABLED / name).symlink_to(ENABLED.parent / name)


def main(words: list[str]) -> int:
    runner = MarkedRunner(Path("/"), [], LOG)
    action, now = words[0], "--now" in words
    names = [word if "." in word else f"{word}.service" for word in words[1:] if not word.startswith("-")]
    if action == "default":
        action, names = "start", sorted(path.name for path in ENABLED.glob("forebay*"))
    if action == "keep":
        keep(runner, runner.units()[names[0]])
        return 0
    for name in names:
        if action in ("enable", "disable"):
            enable(name, action == "enable")
        if action == "is-active":
            return 0 if main_of(name) is not None else 3
        if action in ("stop", "restart") or (action == "disable" and now):
            stop(runner, name)
        if action in ("start", "restart") or (action == "enable" and now):
            start(runner, name)
    return 0 if action in ("daemon-reload", "enable", "disable", "start", "stop", "restart") else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
