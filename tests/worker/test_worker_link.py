"""A worker process between a pool that speaks the worker link and a client that speaks the command stream."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fork_server
import psutil
import pytest
import torch
from conftest import STANDIN_FINDING
from devices import TWO_DEVICES, options_of
from forebay_wire import messages, stream
from forebay_wire.greetings import Resume, Resumed
from forebay_wire.messages import Assign, Close, End, Open, Park, Restore
from forebay_wire.stream import Argument, Geometry, Output, OutputTag, Tag, Template
from forebay_worker.link import Calls, Standing
from forebay_worker.pytorch import GROWING_SEGMENTS, SPINS, set_up_libraries
from link_to_pool import WAIT_SECONDS_MAX, Pool
from processes import suspend

TICKET = bytes(range(32))
TOKEN = "the-workers-own-token"
FOUR = Geometry(6, (4,), (1,))
MODELS = {
    "cpu:0": messages.DeviceModel(kind="cpu", model="cpu-dev"),
    "standin:0": messages.DeviceModel(kind="standin", model="stand-in"),
    TWO_DEVICES: messages.DeviceModel(kind="cpu", model="cpu-dev"),
}


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool()
    yield pool
    pool.stop()


StartLinked = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start_linked(
    pool: Pool, socket_folder: Path, device: str, device_environment: dict[str, str], worker_python: Path
) -> Iterator[StartLinked]:
    """Starts workers that call the pool; they end with the test, which fails where the stand-in found a mistake."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str, python: str | Path = worker_python) -> subprocess.Popen[str]:
        command = [str(python), "-m", "forebay_worker", "--pool", pool.url, "--worker", "w-1", *options_of(device)]
        command += ["--socket-dir", str(socket_folder), "--threads", "1", *options]
        environment = {**device_environment, "FOREBAY_WORKER_TOKEN": TOKEN}
        started.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment))
        return started[-1]

    yield start
    said = "".join(ended(process) for process in started)
    assert STANDIN_FINDING not in said, said


def ended(process: subprocess.Popen[str]) -> str:
    """Ends a worker; what it wrote to standard error that the test has not read."""
    process.terminate()
    try:
        return process.communicate(timeout=WAIT_SECONDS_MAX)[1]
    finally:
        process.kill()


def assign(pool: Pool, idle_release_seconds: float = 600, heartbeat_seconds: float = 0.2) -> messages.Ready:
    ready = pool.expect(messages.Ready)
    pool.send(
        Assign(
            session="s-1",
            ticket=TICKET.hex(),
            memory_limit_bytes=1 << 28,
            idle_release_seconds=idle_release_seconds,
            heartbeat_seconds=heartbeat_seconds,
        )
    )
    assert pool.expect(messages.Assigned).session == "s-1"
    return ready


def open_lease(pool: Pool, epoch: int, wait: bool = True) -> None:
    """Returns when the worker has opened its gate, as its heartbeat tells."""
    pool.send(Open(epoch=epoch, memory_limit_bytes=1 << 28))
    while wait and pool.expect(messages.Heartbeat).epoch != epoch:
        pass


def prepare(client: Any) -> tuple[int, int]:
    """A template that adds, and a storage of ones: (template, storage)."""
    tensor = Argument(Tag.TENSOR, geometry=FOUR)
    output = Output(OutputTag.NEW, geometry=FOUR, storage_bytes=16)
    number = client.template(Template(client.operator(torch.ops.aten.add.Tensor), (tensor, tensor, Argument(Tag.SCALAR_INT)), (output,)))
    return number, client.upload(torch.ones(4))


def add(client: Any, number: int, storage: int) -> int:
    new: int = client.storage()
    client.writer.add(stream.Call(number, (stream.View(storage), stream.View(storage), 1, new)))
    return new


@pytest.fixture
def linked_client(pool: Pool, start_linked: StartLinked, make_client: Callable[[str], Any]) -> Iterator[Any]:
    """A client that was let in by an assigned worker without a lease."""
    start_linked()
    ready = assign(pool)
    client = make_client(ready.address)
    with client.socket:
        assert isinstance(client.hello(), stream.Welcome)
        yield client


