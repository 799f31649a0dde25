"""A host that systemd itself boots: in a cgroup and namespaces, on a root with this machine's programs read-only below it.

Nothing but the loopback interface is there, and no device of this machine.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from namespaces import NetworkHost, first_child
from service_host import CHECKOUT, EXTRAS, HTTPS, PREFIX, Host, answers, lay_release

SYSTEMD = Path("/lib/systemd/systemd")
SETTINGS = (
    "alternatives", "ca-certificates.conf", "debian_version", "default", "group", "gshadow", "ld.so.conf", "ld.so.conf.d", "localtime",
    "login.defs", "nsswitch.conf", "os-release", "pam.conf", "pam.d", "passwd", "profile", "security", "shadow", "ssl", "subgid", "subuid",
)  # fmt: skip
"""Of this machine's, what the host has too: who there is, and how programs are found. No unit is enabled."""
FOLDERS = ("dev", "etc/systemd/system", "home", "mnt/release", "opt", "proc", "root", "run", "srv", "sys", "tmp", "usr")
STATE_FOLDERS = ("cache", "lib", "log/journal", "spool", "tmp")
INTERPRETER, ENVIRONMENT, SOURCES = "/srv/python", "/srv/environment", "/srv/checkout"
"""Where the host has the tests' own, wherever they lie here: no unit sees what is below homes."""
SEARCH_PATH = f"{INTERPRETER}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENTERED = """
cgroups=$1 group=$2; shift 2
mount -t cgroup2 cgroup2 "$cgroups"
mkdir "$cgroups/$group"
echo $$ >"$cgroups/$group/cgroup.procs"
exec unshare --cgroup --net --mount --uts --ipc --pid --fork --kill-child "$@"
"""
BOOTED = """
root=$1 name=$2; shift 2
echo "$name" >/proc/sys/kernel/hostname
mount --bind "$root" "$root"
cd "$root"
while [ $# -gt 0 ]; do
    mkdir -p ".$2"
    mount --bind "$1" ".$2"
    mount -o remount,bind,ro ".$2"
    shift 2
done
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm run/before
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts dev/pts
mount -t tmpfs -o mode=1777 tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for node in null zero full random urandom tty; do
    touch "dev/$node"
    mount --bind "/dev/$node" "dev/$node"
done
pivot_root . run/before
umount --lazy /run/before
rmdir /run/before
mount --make-rshared /
exec env -i container=forebay-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd
"""
GONE = 'mount -t cgroup2 cgroup2 "$1" && find "$1/$2" -depth -type d -exec rmdir {} +'
LINKED = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from installing import asked_for, link
link(Path({folder!r}), asked_for(Path({release!r}), {extras!r}) | {{"numpy"}})
"""
BOOT_SECONDS_MAX = 120
STOP_SECONDS_MAX = 90


def why_not() -> str:
    """Why systemd cannot be booted on this machine; empty where it can."""
    if os.getuid() != 0:
        return "namespaces and units' users need root"
    if not SYSTEMD.exists() or shutil.which("journalctl") is None:
        return "Debian's systemd is not installed"
    if not Path("/bin").is_symlink():
        return "this machine keeps programs beside /usr"
    probe = 'mount -t cgroup2 cgroup2 /mnt && mkdir /mnt/forebay-probe && rmdir /mnt/forebay-probe && mount -t sysfs sysfs /mnt'
    done = subprocess.run(["unshare", "--mount", "--net", "--cgroup", "sh", "-c", probe], capture_output=True, text=True, check=False)
    return f"systemd needs a cgroup and namespaces of its own ({done.stderr.strip()})" if done.returncode else ""


class SystemdHost(NetworkHost):
    """It has no cable: what reaches it enters its network. Its root lies in ``folder`` and outlives being turned off."""

    def __init__(self, name: str, folder: Path) -> None:
        self.root, self._group = folder / "root", f"forebay-{secrets.token_hex(4)}"
        self._console = folder / "console"
        super().__init__(name, "127.0.0.1", folder, ())

    def lay(self) -> None:
        """A system on which nothing was ever done."""
        for name in (*FOLDERS, *(f"var/{name}" for name in STATE_FOLDERS)):
            (self.root / name).mkdir(parents=True)
        for name in ("tmp", "var/tmp"):
            (self.root / name).chmod(0o1777)
        (self.root / "var" / "run").symlink_to("/run")
        for name in ("bin", "lib", "lib64", "sbin"):
            if Path("/", name).is_symlink():
                (self.root / name).symlink_to(os.readlink(f"/{name}"))
        interpreter = self.root / sys.base_prefix.lstrip("/")
        if not sys.base_prefix.startswith("/usr"):  # links of the tests' environment lead there
            interpreter.parent.mkdir(parents=True, exist_ok=True)
            interpreter.symlink_to(INTERPRETER)
        self._lay_settings()
        (self.folder / "cgroups").mkdir()

    def _lay_settings(self) -> None:
        settings = self.root / "etc"
        present = [Path("/etc", name) for name in SETTINGS if Path("/etc", name).exists()]
        subprocess.run(["cp", "--archive", *map(str, present), str(settings)], check=True)
        written = {
            "hostname": self.name,
            "hosts": f"127.0.0.1 localhost {self.name}",
            "machine-id": secrets.token_hex(16),
            "ld.so.conf.d/python.conf": f"{INTERPRETER}/lib",
        }
        for name, content in written.items():
            (settings / name).write_text(f"{content}\n")
        for folder in (settings, self.root / "var"):
            (folder / ".updated").touch()

    def turn_on(self) -> None:
        """Until all that is to be started with it was."""
        mounts = ["/usr", "/usr", sys.base_prefix, INTERPRETER, sys.prefix, ENVIRONMENT, str(CHECKOUT), SOURCES]
        entered = ["unshare", "--mount", "sh", "-euc", ENTERED, "sh", str(self.folder / "cgroups"), self._group]
        command = [*entered, "sh", "-euc", BOOTED, "sh", str(self.root), self.name, *mounts]
        with self._console.open("ab") as console:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console, text=True)
        self.pid = first_child(self.process.pid)
        deadline = time.monotonic() + BOOT_SECONDS_MAX
        while (state := self.run("systemctl is-system-running --wait", {}, "/").stdout.strip()) not in ("running", "degraded"):
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"systemd does not boot ({state}): {self._console.read_text(errors='replace')[-4000:]}")
            time.sleep(0.2)

    def run(self, line: str, variables: dict[str, str], cwd: str = "/") -> subprocess.CompletedProcess[str]:
        return super().run(line, {"PATH": SEARCH_PATH, "HOME": "/root", "LANG": "C.UTF-8", **variables}, cwd)

    def reboot(self) -> None:
        """As root types it there."""
        self.run("systemctl reboot", {})
        self.process.wait(STOP_SECONDS_MAX)
        self._remove_cgroup()
        self.turn_on()

    def turn_off(self) -> None:
        if self.process.poll() is None:
            super().turn_off()
        self._remove_cgroup()

    def _remove_cgroup(self) -> None:
        command = ["unshare", "--mount", "sh", "-c", GONE, "sh", str(self.folder / "cgroups"), self._group]
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while subprocess.run(command, capture_output=True, check=False).returncode and time.monotonic() < deadline:
            time.sleep(0.2)  # its last processes are still ending


