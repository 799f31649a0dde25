"""The sandbox of users' processes holds them: what they try beyond it fails, and the same succeeds outside of it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fork_server
import psutil
import pytest

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
HERE = Path(__file__).parent
MIB = 2**20
BOUNDS = {"memory_bytes": 512 * MIB, "processes": 40, "files_bytes": 64 * MIB}
SECRET = "a-token-of-the-worker's"
PATIENCE_SECONDS = 60
IN_NETWORK = "ip link set lo up; ip addr add 169.254.169.254/32 dev lo; exec \"$@\""
"""A network of the test's own, in which somebody answers at the metadata address."""
WITHOUT_GROUPS = "mount -t tmpfs none /sys/fs/cgroup; exec \"$@\""
"""A host that lets nobody make control groups."""
AS_NOBODY = """
if [ -n "$1" ]; then
    mount -t tmpfs -o mode=755 tmpfs /mnt
    mkdir -p "/mnt/$2"
    mount --rbind "/$1/$2" "/mnt/$2"
    mount --move /mnt "/$1"
fi
shift 2
exec setpriv --reuid 65534 --regid 65534 --clear-groups --no-new-privs "$@"
"""
"""A worker that is not root's, which may pass to its interpreter even where that lies in a folder of root's."""
as_root = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="the control needs root's rights, and `ip`")


def python() -> str:
    return str(fork_server.services())


def outcome(*arguments: str, before: tuple[str, ...] = (), **bounds: int) -> dict[str, Any]:
    """Of a program in the sandbox."""
    command = [*before, python(), str(HERE / "sandboxed_program.py"), json.dumps(BOUNDS | bounds), "--", *arguments]
    environment = os.environ | {"FOREBAY_WORKER_TOKEN": SECRET}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert not told.pop("left"), "the scratch is still there"
    return told


def as_nobody() -> tuple[str, ...]:
    top, *rest = Path(sys.base_prefix).parts[1:]
    closed = not Path("/", top).stat().st_mode & stat.S_IXOTH
    return ("unshare", "--mount", "sh", "-euc", AS_NOBODY, "sh", *((top, "/".join(rest)) if closed else ("", "")))


def without_groups() -> tuple[str, ...]:
    return ("unshare", "--mount", "sh", "-c", WITHOUT_GROUPS, "sh")


