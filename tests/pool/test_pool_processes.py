"""``forebay exec``: whole processes beside devices, with a real pool, a real worker and its sandbox."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import fork_server
import psutil
import pytest
from forebay_pool.model.events import BudgetSet, LeaseRevoked
from forebay_pool.model.prices import Tariff
from forebay_service.errors import SettingsError

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built"),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]
Make = Callable[..., Any]
PATIENCE_SECONDS = 30
FREED_SECONDS = 5
PRICE_NANO = 7_200_000_000_000
REAL = {
    "real_workers": True,
    "devices": [{"kind": "cpu", "model": "cpu-dev", "memory": "2 GiB", "count": 1}],
    "heartbeat_seconds": 0.2,
    "process_memory": "1 GiB",
}
SLEEPS = "import time; print('here', flush=True); time.sleep(100)"


class Command:
    """``forebay exec`` in a folder."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    @classmethod
    async def begin(cls, running: Any, folder: Path, *words: str, who: str = "ada", options: tuple[str, ...] = ()) -> Command:
        environment = os.environ | {"FOREBAY_URL": running.service.url, "FOREBAY_TOKEN": who}
        pipe = asyncio.subprocess.PIPE
        command = (fork_server.services(), "-m", "forebay", "exec", *options, "--", *words)
        return cls(await asyncio.create_subprocess_exec(*command, cwd=folder, env=environment, stdin=pipe, stdout=pipe, stderr=pipe))

    async def says(self, line: str) -> None:
        assert self.process.stdout is not None and self.process.stderr is not None
        heard = await asyncio.wait_for(self.process.stdout.readline(), PATIENCE_SECONDS)
        assert heard.decode() == f"{line}\n", (await self.process.stderr.read()).decode()

    async def end(self, given: bytes = b"") -> tuple[int, str, str]:
        output, errors = await asyncio.wait_for(self.process.communicate(given), PATIENCE_SECONDS)
        assert self.process.returncode is not None
        return self.process.returncode, output.decode(), errors.decode()


async def outcome(running: Any, folder: Path, *words: str, given: bytes = b"") -> tuple[int, str, str]:
    return await (await Command.begin(running, folder, *words)).end(given)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A user's, beside the pool's."""
    made = tmp_path / "folder"
    made.mkdir()
    return made


def sandboxes() -> list[int]:
    """Processes of bubblewrap's on this host."""
    return [process.pid for process in psutil.process_iter(["name"]) if process.info["name"] == "bwrap"]


def scratches() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("forebay-exec-*"))


def test_a_process_runs_beside_the_device_and_its_lease_is_the_process(pool: Make, folder: Path) -> None:
    program = "import sys, os, time; print(sys.argv[1:], os.getcwd(), len(sys.stdin.read())); print('e', file=sys.stderr); time.sleep(0.5)"
    program += "; sys.exit(7)"

    async def scenario() -> None:
        async with pool(**REAL) as running:
            running.service.shell.machine.fleet.set_tariff(Tariff({("dev.1gb", "EUR"): PRICE_NANO}, currency="EUR"))
            status, output, errors = await outcome(running, folder, "python", "-c", program, "a", "b c", given=b"four")
            assert (status, output) == (7, "['a', 'b c'] /exec 4\n") and "\ne\n" in errors
            first, *_, last = errors.splitlines()
            assert first.endswith("on dev.1gb, 7200.00 EUR/h")
            (record,) = running.records()
            told = re.fullmatch(r"forebay: ([\d.]+) s on dev.1gb: ([\d.]+) EUR", last)
            assert told is not None
            assert abs(float(told[1]) - record["duration_ns"] / 1e9) <= 0.05
            assert round(float(told[2]) * 1e9) == record["duration_ns"] * PRICE_NANO // (3600 * 10**9)
            assert 0.5e9 <= record["duration_ns"] <= 2e9 and '"exec python -c' in record["span"]

    asyncio.run(scenario())