def test_a_worker_says_who_it_is_and_shows_its_token(pool: Pool, start_linked: StartLinked, socket_folder: Path, device: str) -> None:
    process = start_linked(python=sys.executable)
    ready = pool.expect(messages.Ready)
    assert ready.worker == "w-1"
    assert ready.address == f"unix:{socket_folder}/w-1.sock"
    assert ready.torch == torch.__version__
    assert ready.device == MODELS[device]
    assert ready.pid == process.pid
    assert pool.tokens == [f"token {TOKEN}"]


@pytest.mark.everywhere
def test_work_waits_for_the_lease_and_bookkeeping_does_not(pool: Pool, linked_client: Any) -> None:
    client = linked_client
    client.send(stream.Allocate(900, 16), stream.Free((900,)), stream.Sync(1))
    assert isinstance(client.reply(), stream.Done)
    pool.expect_silence()
    number, ones = prepare(client)
    total = add(client, number, ones)
    request = client.request()
    client.send(stream.Read(request, total, 0, 16))
    pool.expect(messages.Starved)
    pool.expect_silence()
    open_lease(pool, 1)
    reply = client.reply()
    assert isinstance(reply, stream.Data)
    assert torch.frombuffer(bytearray(reply.data), dtype=torch.float32).tolist() == [2.0] * 4


@pytest.mark.everywhere
def test_a_mark_drains_the_lease_and_later_work_starves(pool: Pool, linked_client: Any) -> None:
    client = linked_client
    open_lease(pool, 1)
    number, ones = prepare(client)
    for _ in range(100):
        add(client, number, ones)
    client.send(stream.Mark(1))
    assert pool.expect(messages.Drained).epoch == 1
    client.send(stream.Mark(1), stream.Sync(5))
    assert isinstance(client.reply(), stream.Done), "a mark of an old lease and a sync with nothing before it need none"
    add(client, number, ones)
    client.send(stream.Sync(6))
    pool.expect(messages.Starved)
    open_lease(pool, 2)
    assert isinstance(client.reply(), stream.Done)
    client.send(stream.Mark(2))
    assert pool.expect(messages.Drained).epoch == 2


def test_a_mark_that_overtakes_the_pool_s_word_of_its_lease_drains_it_at_once(pool: Pool, linked_client: Any) -> None:
    client = linked_client
    client.send(stream.Mark(1), stream.Sync(1))
    assert isinstance(client.reply(), stream.Done)
    open_lease(pool, 1, wait=False)
    assert pool.expect(messages.Drained).epoch == 1


@pytest.mark.everywhere
def test_close_stops_at_a_command_boundary(pool: Pool, linked_client: Any) -> None:
    client = linked_client
    open_lease(pool, 1)
    number, ones = prepare(client)
    client.send(stream.Sync(1))
    client.reply()
    pool.send(Close(epoch=1))
    assert pool.expect(messages.Closed).epoch == 1
    add(client, number, ones)
    client.send(stream.Sync(2))
    pool.expect(messages.Starved)
    open_lease(pool, 2)
    assert isinstance(client.reply(), stream.Done)


def test_idleness_closes_the_lease_and_is_measured(pool: Pool, start_linked: StartLinked, make_client: Callable[[str], Any]) -> None:
    start_linked()
    client = make_client(assign(pool, idle_release_seconds=0.2).address)
    with client.socket:
        client.hello()
        open_lease(pool, 7, wait=False)
        number, ones = prepare(client)
        add(client, number, ones)
        client.send()
        idle = pool.expect(messages.Message)
        if isinstance(idle, messages.Starved):  # the work came before the order to open
            idle = pool.expect(messages.Message)
        assert isinstance(idle, messages.Idle) and idle.epoch == 7
        assert 0.2e9 <= idle.idle_ns < 5e9
        pool.expect_silence()
        add(client, number, ones)
        client.send()
        pool.expect(messages.Starved)


