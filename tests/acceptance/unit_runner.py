"""Runs units as systemd does, as far as they say how: order, users, capabilities, folders, credentials, variables, and what may be written.

It stands in for a systemd that runs: accounts are made by the real ``systemd-sysusers``, below the root of the installation.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CHECKOUT = Path(__file__).resolve().parents[2]
STOP_SECONDS_MAX = 90
CONFINED = """
root=$1; writable=$2; private_tmp=$3; kept=$4; processes=$5; shift 5
if [ "$root" != / ]; then
    mount --bind "$root" "$root"
    cat /etc/passwd "$root/etc/passwd" >"$root/run/passwd"
    chmod 644 "$root/run/passwd"
    mount --bind "$root/run/passwd" /etc/passwd
fi
mount -o remount,bind,ro "$root"
for path in $writable; do
    mount --bind "$path" "$path"
    mount -o remount,bind,rw "$path"
done
if [ "$private_tmp" = yes ]; then
    mount -t tmpfs -o mode=0755 tmpfs /mnt
    (umask 022; mkdir /mnt/tmp; for path in $kept; do mkdir -p "/mnt$path"; done)
    chmod 1777 /mnt/tmp
    for path in $kept; do mount --rbind "$path" "/mnt$path"; done
    mount --rbind /mnt/tmp /tmp
    umount -l /mnt
fi
if [ "$processes" = invisible ]; then mount -t proc -o hidepid=2 proc /proc; fi
exec "$@"
"""
"""What ``ProtectSystem``, ``PrivateTmp`` and ``ProtectProc`` mean for the installation. Names of its accounts are known. What the
installation needs below /tmp, since tests lay it there, is in the private one too."""


@dataclass
class Unit:
    """A unit's settings: each has a value for each line that gives one."""

    name: str
    settings: dict[str, list[str]]

    @classmethod
    def read(cls, path: Path) -> Unit:
        """With what its drop-ins say besides; an empty value takes back those before it."""
        settings: dict[str, list[str]] = {}
        files = [path, *sorted(path.with_name(f"{path.name}.d").glob("*.conf"))]
        for line in (line for file in files for line in file.read_text(encoding="utf-8").splitlines()):
            if line and not line.startswith(("[", "#")):
                key, _, value = line.partition("=")
                settings[key] = [*settings.get(key, []), value] if value else []
        return cls(path.name, settings)

    def words(self, key: str) -> list[str]:
        return [word for value in self.settings.get(key, []) for word in value.split()]

    def one(self, key: str, default: str = "") -> str:
        return (self.settings.get(key) or [default])[0]


