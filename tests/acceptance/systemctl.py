"""``systemctl`` of a host that is a set of namespaces: starts and stops the units that lie there, as the runner of units reads them.

It knows the words that the pages and ``forebay node`` use. A unit's processes are known by ``INVOCATION_ID``, as systemd sets it.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from unit_runner import STOP_SECONDS_MAX, Runner, Unit

LOG = Path("/var/lib/units.log")
MARK = "INVOCATION_ID"


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


def main_of(name: str) -> int | None:
    """The process that was started first, if it lives."""
    file = Path("/run/units") / name
    pid = int(file.read_text()) if file.exists() else 0
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
        Path("/run/units").mkdir(exist_ok=True)
        (Path("/run/units") / name).write_text(str(runner.start_unit(unit).pid))


def stop(runner: Runner, name: str) -> None:
    """Its main process is asked, and what is left of it is killed. With a target goes what is a part of it."""
    for unit in runner.units().values():
        if name in unit.words("PartOf"):
            stop(runner, unit.name)
    main = main_of(name)
    if main is not None:
        os.kill(main, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS_MAX
    while main is not None and main in processes(name) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in processes(name):
        os.kill(pid, signal.SIGKILL)


def main(words: list[str]) -> int:
    runner = MarkedRunner(Path("/"), [], LOG)
    action, now = words[0], "--now" in words
    names = [word if "." in word else f"{word}.service" for word in words[1:] if not word.startswith("-")]
    for name in names:
        if action == "is-active":
            return 0 if main_of(name) is not None else 3
        if action in ("stop", "restart") or (action == "disable" and now):
            stop(runner, name)
        if action in ("start", "restart") or (action == "enable" and now):
            start(runner, name)
    return 0 if action in ("daemon-reload", "enable", "disable", "start", "stop", "restart") else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