def test_a_lease_that_nobody_uses_is_idle_too(pool: Pool, start_linked: StartLinked) -> None:
    start_linked()
    assign(pool, idle_release_seconds=0.2)
    open_lease(pool, 1, wait=False)
    assert pool.expect(messages.Idle).epoch == 1


@pytest.mark.everywhere
def test_heartbeats_tell_epoch_memory_and_commands(pool: Pool, linked_client: Any) -> None:
    client = linked_client
    open_lease(pool, 3)
    client.send(stream.Allocate(1, 1 << 20), stream.Sync(1))
    client.reply()
    for _ in range(20):
        beat = pool.expect(messages.Heartbeat)
        if beat.epoch == 3 and beat.commands >= 2:
            break
    assert (beat.epoch, beat.memory_bytes, beat.commands) == (3, 1 << 20, 2)
    assert beat.busy_ns > 0


@pytest.mark.parametrize("device", ["cpu:0"])  # on others a call has returned while its kernel still runs
def test_heartbeats_tell_which_operator_a_call_is_in_that_lasts(pool: Pool, linked_client: Any) -> None:
    client = linked_client
    open_lease(pool, 1)
    operator = client.operator(torch.ops.aten.special_legendre_polynomial_p.default)
    tensor = Argument(Tag.TENSOR, geometry=FOUR)
    number = client.template(Template(operator, (tensor, tensor), (Output(OutputTag.NEW, geometry=FOUR, storage_bytes=16),)))
    half, degree = client.upload(torch.full((4,), 0.5)), client.upload(torch.full((4,), 1.5e8))
    client.send(stream.Call(number, (stream.View(half), stream.View(degree), client.storage())), stream.Sync(1))
    seconds = []
    while len(seconds) < 2:
        beat = pool.expect(messages.Heartbeat)
        if beat.operator:
            assert beat.operator == "aten::special_legendre_polynomial_p"
            seconds.append(beat.operator_seconds)
    assert 0 < seconds[0] < seconds[1]
    client.reply()
    while pool.expect(messages.Heartbeat).operator:
        pass


@pytest.mark.parametrize("device", [TWO_DEVICES])
def test_heartbeats_tell_that_a_device_waits_for_another_one(
    pool: Pool, start_linked: StartLinked, make_client: Callable[[str], Any]
) -> None:
    worker = start_linked(python=sys.executable)
    client = make_client(assign(pool).address)
    with client.socket:
        client.hello()
        open_lease(pool, 1)
        storages = [client.upload(torch.ones(4)) for _ in range(2)]
        assert isinstance(client.sync(), stream.Done)
        (other,) = psutil.Process(worker.pid).children()
        suspend(other.pid)
        client.send(*(stream.Read(request, storage, 0, 16) for request, storage in enumerate(storages, 7)))
        seconds = []
        while len(seconds) < 2:
            beat = pool.expect(messages.Heartbeat)
            if beat.operator:
                assert beat.operator == "copying between devices"
                seconds.append(beat.operator_seconds)
        assert 0 < seconds[0] < seconds[1]
        other.resume()
        assert [client.reply().data for _ in storages] == [bytes(torch.ones(4).view(torch.uint8).tolist())] * 2


@pytest.mark.everywhere
def test_a_parked_session_finds_its_tensors_again(pool: Pool, linked_client: Any) -> None:
    client = linked_client
    open_lease(pool, 1)
    _, ones = prepare(client)
    client.send(stream.Mark(1))
    pool.expect(messages.Drained)
    pool.send(Park())
    assert pool.expect(messages.Parked).bytes == 16
    pool.send(Restore())
    pool.expect(messages.Restored)
    open_lease(pool, 2)
    assert torch.frombuffer(bytearray(client.read(ones, 16)), dtype=torch.float32).tolist() == [1.0] * 4