@dataclass
class Runner:
    """Runs the units of an installation below ``root``. ``prefix`` begins each command line."""

    root: Path
    prefix: Sequence[str]
    log: Path
    running: list[tuple[Unit, subprocess.Popen[bytes]]] = field(default_factory=list)

    def units(self) -> dict[str, Unit]:
        return {path.name: Unit.read(path) for path in (self.root / "etc" / "systemd" / "system").glob("forebay*.*") if path.is_file()}

    def make_accounts(self) -> None:
        subprocess.run(["systemd-sysusers", f"--root={self.root}"], check=True, capture_output=True)

    def start(self, target: str) -> None:
        """Starts all that a target wants, in order."""
        units = self.units()
        wanted = units[target].words("Wants")
        after = {name: [other for other in units[name].words("After") if other in wanted] for name in wanted}
        for name in TopologicalSorter(after).static_order():
            self.running.append((units[name], self.start_unit(units[name])))

    def run(self, name: str) -> int:
        """Runs a unit that ends by itself; its exit status."""
        return self.start_unit(self.units()[name]).wait(STOP_SECONDS_MAX)

    def stop(self) -> dict[str, int]:
        """Stops all in the order in which they did not start; the exit status of each."""
        statuses = {}
        for unit, process in reversed(self.running):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            statuses[unit.name] = process.wait(STOP_SECONDS_MAX)
        self.running.clear()
        return statuses

    def fail(self, name: str) -> None:
        """A unit's main process dies, and the unit is started again. What it had started lives on: ``KillMode=process``."""
        (at,) = (at for at, (unit, _) in enumerate(self.running) if unit.name == name)
        unit, process = self.running[at]
        assert (unit.one("Restart"), unit.one("KillMode")) == ("on-failure", "process")
        process.kill()
        process.wait(STOP_SECONDS_MAX)
        self.running[at] = unit, self.start_unit(unit)

    def left(self, seconds_max: float = 10.0) -> list[str]:
        """The command lines of processes that go on in the folder of the installation, once they have had time to end."""
        deadline = time.monotonic() + seconds_max
        while (found := self._processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _processes(self) -> list[str]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            if str(self.root).encode() in words and int(entry.name) != os.getpid():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        return found

    def start_unit(self, unit: Unit) -> subprocess.Popen[bytes]:
        """Its main process."""
        user = unit.one("User", "root")
        uid, gid = self._account(user)[0], self._account(unit.one("Group", user))[1]
        writable = [path for path in map(Path, unit.words("ReadWritePaths")) if path.exists()]
        for key, place in (("StateDirectory", self.root / "var" / "lib"), ("RuntimeDirectory", self.root / "run")):
            for name in unit.words(key):
                (place / name).mkdir(parents=True, exist_ok=True)
                (place / name).chmod(int(unit.one(f"{key}Mode", "0755"), 8))
                os.chown(place / name, uid, gid)
                writable.append(place / name)
        self._load(unit, uid, gid)
        line = unit.one("ExecStart")
        become = (0, 0) if line.startswith("!") else (uid, gid)
        command = [*self.prefix, *self._confined(unit, *become, writable), *shlex.split(line.removeprefix("!"))]
        with self.log.open("ab") as output:
            return subprocess.Popen(
                command,
                env={"PATH": SEARCH_PATH, "LANG": "C.UTF-8", **self._variables(unit)},
                cwd=unit.one("WorkingDirectory", "/"),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                umask=int(unit.one("UMask", "0022"), 8),
            )

    def _account(self, name: str) -> tuple[int, int]:
        if os.getuid() != 0:
            return os.getuid(), os.getgid()
        lines = (self.root / "etc" / "passwd").read_text().splitlines() if name != "root" else ["root:x:0:0"]
        (found,) = (line.split(":") for line in lines if line.startswith(f"{name}:"))
        return int(found[2]), int(found[3])

    def _load(self, unit: Unit, uid: int, gid: int) -> None:
        for word in unit.words("LoadCredential"):
            name, _, path = word.partition(":")
            target = self.root / "run" / "credentials" / unit.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.write_bytes(Path(path).read_bytes())
            target.chmod(0o400)
            for each in (target, target.parent):
                os.chown(each, uid, gid)

    def _confined(self, unit: Unit, uid: int, gid: int, writable: list[Path]) -> list[str]:
        if os.getuid() != 0:
            return []
        bounds, ambient = (_capabilities(unit.words(key)) for key in ("CapabilityBoundingSet", "AmbientCapabilities"))
        needed = {self.root, CHECKOUT, Path(sys.prefix), Path(sys.executable).resolve().parents[1]}
        outermost = [place for place in needed if not any(place != one and place.is_relative_to(one) for one in needed)]
        kept = " ".join(str(place) for place in outermost if place.is_relative_to("/tmp"))
        seen = [str(self.root), " ".join(map(str, writable)), unit.one("PrivateTmp", "no"), kept, unit.one("ProtectProc")]
        mounts = ["unshare", "--mount", "sh", "-euc", CONFINED, "sh", *seen]
        become = ["--reuid", str(uid), "--regid", str(gid), "--clear-groups"] if uid else []
        allowed = ["--bounding-set", bounds, f"--inh-caps={ambient}", f"--ambient-caps={ambient}"]
        return [*mounts, "setpriv", "--no-new-privs", *allowed, *become]

    def _variables(self, unit: Unit) -> dict[str, str]:
        lines = [*unit.settings.get("Environment", [])]
        files = [path for path in unit.words("EnvironmentFile") if not path.startswith("-") or Path(path[1:]).exists()]
        lines += [line for path in files for line in Path(path.removeprefix("-")).read_text().splitlines()]
        return {name: shlex.split(value)[0] for name, _, value in (line.partition("=") for line in lines)}


def _capabilities(names: Sequence[str]) -> str:
    """As ``setpriv`` takes them."""
    return ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in names)])