CHANGES = """
import os, pathlib
print(sorted(str(path) for path in pathlib.Path('.').rglob('*') if path.is_file()), os.access('run.sh', os.X_OK))
pathlib.Path('same.txt').write_text('same'); pathlib.Path('mine.txt').write_text('theirs'); pathlib.Path('data.txt').write_text('changed')
pathlib.Path('new/deep').mkdir(parents=True); pathlib.Path('new/deep/made.txt').write_text('made'); pathlib.Path('skipped').mkdir()
pathlib.Path('skipped/x').write_text('x'); os.symlink('/etc/passwd', 'link'); os.mkfifo('fifo'); os.link('data.txt', 'hard')
with open('huge', 'wb') as file: file.truncate(1 << 30)
os.unlink('gone.txt'); print('ready', flush=True); input()
"""


def test_files_go_and_come_back_and_what_is_no_file_does_not(pool: Make, folder: Path) -> None:
    for name in ("same.txt", "mine.txt", "data.txt", "gone.txt", "run.sh", "notes.log"):
        (folder / name).write_text("same")
    (folder / "run.sh").chmod(0o755)
    (folder / ".forebayignore").write_text("*.log\nskipped/\n")
    (folder / "outward").symlink_to("/etc/hosts")

    async def scenario() -> None:
        async with pool(**REAL) as running:
            command = await Command.begin(running, folder, "python", "-c", CHANGES)
            await command.says("['.forebayignore', 'data.txt', 'gone.txt', 'mine.txt', 'run.sh', 'same.txt'] True")
            await command.says("ready")
            (folder / "mine.txt").write_text("changed here meanwhile")
            status, _, errors = await command.end(b"\n")
            assert status == 0, errors
            assert "not sent: outward is a symbolic link" in errors and "beside it, as mine.txt.from-exec" in errors
            assert all(one in errors for one in ("fifo is a FIFO", "huge is a sparse file of 1073741824 bytes", "link is a symbolic link"))

    asyncio.run(scenario())
    files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}
    assert files == {
        **{"same.txt": "same", "gone.txt": "same", "run.sh": "same", "notes.log": "same", ".forebayignore": "*.log\nskipped/\n"},
        **{"data.txt": "changed", "hard": "changed", "new/deep/made.txt": "made"},
        **{"mine.txt": "changed here meanwhile", "mine.txt.from-exec": "theirs"},
    }
    assert (folder / "data.txt").stat().st_nlink == 1 and (folder / "run.sh").stat().st_mode & 0o111


def test_signals_reach_the_process_and_a_second_interrupt_ends_it(pool: Make, folder: Path, pytestconfig: pytest.Config) -> None:
    stubborn = "import os, signal; signal.signal(2, lambda *_: os.write(1, b'no\\n')); " + SLEEPS

    async def scenario() -> None:
        async with pool(**REAL) as running:
            signals = ((signal.SIGTERM, 143), (signal.SIGINT, 130))
            for number, status in signals if pytestconfig.getoption("--full-sweep") else ():
                command = await Command.begin(running, folder, "python", "-c", SLEEPS)
                await command.says("here")
                command.process.send_signal(number)
                assert (await command.end())[0] == status
            command = await Command.begin(running, folder, "python", "-c", stubborn)
            await command.says("here")
            command.process.send_signal(signal.SIGINT)
            await command.says("no")
            command.process.send_signal(signal.SIGINT)
            assert (await command.end())[0] == 137
            await running.until(lambda: not sandboxes() and not scratches())

    asyncio.run(scenario())


def test_a_client_that_dies_frees_the_device_and_leaves_nothing(pool: Make, folder: Path) -> None:
    leaves = "import os, time\nif not os.fork():\n os.setsid()\n os.fork()\nelse:\n print('here', flush=True)\ntime.sleep(100)"

    async def scenario() -> None:
        async with pool(**REAL) as running:
            command = await Command.begin(running, folder, "python", "-c", leaves)
            await command.says("here")
            assert sandboxes() and scratches() and running.leases
            command.process.kill()
            await running.until(lambda: not running.leases, FREED_SECONDS)
            await running.until(lambda: not sandboxes() and not scratches(), FREED_SECONDS)

    asyncio.run(scenario())


ENDS = {"as it is asked to": (SLEEPS, 143, "drained"), "by force": (f"import signal; signal.signal(15, 1); {SLEEPS}", 137, "revoked")}