def test_tensors_whose_parking_ends_after_the_order_to_open_are_not_told_to_be_parked() -> None:
    standing = Standing(session="s")
    standing.heard(("parked", 0, 4096, 0, ""), 1)
    assert standing.parked_bytes == 4096
    standing.opened(Open(epoch=2, memory_limit_bytes=8192))
    standing.heard(("parked", 0, 4096, 0, ""), 2)
    assert standing.parked_bytes is None, "opening brings them back"
    standing.heard(("drained", 2, 0, 0, ""), 3)
    standing.heard(("parked", 0, 4096, 0, ""), 4)
    assert standing.parked_bytes == 4096


def test_the_end_of_the_client_is_told_and_the_end_of_the_session_ends_the_worker(
    pool: Pool, start_linked: StartLinked, make_client: Callable[[str], Any], socket_folder: Path
) -> None:
    process = start_linked()
    client = make_client(assign(pool).address)
    with client.socket:
        client.hello()
    pool.expect(messages.ClientGone)
    pool.send(End())
    assert process.wait(WAIT_SECONDS_MAX) == 0
    assert list(socket_folder.iterdir()) == []


def test_a_client_that_dies_while_its_work_waits_is_gone_at_once(
    pool: Pool, start_linked: StartLinked, make_client: Callable[[str], Any]
) -> None:
    start_linked()
    client = make_client(assign(pool).address)
    with client.socket:
        client.hello()
        number, ones = prepare(client)
        add(client, number, ones)
        client.send()
        pool.expect(messages.Starved)
    pool.expect(messages.ClientGone)


def test_a_lost_link_ends_the_worker_without_a_trace(pool: Pool, start_linked: StartLinked, socket_folder: Path) -> None:
    process = start_linked()
    assign(pool)
    open_lease(pool, 1)
    pool.connection().close()
    assert process.wait(WAIT_SECONDS_MAX) == 1
    assert process.stderr and "the pool closed the worker link" in process.stderr.read()
    assert list(socket_folder.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_worker_cleanly(pool: Pool, start_linked: StartLinked, socket_folder: Path, number: signal.Signals) -> None:
    process = start_linked()
    pool.expect(messages.Ready)
    process.send_signal(number)
    assert process.wait(WAIT_SECONDS_MAX) == 0
    assert list(socket_folder.iterdir()) == []


@pytest.mark.parametrize(
    ("orders", "sentence"),
    [
        (['{"type": "open", "epoch": 1, "memory_limit_bytes": 1}'], "the pool sent open to a worker without a session"),
        (["no message"], "the pool sent what is not the worker link"),
    ],
)
def test_a_pool_that_breaks_the_link_is_left(pool: Pool, start_linked: StartLinked, orders: list[str], sentence: str) -> None:
    process = start_linked()
    pool.expect(messages.Ready)
    for order in orders:
        pool.connection().send(order)
    assert process.wait(WAIT_SECONDS_MAX) == 1
    assert process.stderr and sentence in process.stderr.read()


def run_worker(*options: str, token: str = TOKEN) -> subprocess.CompletedProcess[str]:
    command = [str(fork_server.services()), "-m", "forebay_worker", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env={**os.environ, "FOREBAY_WORKER_TOKEN": token})


LINK = ("--pool", "ws://127.0.0.1:9/api/worker", "--worker", "w-1")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ((*LINK, "--device", "cuda:7", "--listen", "tcp:127.0.0.1:0"), "there is no device 'cuda:7'"),
        ((*LINK, "--listen", "tcp:127.0.0.1:0"), "the pool at ws://127.0.0.1:9/api/worker cannot be reached"),
        (LINK, "--socket-dir says where"),
        ((*LINK, "--listen", "carrier-pigeon"), "a worker listens at unix:/path or tcp:host:port"),
        ((*LINK, "--threads", "0"), "at least one is needed"),
        (("--standalone", "tcp:127.0.0.1:0", "--ticket", "short"), "--ticket takes the 64 hex digits"),
    ],
)
def test_what_keeps_a_worker_from_starting_is_one_sentence(options: tuple[str, ...], sentence: str) -> None:
    ran = run_worker(*options)
    assert ran.returncode == 1
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_worker_without_a_token_says_so() -> None:
    assert "FOREBAY_WORKER_TOKEN is not set" in run_worker(*LINK, "--listen", "tcp:127.0.0.1:0", token="").stderr


