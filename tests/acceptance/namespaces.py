"""Hosts of one network on this machine, each a set of namespaces: its own addresses, processes, host name, accounts, and what it writes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

NEEDED = (
    pytest.mark.skipif(os.getuid() != 0, reason="namespaces and units' users need root"),
    pytest.mark.skipif(shutil.which("systemd-sysusers") is None or shutil.which("ip") is None, reason="systemd or iproute2 is missing"),
)
"""Marks of tests whose hosts are installed as services."""
CLONE_NEWNET = 0x40000000
HOLDER = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN); print('ready', flush=True); [signal.pause() for _ in iter(int, 1)]"
"""The first process of a host, which reaps what others leave."""
LAID = """
folder=$1 name=$2 address=$3 systemctl=$4; shift 4
for path in etc var/lib opt; do
    mkdir -p "$folder/upper/$path" "$folder/work/$path"
    mount -t overlay overlay -o "lowerdir=/$path,upperdir=$folder/upper/$path,workdir=$folder/work/$path" "/$path"
done
mount --bind "$systemctl" /usr/bin/systemctl
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm  # the last, since the folder may be there
grep -q "^$address " /etc/hosts || echo "$address $name" >>/etc/hosts
echo "hosts: files" >/etc/nsswitch.conf
echo "$name" >/proc/sys/kernel/hostname
exec "$@"
"""
POSTGRES = """
set -e; mkdir /run/postgresql; chown postgres: /run/postgresql; cd /run/postgresql
as="runuser -u postgres --"
data=/var/lib/postgresql/forebay
$as {bin}/initdb -D $data -A trust -E UTF8 --no-sync >/dev/null
$as {bin}/pg_ctl -D $data -l log -o '-c listen_addresses=127.0.0.1 -c unix_socket_directories=/run/postgresql' -w start >/dev/null
$as {bin}/createuser -h 127.0.0.1 forebay
for name in hub pool billing; do $as {bin}/createdb -h 127.0.0.1 -O forebay "forebay_$name"; done
"""
"""Starts a server of the services' databases on a host; ``{bin}`` has the programs."""
COMMAND_SECONDS_MAX = 600
ROUTE = ("route", "add", "default", "dev", "eth0")
"""Leads nowhere; programs look along it for the host's own address."""


class Switch:
    """What the hosts' cables end in."""

    def __init__(self) -> None:
        self.process = _held(["unshare", "--net"])
        self.ip("link", "add", "bridge", "type", "bridge")
        self.ip("link", "set", "bridge", "up")

    def ip(self, *words: str) -> None:
        _ip(self.process.pid, *words)

    def plug(self, host: NetworkHost) -> None:
        end = ("link", "add", "eth0", "netns", str(host.pid), "type", "veth", "peer", "name", host.name, "netns", str(self.process.pid))
        _ip(self.process.pid, *end)
        self.ip("link", "set", host.name, "master", "bridge", "up")
        address = ("address", "add", f"{host.address}/24", "dev", "eth0")
        for words in (("link", "set", "lo", "up"), address, ("link", "set", "eth0", "up"), ROUTE):
            _ip(host.pid, *words)

    def cut(self, host: NetworkHost) -> None:
        """Neither side is told."""
        self.ip("link", "set", host.name, "nomaster")

    def mend(self, host: NetworkHost) -> None:
        self.ip("link", "set", host.name, "master", "bridge")

    def unplug(self, host: NetworkHost) -> None:
        """For good; another cable may be plugged in."""
        self.ip("link", "delete", host.name)

    def stop(self) -> None:
        _end(self.process, self.process.pid)


class NetworkHost:
    """A host at an address. ``prefix`` begins the command line of its first process."""

    def __init__(self, name: str, address: str, folder: Path, prefix: Sequence[str]) -> None:
        self.name, self.address, self.folder, self._prefix = name, address, folder, prefix
        folder.mkdir(mode=0o755)
        self.lay()
        self.turn_on()

    def lay(self) -> None:
        """Writes what is there before it is turned on for the first time."""
        self._systemctl = self.folder / "systemctl"
        script = Path(__file__).with_name("systemctl.py")
        self._systemctl.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
        self._systemctl.chmod(0o755)

    def turn_on(self) -> None:
        """With what it has written before, and without a cable; ``systemctl default`` starts what is enabled there."""
        apart = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc"]
        laid = ["sh", "-euc", LAID, "sh", str(self.folder), self.name, self.address, str(self._systemctl)]
        self.process = _held([*self._prefix, *apart, *laid])
        self.pid = first_child(self.process.pid)

    def begin_loopback(self) -> None:
        """For a host that is plugged into nothing."""
        _ip(self.pid, "link", "set", "lo", "up")

    def run(self, line: str, variables: Mapping[str, str], cwd: str = "/run") -> subprocess.CompletedProcess[str]:
        """A line that root types there."""
        command = ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "-i", "-p", "sh", "-c", f"cd {cwd} && {line}"]
        return subprocess.run(
            command, env=dict(variables), capture_output=True, text=True, check=False, timeout=COMMAND_SECONDS_MAX, stdin=subprocess.DEVNULL
        )

    def path(self, path: str) -> Path:
        """A file there."""
        return Path(f"/proc/{self.pid}/root{path}")

    def turn_off(self) -> None:
        """All its processes end at once. Where its cable is unplugged first, nobody is told, as where the power fails."""
        _end(self.process, self.pid)

    @contextlib.contextmanager
    def network(self) -> Iterator[None]:
        """This thread's new connections begin there."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open("/proc/thread-self/ns/net") as before, open(f"/proc/{self.pid}/ns/net") as there:
            if libc.setns(there.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield
            finally:
                libc.setns(before.fileno(), CLONE_NEWNET)


def _held(prefix: Sequence[str]) -> subprocess.Popen[str]:
    process = subprocess.Popen([*prefix, sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    if process.stdout is None or process.stdout.readline() != "ready\n":
        _end(process, process.pid)
        raise RuntimeError(f"no namespaces: {' '.join(prefix)}")
    return process


def _end(process: subprocess.Popen[str], pid: int) -> None:
    """Kills one, which is the process or its child, and waits for the process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def first_child(pid: int) -> int:
    """Of ``unshare --fork``."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.05)
    raise RuntimeError("the host's first process did not start")


def _ip(pid: int, *words: str) -> None:
    subprocess.run(["nsenter", "-t", str(pid), "-n", str(shutil.which("ip")), *words], check=True, capture_output=True)
