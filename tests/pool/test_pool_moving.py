"""Sessions move between real workers in the middle of a program: it prints what it would have printed undisturbed, bit by bit."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import fork_server
import psutil
import pytest
from forebay_pool.model.events import SessionMoved, WorkerSaid
from forebay_pool.model.instructions import TellClient
from forebay_wire import messages as wire
from processes import suspend

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built"),
    pytest.mark.skipif(importlib.util.find_spec("forebay._C") is None, reason="the device's extension is not built"),
]
Make = Callable[..., Any]
PATIENCE_SECONDS = 60.0
STEPS = 60
TRAINING = f"""
import hashlib, time, torch
torch.manual_seed(3)
layers = torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)
model = torch.nn.Sequential(*layers)
model = model.to("DEVICE")
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
large = torch.randn(1 << 20)
data = torch.randn(64, 16).to("DEVICE")
kept = large.to("DEVICE")
for step in range({STEPS}):
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    noise = torch.rand(8, device="DEVICE") if step % 3 == 0 else None
    if step % 7 == 0:
        again = large.to("DEVICE")  # bytes the worker holds
        kept = kept + again
    print(step, loss.item().hex(), flush=True)
    time.sleep(PAUSE)
state = [p.detach().cpu().numpy().tobytes() for p in model.state_dict().values()] + [kept.cpu().numpy().tobytes()]
for s in optimizer.state_dict()["state"].values():
    state += [v.cpu().numpy().tobytes() for v in s.values()]
print("state", hashlib.sha256(b"".join(state)).hexdigest(), flush=True)
"""
TWINS = [{"kind": "cpu", "model": "cpu-dev", "memory": "1 GiB", "count": 2}]
FLAVORS = """
[[flavors]]
name = "dev.1gb"
memory = "1 GiB"
equivalents = [{ model = "cpu-dev", count = 1 }, { model = "cpu-other", count = 1 }]
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # sums come out the same only where the work is cut the same
    flavors = tmp_path / "flavors.toml"
    flavors.write_text(FLAVORS)
    groups = [{"kind": "cpu", "model": model, "memory": "1 GiB"} for model in ("cpu-dev", "cpu-other")]
    return {
        "worker_python": Path(sys.executable),  # forks die a moment after they are killed
        "devices": groups,
        "flavors_file": flavors,
        "default_flavor": "dev.1gb",
        "warm_workers": 1,
        "heartbeat_seconds": 0.5,
        "idle_release_seconds": 30.0,
    }


def program(device: str, pause: float) -> str:
    return TRAINING.replace("DEVICE", device).replace("PAUSE", str(pause))


def plain_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}