TWO_THREADS_ON_ONE_PROCESSOR = """
import os, time
from forebay_worker import pytorch
pytorch.load_executor("cpu")
import torch
torch.set_num_threads(2)
numbers = torch.ones(100_000)
numbers + 1
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {min(os.sched_getaffinity(0))})
before = time.process_time()
for _ in range(100):
    numbers + 1
print(time.process_time() - before)
"""
"""Prints how many seconds of the processor 100 operators take. The kernel puts threads so where others want processors."""


def test_threads_of_an_operator_do_not_keep_each_other_from_the_processor() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    told = subprocess.run([sys.executable, "-c", TWO_THREADS_ON_ONE_PROCESSOR], env=environment, capture_output=True, text=True, check=True)
    assert float(told.stdout) < 0.2  # 0.1; 0.8 where they wait for each other as long as libgomp does


def test_a_gpus_memory_may_grow_in_segments_unless_the_operator_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "GOMP_SPINCOUNT")
    for name in names:
        monkeypatch.setenv(name, "")  # what is set below is taken back
        monkeypatch.delenv(name)
    set_up_libraries("cpu")
    assert [os.environ.get(name) for name in names] == [None, None, SPINS]
    set_up_libraries("cuda")
    assert [os.environ.get(name) for name in names] == [None, GROWING_SEGMENTS, SPINS]
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128")
    set_up_libraries("cuda")
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:128"


def test_a_worker_describes_the_devices_that_its_pytorch_sees() -> None:
    described = json.loads(run_worker("--describe").stdout)
    assert described["torch"] == torch.__version__
    assert {"cpu:0", "null:0"} <= {device["device"] for device in described["devices"]}
    assert all(device["memory_bytes"] > 0 and "driver" in device for device in described["devices"])


def test_help_names_every_option() -> None:
    text = run_worker("--help").stdout
    for option in (
        "--pool",
        "--worker",
        "--device",
        "--socket-dir",
        "--listen",
        "--threads",
        "--standalone",
        "--describe",
        "FOREBAY_WORKER_TOKEN",
    ):
        assert option in text


def test_a_worker_on_tcp_serves_as_well(pool: Pool, start_linked: StartLinked, make_client: Callable[[str], Any]) -> None:
    start_linked("--listen", "tcp:127.0.0.1:0")
    ready = assign(pool)
    assert ready.address.startswith("tcp:127.0.0.1:")
    client = make_client(ready.address)
    with client.socket:
        assert isinstance(client.hello(), stream.Welcome)
        assert isinstance(client.sync(), stream.Done)


def test_the_pool_hears_that_a_client_is_away_and_that_it_is_back(
    pool: Pool, start_linked: StartLinked, make_client: Callable[[str], Any]
) -> None:
    """What was sent before is done meanwhile, under the lease that waits for it."""
    start_linked("--listen", "tcp:127.0.0.1:0", "--reconnect-seconds", "30")
    address = assign(pool).address
    client = make_client(address)
    with client.socket:
        client.hello()
        client.socket.sendall(struct.pack("<IQ", 0x80000000, 0))
        number, ones = prepare(client)
        add(client, number, ones)
        client.send()
        pool.expect(messages.Starved)
    assert not pool.expect(messages.ClientCut).back
    pool.send(Open(epoch=1, memory_limit_bytes=1 << 30))
    back = make_client(address)
    with back.socket:
        back.send(Resume(back.ticket, "", 0))
        assert isinstance(back.reply(), Resumed)
        assert pool.expect(messages.ClientCut).back
        assert isinstance(back.sync(), stream.Done)
    assert not pool.expect(messages.ClientCut).back


# A link that breaks