def test_a_lease_that_is_taken_back_ends_the_process(pool: Make, folder: Path, pytestconfig: pytest.Config) -> None:
    async def scenario() -> None:
        async with pool(**REAL, revoke_grace_seconds=0.5) as running:
            for program, status, reason in list(ENDS.values())[: 2 if pytestconfig.getoption("--full-sweep") else 1]:
                command = await Command.begin(running, folder, "python", "-c", program)
                await command.says("here")
                (session,) = running.machine.sessions
                running.service.shell.apply(LeaseRevoked(session, "an operator takes it back"))
                ended, _, errors = await command.end()
                assert ended == status and "the process must end within 0.5 s: an operator takes it back" in errors
                assert running.records()[-1]["close_reason"] == reason
                assert not running.leases and not running.machine.queue.waiting
                await running.until(lambda: not running.machine.sessions)

    asyncio.run(scenario())


@pytest.mark.full_sweep
def test_a_budget_that_is_used_up_ends_the_process(pool: Make, folder: Path) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            command = await Command.begin(running, folder, "python", "-c", SLEEPS)
            await command.says("here")
            running.service.shell.apply(BudgetSet("acme", None, "drain", cause="the budget is used up"))
            status, _, errors = await command.end()
            assert status == 143 and "used up" in errors
            assert running.records()[-1]["close_reason"] == "revoked" and not running.machine.queue.waiting

    asyncio.run(scenario())


@pytest.mark.full_sweep
def test_processes_of_one_member_wait_for_each_other_as_sessions_do(pool: Make, folder: Path) -> None:
    async def scenario() -> None:
        async with pool(**REAL) as running:
            commands = [await Command.begin(running, folder, "python", "-c", "print(1)") for _ in range(4)]
            ends = await asyncio.gather(*(command.end() for command in commands))
            assert [end[:2] for end in ends] == [(0, "1\n")] * 4
            times = sorted((one["started_at_unix_ns"], one["started_at_unix_ns"] + one["duration_ns"]) for one in running.records())
            assert len(times) == 4 and all(before[1] <= after[0] for before, after in pairwise(times))

    asyncio.run(scenario())


@pytest.mark.parametrize("tools", ["missing", "broken"])
def test_a_host_that_cannot_confine_says_so_and_starts_nothing(
    pool: Make, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tools: str
) -> None:
    there = tmp_path / "tools"
    there.mkdir()
    for name in ("bwrap", "setpriv") if tools == "broken" else ():
        (there / name).write_text("#!/bin/sh\nexit 1\n")
        (there / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(there))
    why = {
        "missing": "No host here that serves dev.1gb serves exec (processes of `forebay exec`)",
        "broken": "cannot be confined beside this device",
    }

    async def scenario() -> None:
        async with pool(**REAL) as running:
            status, output, errors = await outcome(running, folder, "python", "-c", "print(1)")
            assert (status, output) == (1, "") and why[tools] in errors, errors
            assert not running.records()

    asyncio.run(scenario())