class Running:
    """The program as a process on the pool's devices."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            self.lines.append((await self.process.stdout.readline()).decode().strip())
        return self.lines[-1]

    async def until_step(self, step: int) -> None:
        while not (await self.line()).startswith(f"{step} "):
            assert self.lines[-1], await self.errors()

    async def rest(self) -> list[str]:
        while await self.line():
            pass
        errors = await self.errors()
        assert self.process.returncode == 0, errors
        return self.lines[:-1]

    async def errors(self) -> str:
        assert self.process.stderr is not None
        text = (await self.process.stderr.read()).decode()
        await asyncio.wait_for(self.process.wait(), PATIENCE_SECONDS)
        return text


@contextlib.asynccontextmanager
async def started(
    pool: Any, pause: float = 0.02, who: str = "ada", text: str | None = None, python: str | None = None, **variables: str
) -> AsyncIterator[Running]:
    environment = {**plain_environment(), **variables, "FOREBAY_URL": pool.service.url, "FOREBAY_TOKEN": who, "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = (python or fork_server.programs(), "-c", text or program("cuda", pause))
    process = await asyncio.create_subprocess_exec(*command, env=environment, **pipes)
    try:
        yield Running(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the program prints when nothing moves."""
    environment = {**plain_environment(), "FOREBAY_URL": "local", "OMP_NUM_THREADS": "1"}
    command = [fork_server.programs(), "-c", program("cuda", 0)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def session_of(running: Any) -> Any:
    (session,) = running.machine.sessions.values()
    return session


async def move(running: Any) -> None:
    """Until the session is at another worker."""
    session = session_of(running)
    worker = session.worker.id
    await running.call("POST", f"api/sessions/{session.id}/move", body={})
    await running.until(lambda: session.image is None and session.worker is not None and session.worker.id != worker)


def notes(caplog: pytest.LogCaptureFixture, action: str) -> int:
    return sum(getattr(record, "action", None) == action for record in caplog.records)


def test_a_running_loop_is_moved_by_an_operator_and_does_not_notice(
    pool: Make, settings: dict[str, Any], undisturbed: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with pool(**settings) as running, started(running) as training:
            models = []
            for step in (5, 15, 25, 35):
                await training.until_step(step)
                session = session_of(running)
                models.append(session.worker.device.model)
                moved = notes(caplog, "session_moved")
                reply = await running.call("POST", f"api/sessions/{session.id}/move", body={})
                assert reply.code == 202, reply.body
                await running.until(lambda seen=moved: notes(caplog, "session_moved") > seen)
            assert models == ["cpu-dev", "cpu-other", "cpu-dev", "cpu-other"] or models == ["cpu-other", "cpu-dev", "cpu-other", "cpu-dev"]
            assert await training.rest() == undisturbed
            await running.until(lambda: not running.machine.sessions)
            await running.until(lambda: len(running.records()) == 5)
            reasons = [record["close_reason"] for record in running.records()]
            assert reasons == ["moved"] * 4 + ["drained"]

    caplog.set_level("INFO")
    asyncio.run(scenario())


def test_a_node_that_is_emptied_in_the_middle_of_a_loop_sends_it_to_another_model_and_it_does_not_notice(
    pool: Make, settings: dict[str, Any], undisturbed: list[str]
) -> None:
    groups = [group | {"node": node} for group, node in zip(settings["devices"], ("east", "west"), strict=True)]

    async def scenario() -> None:
        async with pool(**settings | {"devices": groups}) as running, started(running) as training:
            seen = []
            for step in (5, 20):
                await training.until_step(step)
                lease, worker = session_of(running).lease, session_of(running).worker
                assert lease is not None and lease.state == "open"
                seen.append(worker.device.node)
                row = json.loads((await running.call("PUT", f"api/nodes/{seen[-1]}", body={"drain": True, "grace_seconds": 1})).body)
                assert (row["state"], row["leases"]) == ("draining", 1)
                await running.until(lambda before=worker: session_of(running).lease and session_of(running).worker is not before)
                await running.until(lambda node=seen[-1]: not running.machine.fleet.seats[f"{node}/cpu:0"].workers)
                assert (await running.call("PUT", f"api/nodes/{seen[-1]}", body={"drain": False})).code == 200
            assert set(seen) == {"east", "west"}
            assert await training.rest() == undisturbed
            await running.until(lambda: len(running.records()) == 3)
            assert {record["device_model"] for record in running.records()} == {"cpu-dev", "cpu-other"}

    asyncio.run(scenario())


def kill(running: Any, worker: str) -> None:
    os.kill(running.service.shell.launcher._pids[worker], signal.SIGKILL)


def test_a_worker_that_is_killed_while_it_fetches_is_replaced_and_nothing_is_lost(
    pool: Make, settings: dict[str, Any], undisturbed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with pool(**settings) as running, started(running) as training:
            await training.until_step(5)
            session = session_of(running)
            await running.call("POST", f"api/sessions/{session.id}/move", body={})
            await running.until(lambda: session.image is not None and session.worker is not None)
            kill(running, session.worker.id)
            assert await training.rest() == undisturbed

    asyncio.run(scenario())


@pytest.mark.parametrize("image_seconds", ["0.05", "60"])
def test_a_session_that_has_moved_goes_on_from_an_image_if_its_worker_dies(
    pool: Make, settings: dict[str, Any], undisturbed: list[str], tmp_path: Path, image_seconds: str
) -> None:
    """From one that its next worker kept, or from the one that the worker kept which it has left."""
    folders = {"process": tmp_path / "images"}
    groups = [{"kind": "cpu", "model": "cpu-dev", "memory": "1 GiB", "count": 2}]

    async def scenario() -> None:
        async with pool(**settings | {"devices": groups, "image_dirs": folders}) as running:
            async with started(running, FOREBAY_IMAGE_SECONDS=image_seconds) as training:
                await training.until_step(5)
                session = session_of(running)
                await running.call("POST", f"api/sessions/{session.id}/move", body={})
                await running.until(lambda: session.image is not None)
                number = session.replay.image.number
                newer = image_seconds != "60"
                await running.until(lambda: session.image is None and session.replay.image.number >= number + newer)
                assert session.replay.image.bytes > 4 << 20
                kill(running, session.worker.id)
                assert await training.rest() == undisturbed
            await running.until(lambda: not running.machine.sessions)
            await running.until(lambda: not list(folders["process"].iterdir()))

    asyncio.run(scenario())


def test_the_death_of_the_worker_that_it_has_left_does_not_end_a_session_with_images(
    pool: Make, settings: dict[str, Any], undisturbed: list[str], tmp_path: Path
) -> None:
    stored = {"warm_workers": 0, "image_dirs": {"process": tmp_path / "images"}}

    async def scenario() -> None:
        async with pool(**settings | stored) as running, started(running) as training:
            await training.until_step(5)
            session = session_of(running)
            await running.call("POST", f"api/sessions/{session.id}/move", body={})
            await running.until(lambda: session.image is not None)
            kill(running, session.image.id)
            assert await training.rest() == undisturbed

    asyncio.run(scenario())


@pytest.mark.parametrize("moves", [0, 1])
def test_the_death_of_the_worker_before_the_image_of_the_move_is_whole_loses_nothing(
    pool: Make, settings: dict[str, Any], undisturbed: list[str], tmp_path: Path, moves: int
) -> None:
    """Its client sends all from the beginning again, or from the image that an earlier move left; and moves on as if nothing had been."""
    async def scenario() -> None:
        async with pool(**settings | {"devices": TWINS, "image_dirs": {"process": tmp_path / "images"}}) as running:
            async with started(running, FOREBAY_IMAGE_SECONDS="60") as training:
                await training.until_step(5)
                session = session_of(running)
                for _ in range(moves):
                    await move(running)
                    await training.until_step(12)
                (folder,) = map(Path, running.service.shell.image_folders.all_of(session.secret))
                folder.mkdir(exist_ok=True)
                os.mkfifo(folder / "unfinished")  # of which the worker cannot write more than a pipe holds
                reading = os.open(folder / "unfinished", os.O_RDONLY | os.O_NONBLOCK)
                worker = session.worker.id
                await running.call("POST", f"api/sessions/{session.id}/move", body={})
                await running.until(lambda: select.select([reading], [], [], 0)[0])
                assert (folder / "1").exists() == bool(moves)
                kill(running, worker)
                os.close(reading)
                (folder / "unfinished").unlink()
                await training.until_step(20)
                assert session.worker.id != worker
                await move(running)
                await training.until_step(30)
                kill(running, session.worker.id)
                assert await training.rest() == undisturbed

    asyncio.run(scenario())


def unheard(running: Any, kind: type[wire.Message]) -> list[wire.Message]:
    """From now on the pool hears no message of this kind; those that it did not hear."""
    apply, messages = running.service.shell.apply, []

    def heard(event: Any, now_ns: int | None = None) -> None:
        if isinstance(event, WorkerSaid) and isinstance(event.message, kind):
            messages.append(event.message)
        else:
            apply(event, now_ns)

    running.service.shell.apply = heard
    return messages


def test_a_worker_that_dies_before_its_pool_hears_that_the_session_left_loses_nothing(
    pool: Make, settings: dict[str, Any], undisturbed: list[str], tmp_path: Path
) -> None:
    """The image of the move is there, and so is what came before: the client goes on from the image."""
    async def scenario() -> None:
        async with pool(**settings | {"devices": TWINS, "image_dirs": {"process": tmp_path / "images"}}) as running:
            async with started(running, FOREBAY_IMAGE_SECONDS="60") as training:
                await training.until_step(5)
                session, left = session_of(running), unheard(running, wire.Left)
                await running.call("POST", f"api/sessions/{session.id}/move", body={})
                await running.until(lambda: left)
                assert session.image is None and session.replay.image is None and left[0].image == 1
                kill(running, session.worker.id)
                assert await training.rest() == undisturbed

    asyncio.run(scenario())


@pytest.mark.parametrize("images", [True, False])
def test_a_worker_that_dies_while_it_is_greeted_is_replaced_and_nothing_is_lost(
    pool: Make, settings: dict[str, Any], undisturbed: list[str], tmp_path: Path, images: bool
) -> None:
    folders = {"process": tmp_path / "images"} if images else {}

    async def scenario() -> None:
        async with pool(**settings | {"devices": TWINS, "image_dirs": folders}) as running, started(running) as training:
            granted: list[str] = []
            await training.until_step(5)
            first, shell = session_of(running).worker.id, running.service.shell
            tell = shell._do[TellClient]

            def told(instruction: TellClient) -> None:
                if isinstance(instruction.message, wire.Granted) and instruction.message.worker != first and not granted:
                    granted.append(instruction.message.worker)
                    suspend(shell.launcher._pids[granted[0]])
                tell(instruction)

            shell._do[TellClient] = told
            await running.call("POST", f"api/sessions/{session_of(running).id}/move", body={})
            await running.until(lambda: granted)
            await asyncio.sleep(0.5)  # its socket takes the greeting
            kill(running, granted[0])
            assert await training.rest() == undisturbed
            await running.until(lambda: len(running.records()) == 3)
            assert [record["close_reason"] for record in running.records()] == ["moved", "failed", "drained"]

    asyncio.run(scenario())


def test_a_read_that_a_death_cut_is_answered_before_the_session_leaves_the_next_worker(
    pool: Make, settings: dict[str, Any], undisturbed: list[str]
) -> None:
    """It is told to move on in the moment in which it comes there, while a thread waits for what the dead worker owed."""
    async def scenario() -> None:
        async with pool(**settings | {"devices": TWINS}) as running, started(running) as training:
            await training.until_step(5)
            session, shell = session_of(running), running.service.shell
            first, tell, moved = session.worker.id, shell._do[TellClient], []

            def told(instruction: TellClient) -> None:
                tell(instruction)
                if isinstance(instruction.message, wire.Granted) and instruction.message.worker != first and not moved:
                    moved.append(instruction.message.worker)
                    asyncio.get_running_loop().call_soon(shell.apply, SessionMoved(session.id))

            shell._do[TellClient] = told
            suspend(shell.launcher._pids[first])
            await asyncio.sleep(0.3)  # the program waits for a number
            kill(running, first)
            assert await training.rest() == undisturbed
            await running.until(lambda: len(running.records()) == 3)
            assert [record["close_reason"] for record in running.records()] == ["failed", "moved", "drained"]

    asyncio.run(scenario())


def test_the_death_of_the_worker_that_it_has_left_ends_a_session_without_images(pool: Make, settings: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with pool(**settings | {"warm_workers": 0, "image_dirs": {}}) as running, started(running) as training:
            await training.until_step(5)
            session = session_of(running)
            await running.call("POST", f"api/sessions/{session.id}/move", body={})
            await running.until(lambda: session.image is not None)
            kill(running, session.image.id)
            while await training.line():
                pass
            errors = await training.errors()
            assert training.process.returncode != 0
            assert "The worker that held this session's tensors is gone (" in errors

    asyncio.run(scenario())


def test_a_program_that_waits_for_a_worker_that_nobody_hears_any_more_is_told_so_by_its_pool(
    pool: Make, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when its host is cut off: its connections stay open, and the pool cannot end it."""
    soon = {"resume_seconds": 1.0, "call_seconds_max": 2.0, "replay_seconds_max": 0.0}  # for so long it may come to itself

    async def scenario() -> None:
        async with pool(**settings, **soon) as running, started(running) as training:
            await training.until_step(5)
            launcher, worker = running.service.shell.launcher, session_of(running).worker
            with monkeypatch.context() as cut:
                cut.setattr(launcher, "kill", lambda worker: None)
                suspend(launcher._pids[worker.id])
                while await training.line():
                    pass
                errors = await training.errors()
            launcher.kill(worker.id)
            told = "RuntimeError: this tensor is lost: The worker that held this session's tensors is gone ("
            assert told in errors and training.process.returncode == 1, errors

    asyncio.run(scenario())


def test_a_process_that_is_killed_in_the_middle_of_a_move_leaves_nothing_behind(pool: Make, settings: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with pool(**{**settings, "warm_workers": 0, "resume_seconds": 1.0}) as running, started(running) as training:
            await training.until_step(5)
            session = session_of(running)
            await running.call("POST", f"api/sessions/{session.id}/move", body={})
            await running.until(lambda: session.image is not None)
            training.process.kill()
            await running.until(lambda: not running.machine.sessions)
            await running.until(lambda: all(worker.spare for worker in running.machine.fleet.workers.values()))
            await running.until(lambda: running.records())
            first, *later = [record["close_reason"] for record in running.records()]
            assert first == "moved" and later in ([], ["released"])

    asyncio.run(scenario())


def test_a_stopped_process_stays_where_it_is_and_goes_on_there(pool: Make, settings: dict[str, Any], undisturbed: list[str]) -> None:
    async def scenario() -> None:
        async with pool(**{**settings, "park_seconds": 2.0}) as running, started(running, python=sys.executable) as training:
            await training.until_step(5)
            session = session_of(running)
            worker = session.worker
            suspend(training.process.pid)
            await running.call("POST", f"api/sessions/{session.id}/move", body={})
            await running.until(lambda: worker.stays)
            assert session.worker is worker
            training.process.send_signal(signal.SIGCONT)
            assert await training.rest() == undisturbed

    asyncio.run(scenario())


def kill_at_the_grant(running: Any, times: int) -> list[str]:
    """Kills the worker that has fetched a session, as often as that, just before its client hears that it may go there; their names."""
    shell, killed = running.service.shell, []
    tell = shell._do[TellClient]

    def told(instruction: TellClient) -> None:
        session = running.machine.sessions.get(instruction.session)
        message = instruction.message
        moves = isinstance(message, wire.Granted) and session is not None and session.image is not None
        if moves and message.worker not in killed and len(killed) < times:
            killed.append(message.worker)
            process = psutil.Process(shell.launcher._pids[killed[-1]])
            process.kill()
            with contextlib.suppress(psutil.TimeoutExpired, psutil.NoSuchProcess):
                process.wait(1)
        tell(instruction)

    shell._do[TellClient] = told
    return killed


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.full_sweep)])
def test_a_worker_that_dies_before_the_client_is_there_is_replaced_and_nothing_is_lost(
    pool: Make, settings: dict[str, Any], undisturbed: list[str], times: int
) -> None:
    async def scenario() -> None:
        async with pool(**settings) as running, started(running) as training:
            killed = kill_at_the_grant(running, times)
            await training.until_step(5)
            session = session_of(running)
            first = session.worker.id
            await running.call("POST", f"api/sessions/{session.id}/move", body={})
            await running.until(lambda: len(killed) == times and session.lease is not None and session.image is None)
            assert session.worker.id not in (first, *killed)
            assert await training.rest() == undisturbed
            await running.until(lambda: len(running.records()) == 2 + times)
            records = running.records()
            assert [record["close_reason"] for record in records] == ["moved", *["failed"] * times, "drained"]
            assert all(record["duration_ns"] == 0 for record in records if record["close_reason"] == "failed")

    asyncio.run(scenario())


@pytest.mark.full_sweep
def test_workers_that_die_again_and_again_under_a_moving_session_end_it_with_a_sentence(pool: Make, settings: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with pool(**settings) as running, started(running) as training:
            killed = kill_at_the_grant(running, 99)
            await training.until_step(5)
            await running.call("POST", f"api/sessions/{session_of(running).id}/move", body={})
            while await training.line():
                pass
            assert "3 workers in a row died as this session moved to them (" in await training.errors()
            assert len(killed) == 3
            await running.until(lambda: all(worker.spare for worker in running.machine.fleet.workers.values()))

    asyncio.run(scenario())


def test_what_a_dead_worker_did_is_done_again_on_a_device_of_its_model_alone(
    pool: Make, settings: dict[str, Any], undisturbed: list[str]
) -> None:
    async def scenario() -> None:
        async with pool(**settings) as running, started(running) as training:
            await training.until_step(5)
            session, worker = session_of(running), session_of(running).worker
            device = worker.device
            assert (await running.call("PUT", f"api/devices/{device.id}", body={"cordoned": True, "cause": "a look"})).code == 200
            kill(running, worker.id)
            await running.until(lambda: session.request is not None and session.request.told is not None)
            assert session.request.place is None, "another model is free"
            assert (await running.call("PUT", f"api/devices/{device.id}", body={"cordoned": False, "cause": ""})).code == 200
            await running.until(lambda: session.lease is not None)
            assert session.lease.device.model == device.model
            assert await training.rest() == undisturbed

    asyncio.run(scenario())
