"""Pools that are killed in the middle of a training loop: real processes, real workers, the virtual device."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import fork_server
import psutil
import pytest
import sqlalchemy
from forebay.service import Service
from forebay_wire import messages as wire
from processes import suspend
from waiting_people import Person, call, queue

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built"),
    pytest.mark.skipif(importlib.util.find_spec("forebay._C") is None, reason="the device's extension is not built"),
]
POOL = (sys.executable, "-m", "forebay_pool")
PATIENCE_SECONDS = 60.0
TAKEOVER_SECONDS = 5.0
STEPS = 80
TRAINING = f"""
import sys, time, torch
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
data = torch.randn(64, 16).to("cuda")
for step in range({STEPS}):
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item().hex(), flush=True)
    time.sleep(0.05)
"""


HOLDER = """
import time, torch
kept = torch.zeros(4, device="cuda")
while True:
    kept += 1
    print(kept[0].item(), flush=True)
    time.sleep(0.05)
"""


class _Hub(BaseHTTPRequestHandler):
    """JupyterHub's ``GET user``: the token names the person."""

    def do_GET(self) -> None:
        name = self.headers["Authorization"].split()[-1]
        scopes = ["custom:forebay:compute", "custom:forebay:operate"]
        body = json.dumps({"name": name, "kind": "user", "groups": ["tenant-acme"], "scopes": scopes}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hub/api"
    server.shutdown()
    thread.join()
    server.server_close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Pools:
    """Pool processes on one database; all that they started is ended with them."""

    def __init__(self, folder: Path, hub: str, database_url: str, settings: dict[str, str]) -> None:
        self.folder = folder
        self.database_url = database_url
        self.processes: list[subprocess.Popen[bytes]] = []
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(("FOREBAY_", "JUPYTERHUB_"))}
        self._environment |= {
            "FOREBAY_POOL_HUB_API_URL": hub,
            "FOREBAY_POOL_DATABASE_URL": database_url,
            "FOREBAY_POOL_DEVICES": '[{kind = "cpu", model = "cpu-dev", memory = "2 GiB"}]',
            "FOREBAY_POOL_HEARTBEAT_SECONDS": "0.5",
            "FOREBAY_POOL_IDLE_RELEASE_SECONDS": "20",
            "FOREBAY_POOL_RESUME_SECONDS": "20",
            **settings,
        }

    def start(self, port: int, name: str = "pool", command: Sequence[str] = POOL) -> subprocess.Popen[bytes]:
        log = (self.folder / f"{name}-{len(self.processes)}.log").open("wb")
        options = ["--state-dir", str(self.folder / name), "--port", str(port)]
        with log:
            self.processes.append(subprocess.Popen([*command, *options], env=self._environment, stdout=log, stderr=log))
        return self.processes[-1]

    def train(self, url: str, text: str = TRAINING, python: str | Path | None = None) -> subprocess.Popen[str]:
        """The training loop, or another program, as a process whose pool is at ``url``."""
        environment = {**self._environment, "FOREBAY_URL": url, "FOREBAY_TOKEN": "ada"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([python or fork_server.programs(), "-c", text], env=environment, **pipes)

    def rows(self, statement: str) -> list[Any]:
        engine = sqlalchemy.create_engine(self.database_url)
        with engine.connect() as connection:
            found = list(connection.exec_driver_sql(statement))
        engine.dispose()
        return found

    def one_lease(self) -> tuple[int, str]:
        """How long the only lease there was lasted, whose records are cut at full hours, and how it ended."""
        self.until(lambda: self.rows("select id from lease_segments") and not self.rows("select id from open_leases"))
        rows = self.rows("select lease, duration_ns, close_reason from lease_segments order by started_at_unix_ns")
        assert len({lease for lease, *_ in rows}) == 1, rows
        return sum(duration_ns for _, duration_ns, _ in rows), rows[-1][2]

    def workers(self) -> list[psutil.Process]:
        """The workers of these pools that live, whoever their parent is."""
        found = []
        for process in psutil.process_iter():
            try:
                command = process.cmdline()
                if "forebay_worker" in command and any(str(self.folder) in word for word in command) and process.status() != "zombie":
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()}" for path in sorted(self.folder.glob("*.log")))

    def until(self, holds: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, self.logs()
            time.sleep(0.02)

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            process.wait(20)
        self.until(lambda: not self.workers())


@pytest.fixture
def pools(tmp_path_factory: pytest.TempPathFactory, hub: str, database_url: str) -> Iterator[Callable[..., Pools]]:
    made: list[Pools] = []

    def make(**settings: str) -> Pools:
        made.append(Pools(tmp_path_factory.mktemp("p"), hub, database_url, settings))
        return made[-1]

    yield make
    for one in made:
        for process in (*one.processes, *one.workers()):
            process.kill()
        for child in one.processes:
            child.wait()


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1):
            return True
    except OSError:
        return False