def test_a_host_whose_sandbox_fails_is_remembered_and_tried_again_later(
    pool: Make, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "tools"
    there.mkdir()
    bwrap, real = there / "bwrap", shutil.which("bwrap")
    bwrap.write_text("#!/bin/sh\necho the sandbox is broken >&2\nexit 1\n")
    bwrap.chmod(0o755)
    monkeypatch.setenv("PATH", f"{there}{os.pathsep}{os.environ['PATH']}")

    async def scenario() -> None:
        async with pool(**REAL, warm_workers=0, process_retry_seconds=3.0) as running:
            started: list[str] = []
            monkeypatch.setattr(running.service.shell.metrics, "worker_started", started.append)
            for _ in range(2):
                status, output, errors = await outcome(running, folder, "python", "-c", "print(1)")
                assert (status, output) == (1, "") and "cannot be confined beside this device" in errors, errors
            (row,) = await running.get("api/nodes")
            assert row["state"] == "up" and row["causes"][0]["code"] == "unconfined" and "the sandbox is broken" in row["cause"], row
            assert len(started) == 1
            bwrap.write_text(f'#!/bin/sh\nexec {real} "$@"\n')
            await running.until(lambda: running.machine.fleet.nodes["main"].unconfined is None)
            assert (await running.get("api/nodes"))[0]["cause"] is None
            status, output, errors = await outcome(running, folder, "python", "-c", "print(1)")
            assert (status, output) == (0, "1\n"), errors
            assert len(running.records()) == 1

    asyncio.run(scenario())


OUTWARD = """
import os, socket, sys, urllib.parse
proxy = urllib.parse.urlsplit(os.environ["HTTPS_PROXY"])
for place in sys.argv[1:]:
    connection = socket.create_connection((proxy.hostname, proxy.port))
    connection.sendall(f"CONNECT {place} HTTP/1.1\\r\\n\\r\\n".encode())
    print(connection.makefile().read().split("\\n")[0] if place != sys.argv[1] else connection.recv(100).split()[1].decode())
"""


def own_address() -> str:
    """Of this host, as others see it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
        try:
            made.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(made.getsockname()[0])


@pytest.mark.skipif(own_address() in ("", "127.0.0.1"), reason="this host has no address but its own loopback's")
def test_a_process_is_let_out_to_the_places_that_the_operator_lists(pool: Make, folder: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("", 0)) as outside:
            listed, port = f"{own_address()}:{outside.getsockname()[1]}", outside.getsockname()[1]
            async with pool(**REAL, process_egress=(listed, "pypi.org:443")) as running:
                pool_port = running.service.url.rpartition(":")[2].split("/")[0]
                others = (f"127.0.0.1:{port}", f"{own_address()}:{pool_port}", "169.254.169.254:80", "other.example:443")
                status, output, errors = await outcome(running, folder, "python", "-c", OUTWARD, listed, *others)
                assert status == 0, errors
                assert output.split("\n")[:5] == ["200", *["HTTP/1.1 403 Forbidden"] * 4], output
            async with pool(**REAL) as running:
                status, output, _ = await outcome(running, folder, "python", "-c", "import os; print('HTTPS_PROXY' in os.environ)")
                assert (status, output) == (0, "False\n")

    asyncio.run(scenario())


@pytest.mark.skipif(own_address() in ("", "127.0.0.1"), reason="this host has no address but its own loopback's")
def test_a_flavor_has_places_of_its_own_in_place_of_the_installations(pool: Make, folder: Path, tmp_path: Path) -> None:
    async def scenario() -> None:
        with socket.create_server(("", 0)) as own, socket.create_server(("", 0)) as everybodys:
            mine, others = (f"{own_address()}:{listener.getsockname()[1]}" for listener in (own, everybodys))
            flavors = tmp_path / "flavors.toml"
            named = {"plain": "", "own": f'egress = ["{mine}", "{mine}"]', "closed": "egress = []"}
            table = '[[flavors]]\nname = "{}"\nmemory = "1 GiB"\nequivalents = [{{model = "cpu-dev"}}]\n{}\n'
            flavors.write_text("\n".join(table.format(name, line) for name, line in named.items()))
            has = "import os; print('HTTPS_PROXY' in os.environ, os.path.exists('/run/egress'))"

            async def said(flavor: str, *words: str) -> list[str]:
                command = await Command.begin(running, folder, "python", "-c", *words, options=("--flavor", flavor))
                status, output, errors = await command.end()
                assert status == 0, errors
                return output.splitlines()

            settings = {"flavors_file": flavors, "default_flavor": "plain", "process_egress": (others,)}
            async with pool(**REAL, **settings) as running:
                assert await said("plain", OUTWARD, others, mine) == ["200", "HTTP/1.1 403 Forbidden"]
                assert await said("own", OUTWARD, mine, others) == ["200", "HTTP/1.1 403 Forbidden"]
                assert await said("closed", has) == ["False False"]
                body = {"memory_bytes": 2**30, "equivalents": [{"model": "cpu-dev"}], "egress": [others]}
                assert (await running.call("PUT", "api/flavors/closed", "operator", body=body)).code == 200
                assert await said("closed", OUTWARD, others, mine) == ["200", "HTTP/1.1 403 Forbidden"]

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", ["*:443", "pypi.org", "169.254.169.254:80", "[::1]:443"])
def test_a_place_that_nobody_is_let_out_to_is_refused_as_the_pool_starts(pool: Make, wrong: str) -> None:
    async def start() -> None:
        async with pool(process_egress=(wrong,)):
            raise AssertionError("it started")

    with pytest.raises(SettingsError, match=r"no place|never let out"):
        asyncio.run(start())


def test_an_operator_may_have_no_processes(pool: Make, folder: Path) -> None:
    async def scenario() -> None:
        async with pool(**REAL, processes=False) as running:
            status, _, errors = await outcome(running, folder, "true")
            assert status == 1 and "runs no processes beside devices" in errors

    asyncio.run(scenario())