class Systemctl:
    """What tests ask of a host's units, of its systemd."""

    def __init__(self, host: SystemdHost) -> None:
        self._host = host

    def ask(self, line: str) -> str:
        """What a command says, which must succeed."""
        done = self._host.run(line, {})
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout.strip()

    def show(self, unit: str, name: str) -> str:
        return self.ask(f"systemctl show --property {name} --value {unit}")

    def fail(self, name: str) -> None:
        """A unit's main process dies, and systemd starts the unit again."""
        before = self.show(name, "MainPID")
        self.ask(f"systemctl kill --kill-whom=main --signal=KILL {name}")
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while self.show(name, "MainPID") in (before, "0"):
            assert time.monotonic() < deadline, f"{name} is not started again"
            time.sleep(0.1)

    def run(self, name: str) -> int:
        """Runs a unit that ends by itself; its exit status."""
        self._host.run(f"systemctl start {name}", {})
        return int(self.show(name, "ExecMainStatus"))

    def until_ended(self, name: str) -> None:
        """Waits for a unit that a timer starts."""
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while not self.show(name, "ExecMainExitTimestamp"):
            assert time.monotonic() < deadline, f"{name} does not run, or does not end"
            time.sleep(0.2)

    def stop(self) -> dict[str, int]:
        """Stops all; for each 0 where it ended as it should."""
        names = self.show("forebay.target", "Wants").split()
        self.ask("systemctl stop forebay.target")
        return {name: int([self.show(name, key) for key in ("ActiveState", "Result")] != ["inactive", "success"]) for name in names}

    def left(self) -> list[str]:
        """The command lines of processes of the installation that go on."""
        return [line for line in self.ask("ps -e -o args").splitlines() if line.startswith(PREFIX)]

    def complaints(self) -> list[str]:
        """What systemd has said of our units as a warning or worse, since the host was first turned on."""
        said = self.ask("journalctl --quiet --output=cat --priority=warning --no-pager _PID=1").splitlines()
        return [line for line in said if "forebay" in line]


class BootedHost(Host):
    """On which the page's commands are typed as they stand. What an index would bring lies there as links before."""

    def __init__(self, folder: Path) -> None:
        self.machine = SystemdHost("booted", folder)
        super().__init__(self.machine.root, Path(PREFIX), HTTPS)
        self.runner = Systemctl(self.machine)
        lay_release(self.root / "mnt" / "release")
        (self.root / "mnt" / "release" / "answers.toml").write_text(answers())
        self.runner.ask("ldconfig")  # the interpreter's library, where units cannot see the place that it was built for

    def network(self) -> AbstractContextManager[None]:
        return self.machine.network()

    def log(self) -> str:
        return self.machine.run("journalctl --no-pager --lines=80 --unit='forebay*'", {}).stdout

    def runs(self, process: Path, words: str) -> bool:
        namespaces = [os.readlink(f"/proc/{entry}/ns/pid") for entry in (process.name, self.machine.pid)]
        return namespaces[0] == namespaces[1]

    def type(self, line: str) -> None:
        """One of the page's commands."""
        done = self.machine.run(line, {"PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}, "/mnt/release")
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}\n{self.log()}"
        if " -m venv " in line:
            code = LINKED.format(tests=f"{SOURCES}/tests/packages", folder=line.split()[-1], release="/mnt/release", extras=EXTRAS)
            self.runner.ask(f"{ENVIRONMENT}/bin/python -c {shlex.quote(code)}")