def losses_of(training: subprocess.Popen[str], at_step: int, then: Callable[[], None]) -> list[str]:
    """What the loop printed; ``then`` is done once it has printed that step."""
    assert training.stdout is not None
    lines = []
    for line in training.stdout:
        lines.append(line.strip())
        if line.split()[:1] == [str(at_step)]:
            then()
    _, errors = training.communicate(timeout=PATIENCE_SECONDS)
    assert training.returncode == 0, errors
    return lines


@pytest.fixture(scope="module")
def undisturbed() -> list[str]:
    """The losses on the processor itself."""
    plain = TRAINING.replace('"cuda"', '"cpu"').replace("time.sleep(0.05)", "")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
    done = subprocess.run([fork_server.programs(), "-c", plain], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split("\n")[:-1]


@pytest.mark.databases("sqlite")
def test_a_training_loop_goes_on_over_a_killed_pool_and_its_lease_is_one_bill(pools: Callable[..., Pools], undisturbed: list[str]) -> None:
    mine, port = pools(), free_port()
    mine.start(port)
    mine.until(lambda: answers(port))
    training = mine.train(f"http://127.0.0.1:{port}/")
    began_ns = time.time_ns()

    def kill_and_start() -> None:
        (worker,) = [one for one in mine.workers() if one.num_threads() > 1][:1]
        mine.until(lambda: mine.rows("select id from open_leases"))
        mine.processes[0].kill()
        mine.processes[0].wait()
        time.sleep(0.5)
        assert worker.is_running()
        mine.start(port)

    losses = losses_of(training, STEPS // 3, kill_and_start)
    took_ns = time.time_ns() - began_ns
    assert [line.split()[0] for line in losses] == [str(step) for step in range(STEPS)]
    assert losses == undisturbed
    duration_ns, reason = mine.one_lease()
    assert reason in ("drained", "released")
    assert STEPS * 50_000_000 <= duration_ns <= took_ns
    mine.stop()
    assert mine.rows("select id from sessions") == mine.rows("select id from workers") == []


COUNTING = "import time\nfor step in range(80): print(step, flush=True); time.sleep(0.05)"
PROCESS = f"""
import os, sys, tempfile
from forebay.toolkit.command import main
with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    sys.exit(main(["exec", "-n", "--", "python", "-c", {COUNTING!r}]))
"""


@pytest.mark.full_sweep
@pytest.mark.databases("sqlite")
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_process_beside_a_device_goes_on_over_a_killed_pool_and_its_lease_is_one_bill(pools: Callable[..., Pools]) -> None:
    mine, port = pools(), free_port()
    mine.start(port)
    mine.until(lambda: answers(port))

    def kill_and_start() -> None:
        mine.processes[0].kill()
        mine.processes[0].wait()
        time.sleep(0.5)
        mine.start(port)

    began_ns = time.time_ns()
    lines = losses_of(mine.train(f"http://127.0.0.1:{port}/", PROCESS), STEPS // 3, kill_and_start)
    assert lines == [str(step) for step in range(STEPS)]
    duration_ns, reason = mine.one_lease()
    assert reason == "drained" and STEPS * 50_000_000 <= duration_ns <= time.time_ns() - began_ns
    mine.stop()


@pytest.mark.databases("sqlite")
@pytest.mark.full_sweep
@pytest.mark.parametrize("seconds", [3.0, 20.0, 90.0])
def test_a_training_loop_goes_on_whichever_process_stands_still(
    pools: Callable[..., Pools], undisturbed: list[str], seconds: float, request: pytest.FixtureRequest
) -> None:
    """Pool, worker and program are stopped one after the other, for longer than anybody may be silent here (1.5 s)."""
    mine, port = pools(FOREBAY_POOL_SESSION_HEARTBEAT_SECONDS="0.5", FOREBAY_POOL_RESUME_SECONDS=str(20 + seconds)), free_port()
    mine.start(port)
    mine.until(lambda: answers(port))
    training = mine.train(f"http://127.0.0.1:{port}/", python=sys.executable)
    request.addfinalizer(training.kill)
    began_ns, stopped = time.time_ns(), []

    def stop(pid: int) -> None:
        suspend(pid)
        stopped.append(pid)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def stop_worker() -> None:
        (session,) = mine.rows("select worker from sessions")
        (worker,) = [one for one in mine.workers() if session[0] in one.cmdline()]
        stop(worker.pid)

    stops = {20: lambda: stop(mine.processes[0].pid), 40: stop_worker, 60: lambda: stop(training.pid)}
    assert training.stdout is not None
    losses = []
    for line in training.stdout:
        losses.append(line.strip())
        stops.get(int(line.split()[0]), lambda: None)()
    _, errors = training.communicate(timeout=PATIENCE_SECONDS)
    assert training.returncode == 0, errors + mine.logs()
    assert losses == undisturbed
    assert len(set(stopped)) == 3
    mine.until(lambda: not mine.rows("select id from sessions"))
    rows = mine.rows("select duration_ns, close_reason from lease_segments")
    assert not [row for row in rows if row[1] == "failed"]
    assert STEPS * 50_000_000 <= sum(row[0] for row in rows) <= time.time_ns() - began_ns
    text = mine.logs()
    assert "worker_heard_again" in text or "link_lost" in text
    assert "session_lost" not in text and "pool_stood_still" in text
    mine.stop()


@contextmanager
def unwritable(database_url: str) -> Iterator[None]:
    """Nobody else can write to the database; what they would write waits."""
    engine = sqlalchemy.create_engine(database_url)
    with engine.connect() as connection:
        lock = "BEGIN IMMEDIATE" if engine.dialect.name == "sqlite" else "LOCK TABLE open_leases, sessions IN EXCLUSIVE MODE"
        connection.exec_driver_sql(lock)
        yield
        connection.rollback()
    engine.dispose()


@pytest.mark.full_sweep
@pytest.mark.parametrize("seconds", [10.0, 75.0])
def test_a_database_that_nobody_can_write_to_ends_no_session_and_loses_no_record(
    pools: Callable[..., Pools], undisturbed: list[str], seconds: float
) -> None:
    """``health`` says so meanwhile, and all goes on by itself."""
    mine, port = pools(FOREBAY_POOL_IDLE_RELEASE_SECONDS="0.02"), free_port()  # each pause of the loop ends a lease
    mine.start(port)
    mine.until(lambda: answers(port))
    training = mine.train(f"http://127.0.0.1:{port}/")

    def troubles() -> dict[str, str]:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            found: dict[str, str] = json.load(answer)["troubles"]
            return found

    def lock() -> None:
        with unwritable(mine.database_url):
            time.sleep(seconds)
            assert list(troubles()) == ["database"]

    losses = losses_of(training, STEPS // 3, lock)
    assert losses == undisturbed
    mine.until(lambda: not mine.rows("select id from open_leases") and not mine.rows("select id from sessions"))
    mine.until(lambda: troubles() == {})
    reasons = {reason for (reason,) in mine.rows("select close_reason from lease_segments")}
    assert reasons <= {"idle", "drained", "released", "open"} and len(mine.rows("select id from lease_segments")) > 2
    assert "session_lost" not in mine.logs()
    mine.stop()


@pytest.mark.databases("postgresql")
def test_a_session_whose_first_worker_was_never_written_goes_on_and_that_lease_is_free(pools: Callable[..., Pools]) -> None:
    mine, port = pools(FOREBAY_POOL_WARM_WORKERS="0"), free_port()
    mine.start(port)
    mine.until(lambda: answers(port))
    holder = mine.train(f"http://127.0.0.1:{port}/", HOLDER)
    assert holder.stdout is not None
    mine.until(lambda: mine.rows("select id from sessions") and mine.rows("select id from workers"))
    with unwritable(mine.database_url):
        assert holder.stdout.readline() == "1.0\n"  # the lease is open, and its device computes
        mine.processes[0].kill()
        mine.processes[0].wait()
    ((session, worker),) = mine.rows("select id, worker from sessions")
    assert (worker, mine.rows("select id from open_leases")) == (None, [])
    mine.start(port)
    mine.until(lambda: mine.rows("select id from open_leases"))
    assert mine.rows("select id, worker is null from sessions") == [(session, False)]
    assert mine.rows("select id, epoch from open_leases") == [(f"{session}.2", 2)]
    began = [float(holder.stdout.readline()) for _ in range(20)]
    assert began == [float(number) for number in range(2, 22)]  # what it counted before, and since, is one account
    holder.kill()
    holder.communicate()
    mine.until(lambda: mine.rows("select id from lease_segments"))
    assert {lease for (lease,) in mine.rows("select lease from lease_segments")} == {f"{session}.2"}
    mine.stop()
    assert mine.rows("select id from sessions") == mine.rows("select id from workers") == mine.rows("select id from open_leases") == []


async def _order_survives(mine: Pools, port: int, url: str, then: Callable[[], int]) -> None:
    """``then`` kills the pool at ``port``, and returns where another one leads; ``url`` names both."""
    await call(port, "api/quotas/acme", "PUT", {"device_seconds": 1000, "window_seconds": 600, "priority_max": 50})
    ben, cy, dee, eve = people = Person("ben"), Person("cy", 20), Person("dee"), Person("eve", -5)
    for person in people:
        await person.join(port)
    await ben.ask()
    granted = await ben.hears(wire.Granted)
    await asyncio.sleep(1.5)  # from here on ben has used more than the others
    await ben.say(wire.Release(epoch=granted.epoch))
    await ben.hears(wire.LeaseClosed)
    holder = mine.train(url, HOLDER)
    assert holder.stdout is not None
    try:
        await asyncio.to_thread(holder.stdout.readline)
        for person in people:
            await person.ask(2 if person is ben else 1)
            await person.hears(wire.Queued)
        before = await queue(port, ["cy", "dee", "ben", "eve"])
        mine.until(lambda: len(mine.rows("select id from sessions where waits is not null")) == 4)
        port = await asyncio.to_thread(then)
        for person in (eve, ben, dee, cy):
            await person.back(port, 2 if person is ben else 1)
        assert await queue(port, [name for name, _, _ in before]) == before
        await _window_is_as_the_records_say(mine, port)
        holder.kill()
        assert await cy.hears(wire.Granted)
        await queue(port, ["dee", "ben", "eve"])
    finally:
        holder.kill()
        holder.communicate()
        for person in people:
            await person.leave()


async def _window_is_as_the_records_say(mine: Pools, port: int) -> None:
    ((closed_ns,),) = mine.rows("select sum(duration_ns) from lease_segments")
    ((opened_unix_ns,),) = mine.rows("select opened_unix_ns from open_leases")
    asked_ns = time.time_ns()
    quota = await call(port, "api/quotas/acme")
    answered_ns = time.time_ns()
    least, most = ((int(closed_ns) + now_ns - opened_unix_ns) / 1e9 for now_ns in (asked_ns, answered_ns))
    assert closed_ns >= 1_500_000_000
    assert least - 0.05 <= quota["used_device_seconds"] <= most + 0.65  # a window of 600 s forgets in steps of 0.6 s
    assert quota["decayed_device_seconds"] == pytest.approx(quota["used_device_seconds"], rel=0.05, abs=0.2)


@pytest.mark.databases("sqlite")
def test_a_pool_that_starts_again_knows_who_came_first_and_what_was_used(pools: Callable[..., Pools]) -> None:
    mine, port = pools(), free_port()
    mine.start(port)
    mine.until(lambda: answers(port))

    def again() -> int:
        mine.processes[0].kill()
        mine.processes[0].wait()
        mine.start(port)
        return port

    asyncio.run(_order_survives(mine, port, f"http://127.0.0.1:{port}/", again))
    mine.stop()
    assert mine.rows("select id from sessions") == mine.rows("select id from open_leases") == []


# Two pools on one PostgreSQL


@pytest.fixture
def replicas(tmp_path_factory: pytest.TempPathFactory, hub: str, postgres_url: str) -> Iterator[tuple[Pools, list[int]]]:
    """Two pools, the first of which leads; their ports."""
    ports = [free_port(), free_port()]
    urls = ", ".join(f'"http://127.0.0.1:{port}/"' for port in ports)
    both = Pools(tmp_path_factory.mktemp("r"), hub, postgres_url, {"FOREBAY_POOL_REPLICAS": f"[{urls}]"})
    try:
        both.start(ports[0], "first")
        both.until(lambda: role(ports[0]) == "leader")
        both.start(ports[1], "second")
        both.until(lambda: role(ports[1]) == "follower")
        yield both, ports
    finally:
        for process in both.processes:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        for worker in both.workers():
            worker.kill()


def role(port: int) -> str | None:
    try:
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return str(json.load(answer)["role"])
    except OSError:
        return None


def test_each_pool_tells_prometheus_whether_it_leads(replicas: tuple[Pools, list[int]]) -> None:
    _, ports = replicas
    told = []
    for port in ports:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            told.append([line for line in answer.read().decode().splitlines() if not line.startswith("#")])
    assert "forebay_pool_leader 1.0" in told[0]
    assert told[1] == ["forebay_pool_leader 0.0"]


def address_of(ports: list[int]) -> str:
    return ",".join(f"http://127.0.0.1:{port}/" for port in ports)


def test_a_follower_says_where_the_leader_is(replicas: tuple[Pools, list[int]]) -> None:
    _, ports = replicas
    request = Request(f"http://127.0.0.1:{ports[1]}/api/flavors?x=1", headers={"Authorization": "token ada"})
    with pytest.raises(HTTPError) as caught:
        urlopen(request, timeout=5)  # noqa: S310 - our own address
    with caught.value as error:
        assert (error.code, error.headers["Retry-After"]) == (503, "1")
        assert error.headers["Location"] == f"http://127.0.0.1:{ports[0]}/api/flavors?x=1"
        told = json.load(error)
    sentence = f"This pool waits to take over; another one leads. Ask http://127.0.0.1:{ports[0]}/."
    assert told == {"error": {"code": "follower", "message": sentence}}
    anywhere = Service(f"http://127.0.0.1:{ports[1]}/", "ada", (f"http://127.0.0.1:{ports[0]}/",))
    assert anywhere.get("api/choice") == {"flavor": "dev.1gb"}


def test_the_second_pool_takes_over_within_five_seconds_of_the_firsts_death(
    replicas: tuple[Pools, list[int]], undisturbed: list[str], record_property: Callable[[str, object], None]
) -> None:
    both, ports = replicas
    training = both.train(address_of(ports))

    def kill() -> None:
        both.until(lambda: both.rows("select id from open_leases"))
        both.processes[0].kill()
        began = time.monotonic()
        both.until(lambda: role(ports[1]) == "leader", TAKEOVER_SECONDS)
        record_property("takeover_seconds", time.monotonic() - began)
        print(f"took over in {time.monotonic() - began:.2f} s")

    losses = losses_of(training, STEPS // 3, kill)
    assert losses == undisturbed
    duration_ns, reason = both.one_lease()
    assert (reason in ("drained", "released"), duration_ns >= STEPS * 50_000_000) == (True, True)


def test_a_pool_that_was_stopped_and_wakes_up_writes_nothing_kills_nobody_and_follows(
    replicas: tuple[Pools, list[int]], undisturbed: list[str]
) -> None:
    both, ports = replicas
    training = both.train(address_of(ports))

    def stop_and_wake() -> None:
        both.until(lambda: both.rows("select id from open_leases"))
        (before,) = both.rows("select epoch from leadership")
        suspend(both.processes[0].pid)
        both.until(lambda: role(ports[1]) == "leader", 2 * TAKEOVER_SECONDS)
        assert both.rows("select epoch from leadership") == [(before[0] + 1,)]
        time.sleep(2.0)  # longer than the first pool's heartbeats allow: it would take its worker for dead
        both.processes[0].send_signal(signal.SIGCONT)
        both.until(lambda: role(ports[0]) == "follower")

    losses = losses_of(training, STEPS // 3, stop_and_wake)
    assert losses == undisturbed
    both.one_lease()
    assert role(ports[1]) == "leader"


def test_a_leader_that_is_told_to_stop_leaves_its_sessions_to_the_second(replicas: tuple[Pools, list[int]], undisturbed: list[str]) -> None:
    both, ports = replicas
    training = both.train(address_of(ports))

    def hand_over() -> None:
        both.processes[0].terminate()
        assert both.processes[0].wait(20) == 0
        both.until(lambda: role(ports[1]) == "leader", TAKEOVER_SECONDS)

    assert losses_of(training, STEPS // 3, hand_over) == undisturbed
    both.one_lease()


def test_the_second_pool_knows_who_came_first_and_what_was_used(replicas: tuple[Pools, list[int]]) -> None:
    both, ports = replicas

    def fail_over() -> int:
        both.processes[0].kill()
        both.until(lambda: role(ports[1]) == "leader")
        return ports[1]

    asyncio.run(_order_survives(both, ports[0], address_of(ports), fail_over))
    assert role(ports[1]) == "leader"