@pytest.fixture
def given(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What there is to reach."""
    other = tmp_path / "forebay-exec-other"
    other.mkdir()
    (other / "secret").write_text("another's")
    folder = sysconfig.get_paths()["purelib"]
    with subprocess.Popen(["sleep", "100"], env={"TOKEN": SECRET}) as process:
        reached = {"scratch": str(other / "secret"), "process": process.pid, "writable": folder}
        yield reached | {"socket": f"forebay-test-{os.getpid()}", "secret": SECRET}
        process.kill()


BOTH = """
import json, socket, subprocess, sys
given = json.loads(sys.argv[1])
tcp, local = socket.create_server(("0.0.0.0", 0)), socket.socket(socket.AF_UNIX)
local.bind("\\0" + given["socket"]); local.listen()
words = json.dumps(given | {"port": tcp.getsockname()[1]})
done = [subprocess.run([*json.loads(command), words], capture_output=True, text=True) for command in sys.argv[2:]]
print(json.dumps([one.stdout or one.stderr for one in done]))
"""
"""Listens, and runs both commands."""


@as_root
@pytest.mark.parametrize("worker", ["root", "nobody"])
def test_what_a_process_tries_beyond_its_sandbox_fails_there_and_succeeds_outside(given: dict[str, Any], worker: str) -> None:
    program = (HERE / "sandbox_attempts.py").read_text()
    outside = [python(), "-c", program]
    starts = [python()] if worker == "root" else [*as_nobody(), sys.executable]
    inside = [*starts, str(HERE / "sandboxed_program.py"), json.dumps(BOUNDS), "--", "python", "-c", program]
    command = ["unshare", "--net", "sh", "-c", IN_NETWORK, "sh", python(), "-c", BOTH]
    command += map(json.dumps, (given, outside, inside))
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    control, told = map(json.loads, json.loads(done.stdout))
    assert not {name: said for name, said in control.items() if not said.startswith("succeeded")}, "the control shows nothing"
    assert told["status"] == 0, told
    attempts = json.loads(told["output"])
    assert attempts.keys() == control.keys()
    assert not {name: said for name, said in attempts.items() if not said.startswith("failed")}


def test_a_process_sees_what_is_named_and_nothing_else() -> None:
    seen = "dict(os.environ), os.listdir('/'), os.listdir('/dev'), os.listdir('/proc/self/fd'), os.listdir('.')"
    program = f"import json, os; print(json.dumps([{seen}]))"
    variables, root, devices, descriptors, work = json.loads(outcome("python", "-c", program)["output"])
    assert set(variables) <= {"PATH", "HOME", "USER", "LOGNAME", "LANG", "TMPDIR", "PWD", "LC_CTYPE"}
    assert {"exec", "tmp", "proc"} <= set(root) and not {"var", "run", "sys", "srv", "boot", "mnt"} & set(root)
    assert set(devices) <= DEVICES
    assert len(descriptors) == 4 and work == [], descriptors  # with that of the listing itself


DEVICES = set("console core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero".split())
BOMBS = {
    "processes": "import os, time\nwhile True:\n try: os.fork() or time.sleep(100)\n except OSError: os._exit(9)",
    "threads": "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
    "memory": "held = []\nwhile True: held.append(bytearray(b'x') * (16 << 20))",
    "memory of several": "import os, time\nfor _ in range(4): os.fork()\nheld = bytearray(b'x') * (200 << 20)\ntime.sleep(60)",
    "memory of children": "import os, time\nos.fork() and os.fork() and time.sleep(60)\n"
    "held = bytearray(b'x') * (400 << 20)\ntime.sleep(9)",
    "shared memory": "for number in range(64): open(f'/dev/shm/{number}', 'wb').write(b'x' * (8 << 20))",
    "one file": "with open('x', 'wb') as file:\n while True: file.write(b'x' * (1 << 20)); file.flush()",
    "many files": "import os, time\nfor number in range(64):\n open(str(number), 'wb').write(b'x' * (4 << 20))\ntime.sleep(60)",
    "a sparse file": "import os\nwith open('x', 'wb') as file: file.truncate(1 << 50)",
}
"""What each takes too much of."""


@pytest.mark.parametrize("before", [(), pytest.param(("without groups",), marks=as_root)], ids=["groups", "no groups"])
def test_what_takes_too_much_ends_and_the_host_goes_on(before: tuple[str, ...], pytestconfig: pytest.Config) -> None:
    wrapper = without_groups() if before else ()
    chosen = BOMBS if pytestconfig.getoption("--full-sweep") else ("processes", "memory of several", "memory of children")
    for name in chosen:
        began, memory = time.monotonic(), psutil.virtual_memory().available
        told = outcome("python", "-c", BOMBS[name], before=wrapper)
        assert told["status"] not in (0, None), (name, told)
        assert time.monotonic() - began < PATIENCE_SECONDS / 2, name
        assert psutil.virtual_memory().available > memory - 2 * BOUNDS["memory_bytes"], name


def test_nothing_is_left_of_what_a_process_started(tmp_path: Path) -> None:
    name = f"left-{os.getpid()}"
    program = "import os, sys, time\nif not os.fork():\n os.setsid()\n if not os.fork(): time.sleep(1000)\n os._exit(0)\nos.wait()\n"
    program += "sys.exit(3)"
    assert outcome("python", "-c", program, name)["status"] == 3
    assert not [one.pid for one in psutil.process_iter(["cmdline"]) if name in (one.info["cmdline"] or ())]


def test_where_the_sandbox_is_not_there_nothing_is_run(tmp_path: Path) -> None:
    (tmp_path / "setpriv").symlink_to(shutil.which("setpriv") or "")
    told = outcome("touch", str(tmp_path / "made"), before=("env", f"PATH={tmp_path}"))
    assert "bwrap" in told["unconfined"] and not (tmp_path / "made").exists()