def test_a_worker_goes_on_without_its_link_and_comes_back_with_what_it_holds(
    pool: Pool, start_linked: StartLinked, make_client: Callable[[str], Any]
) -> None:
    start_linked("--resume-seconds", "20")
    client = make_client(assign(pool).address)
    with client.socket:
        client.hello()
        open_lease(pool, 3)
        number, ones = prepare(client)
        pool.drop()
        total = add(client, number, ones)
        request = client.request()
        client.send(stream.Read(request, total, 0, 16))
        assert isinstance(client.reply(), stream.Data)
        resumed = pool.expect(messages.ResumeWorker)
        assert (resumed.worker, resumed.session, resumed.epoch, resumed.ended) == ("w-1", "s-1", 3, None)
        assert (resumed.ticket, resumed.memory_limit_bytes) == (TICKET.hex(), 1 << 28)
        client.send(stream.Mark(3))
        assert pool.expect(messages.Drained).epoch == 3


def test_a_lease_that_drains_while_there_is_no_link_is_said_with_its_time(
    pool: Pool, start_linked: StartLinked, make_client: Callable[[str], Any]
) -> None:
    start_linked("--resume-seconds", "20")
    client = make_client(assign(pool).address)
    with client.socket:
        client.hello()
        open_lease(pool, 3)
        number, ones = prepare(client)
        add(client, number, ones)
        pool.epoch = 0  # whoever takes the link has led before: it hears nothing
        pool.drop()
        client.send(stream.Mark(3), stream.Sync(9))
        assert isinstance(client.reply(), stream.Done)
        add(client, number, ones)
        client.send()
        time.sleep(0.5)
        pool.expect_silence()
        pool.epoch = 2
        resumed = pool.expect(messages.ResumeWorker)
        assert (resumed.epoch, resumed.starved, resumed.client_gone) == (None, True, False)
        assert resumed.ended is not None
        assert (resumed.ended.epoch, resumed.ended.reason) == (3, "drained")
        assert 0.5e9 <= resumed.ended.ago_ns < WAIT_SECONDS_MAX * 1e9


def test_a_worker_that_nobody_takes_back_ends_by_itself(pool: Pool, start_linked: StartLinked) -> None:
    process = start_linked("--resume-seconds", "0.5")
    assign(pool)
    pool.epoch = 0
    began = time.monotonic()
    pool.drop()
    assert process.wait(WAIT_SECONDS_MAX) == 1
    assert time.monotonic() - began >= 0.5
    assert process.stderr is not None
    assert "this pool led with epoch 0, and 1 was seen" in process.stderr.read()


@pytest.mark.parametrize("seconds", ["-1", "inf", "nan"])
def test_seconds_that_are_no_time_are_refused(start_linked: StartLinked, seconds: str) -> None:
    process = start_linked("--resume-seconds", seconds)
    assert process.wait(WAIT_SECONDS_MAX) == 1
    assert process.stderr is not None
    assert "a number of seconds is needed" in process.stderr.read()


def test_a_call_does_not_run_while_its_worker_stands_still() -> None:
    """The pool ends a worker whose call has run for ten minutes; a process that was stopped for an hour computed for none of it."""
    calls = Calls()
    assert calls.seen((7, "aten::mm"), 1000.0, 15.0) == ("", 0.0)
    assert calls.seen((7, "aten::mm"), 1005.0, 15.0) == ("aten::mm", 5.0)
    assert calls.seen((7, "aten::mm"), 4605.0, 15.0) == ("aten::mm", 20.0)
    assert calls.seen((7, "aten::mm"), 4610.0, 15.0) == ("aten::mm", 25.0)
    assert calls.seen((8, "aten::mm"), 4615.0, 15.0) == ("", 0.0)
    assert calls.seen(None, 4620.0, 15.0) == ("", 0.0)
    assert calls.seen((9, "aten::add"), 4625.0, 15.0) == ("", 0.0)
    assert calls.seen((9, "aten::add"), 4630.0, 15.0) == ("aten::add", 5.0)
