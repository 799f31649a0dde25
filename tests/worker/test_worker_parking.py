"""A session off its device and back on it, on disk, and from one worker process to another, bit by bit the same."""

from __future__ import annotations

import contextlib
import queue
import secrets
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from forebay_wire import messages, stream, vocabulary
from forebay_wire.images import ImageVersions
from forebay_worker import _executor
from group_member import OTHER, header, meet, opened, path_of
from link_to_pool import LIMIT_BYTES, WAIT_SECONDS_MAX, Linked, Pool

assert _executor.TORCH_VERSION, "it defines operators of our own"
BIG = 3 << 20
DISK_FULL_BYTES = 8 << 20


Start = Callable[..., Linked]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_FULL_BYTES}", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("this user may not mount a small file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(client: Any) -> dict[int, torch.Tensor]:
    """Storages of many sizes, with chance in them; one was allocated and never used."""
    made = {}
    for size in [1, 7, 4096, 65537, *[1000 + index for index in range(40)], BIG + 5, 20 << 20]:
        tensor = torch.randint(0, 256, (size,), dtype=torch.uint8)
        storage = client.storage()
        client.send(stream.Allocate(storage, size))
        for start in range(0, size, stream.CHUNK_BYTES_MAX):
            client.send(stream.Write(storage, start, bytes(tensor[start : start + stream.CHUNK_BYTES_MAX].numpy())))
        made[storage] = tensor
    untouched = client.storage()
    client.send(stream.Allocate(untouched, 100))
    made[untouched] = torch.zeros(100, dtype=torch.uint8)
    assert isinstance(client.sync(), stream.Done)
    return made


def check(client: Any, made: dict[int, torch.Tensor]) -> None:
    for storage, tensor in made.items():
        assert client.read(storage, len(tensor)) == bytes(tensor.numpy()), f"storage {storage} of {len(tensor)} bytes"


def total(made: dict[int, torch.Tensor]) -> int:
    return sum(len(tensor) for tensor in made.values())


def park(worker: Linked, host_bytes_max: int, spill_bytes_max: int) -> messages.Parked:
    worker.pool.send(messages.Park(host_bytes_max=host_bytes_max, spill_bytes_max=spill_bytes_max))
    parked: messages.Parked = worker.pool.expect(messages.Parked)
    return parked


@pytest.mark.everywhere
@pytest.mark.parametrize("host_bytes_max", [0, 5 << 20, 1 << 40])
def test_what_is_parked_beyond_the_hosts_share_goes_to_disk_and_comes_back_as_it_was(
    start_on_pool: Start, device: str, host_bytes_max: int
) -> None:
    worker = start_on_pool()
    client = worker.serve()
    with client.socket:
        made = fill(client)
        worker.drain(client)
        before = worker.memory_kib()
        parked = park(worker, host_bytes_max, 1 << 40)
        assert parked.bytes == total(made)
        assert total(made) - parked.spilled_bytes <= max(host_bytes_max, 100)
        files = worker.spill_files()
        assert sum(file.st_size for file in files) == parked.spilled_bytes
        assert all(file.st_mode & 0o077 == 0 and file.st_nlink == 0 for file in files)
        if parked.spilled_bytes and not device.startswith("cuda"):  # the others' memory is the process's
            assert before - worker.memory_kib() >= parked.spilled_bytes * 0.9 // 1024
        gone = list(made)[3]
        client.send(stream.Free((gone,)))
        made.pop(gone)
        worker.pool.send(messages.Restore())
        worker.pool.expect(messages.Restored)
        assert not worker.spill_files()
        worker.open()
        check(client, made)


@pytest.mark.everywhere
def test_a_disk_that_takes_no_more_leaves_the_rest_in_memory(start_on_pool: Start, small_disk: Path) -> None:
    worker = start_on_pool(spill=small_disk)
    client = worker.serve()
    with client.socket:
        made = fill(client)
        worker.drain(client)
        parked = park(worker, 0, 1 << 40)
        assert parked.spilled_bytes < DISK_FULL_BYTES
        worker.pool.send(messages.Restore())
        worker.pool.expect(messages.Restored)
        worker.open()
        check(client, made)


def test_no_more_than_its_share_goes_to_disk_and_nothing_where_there_is_no_place(start_on_pool: Start, tmp_path: Path) -> None:
    for spill, most in ((tmp_path, 4 << 20), (tmp_path / "missing", 1 << 40)):
        worker = start_on_pool(spill=spill)
        client = worker.serve()
        with client.socket:
            made = fill(client)
            worker.drain(client)
            parked = park(worker, 0, most)
            assert parked.spilled_bytes <= most and (parked.spilled_bytes > 0) == (spill == tmp_path)
            worker.pool.send(messages.Restore())
            worker.pool.expect(messages.Restored)
            worker.open()
            check(client, made)


def test_what_a_recurrent_layer_keeps_beside_a_storage_is_given_up(start_on_pool: Start) -> None:
    worker = start_on_pool(device="cpu:0")
    client = worker.serve()
    steps, rows, wide, hidden, kib = 256, 32, 8, 128, 256 * 32 * 4 * 128 * 4 >> 10  # of its gates alone
    layer = torch.nn.LSTM(wide, hidden)
    state, weights = [torch.zeros(1, rows, hidden) for _ in range(2)], [one.detach() for one in layer.parameters()]
    with client.socket, torch.no_grad():
        inputs = torch.randn(steps, rows, wide)
        given_up = []
        for keeps in (False, True):
            client.run(torch.ops.forebay.recurrent_layer.default, inputs, state, weights, 2, False, keeps)
            worker.drain(client)
            before = worker.memory_kib()
            park(worker, 1 << 40, 1 << 40)
            given_up.append(before - worker.memory_kib())
            worker.pool.send(messages.Restore())
            worker.pool.expect(messages.Restored)
            worker.open()
        assert given_up[1] - given_up[0] > kib


def test_damage_on_disk_ends_the_session_with_a_sentence(start_on_pool: Start) -> None:
    worker = start_on_pool()
    client = worker.serve()
    with client.socket:
        fill(client)
        worker.drain(client)
        assert park(worker, 0, 1 << 40).spilled_bytes
        for entry in worker.spill_entries():
            with entry.open("r+b") as file:
                file.seek(1 << 20)
                file.write(b"damage")
        worker.pool.send(messages.Restore())
        assert worker.process.wait(WAIT_SECONDS_MAX) == 1
        assert worker.process.stderr
        assert "the tensors that were spilled to disk cannot be read back: their checksum is another" in worker.process.stderr.read()


@pytest.mark.everywhere
@pytest.mark.parametrize("host_bytes_max", [0, 1 << 40])
def test_a_session_is_parked_with_a_failure_that_nobody_heard_of(start_on_pool: Start, host_bytes_max: int) -> None:
    worker = start_on_pool()
    client = worker.serve()
    client.hears = False
    with client.socket:
        made = fill(client)
        lost, spoiled = client.storage(), next(iter(made))
        client.send(stream.Allocate(lost, LIMIT_BYTES), stream.Write(spoiled, 0, b"!"))
        worker.drain(client)
        assert park(worker, host_bytes_max, 1 << 40).bytes == total(made)
        client.send(stream.Write(spoiled, 0, b"?"))
        worker.pool.expect(messages.Starved)
        worker.pool.send(messages.Restore())
        worker.pool.expect(messages.Restored)
        worker.open()
        failure = client.sync()
        assert isinstance(failure, stream.Failure) and failure.code == stream.FailureCode.OUT_OF_MEMORY
        client.send(stream.Heard(failure.number))
        check(client, made)
        client.send(stream.Read(client.request(), lost, 0, 1))
        assert client.reply().code == stream.FailureCode.NEVER_MADE


@pytest.mark.everywhere
@pytest.mark.parametrize("host_bytes_max", [0, 1 << 40])
def test_a_session_is_parked_within_an_upload_which_goes_on_under_the_next_lease(start_on_pool: Start, host_bytes_max: int) -> None:
    worker = start_on_pool()
    client = worker.serve()
    with client.socket:
        made = fill(client)
        storage, before = next((storage, tensor) for storage, tensor in made.items() if len(tensor) == BIG + 5)
        client.writer.add(stream.Write(storage, 5, bytes(BIG)))
        frame = stream.frame(client.writer.take())
        client.socket.sendall(frame[: len(frame) // 2])
        worker.pool.send(messages.Close(epoch=worker.epoch))
        worker.pool.expect(messages.Closed)
        park(worker, host_bytes_max, 1 << 40)
        client.socket.sendall(frame[len(frame) // 2 :])
        worker.pool.expect(messages.Starved)
        worker.open()
        made[storage] = torch.cat([before[:5], torch.zeros(BIG, dtype=torch.uint8)])
        check(client, made)


@pytest.mark.everywhere
@pytest.mark.parametrize("host_bytes_max", [0, 1 << 40])
@pytest.mark.parametrize("device", ["cpu:0", "cpu:0,cpu:0"])
def test_a_session_is_parked_within_a_collective_which_goes_on_under_the_next_lease(start_on_pool: Start, host_bytes_max: int) -> None:
    """A lease that is taken back, and memory that others want, between two pieces of what another member sends."""
    worker = start_on_pool()
    client = worker.serve()
    with client.socket:
        made = fill(client)
        large = [storage for storage, tensor in made.items() if len(tensor) >= BIG]  # they come back to different devices
        door = opened(client)
        client.send(vocabulary.Member(1, 1, "unix:/nowhere", OTHER))
        parcels = tuple(vocabulary.Parcel(1, vocabulary.Span(storage, 5, BIG)) for storage in large)
        client.send(vocabulary.Exchange(1, vocabulary.Collective.BROADCAST, (), parcels))
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(WAIT_SECONDS_MAX)
            peer.connect(path_of(door.address))
            meet(peer, door)
            sent = b"".join(header(vocabulary.Collective.BROADCAST, BIG, number, dtype=0) + bytes(BIG) for number in range(len(large)))
            peer.sendall(sent[:BIG])
            worker.pool.send(messages.Close(epoch=worker.epoch))
            worker.pool.expect(messages.Closed)
            assert park(worker, host_bytes_max, 1 << 40).bytes == total(made)
            peer.sendall(sent[BIG:])
            worker.pool.expect(messages.Starved)
            worker.open()
            for storage in large:
                made[storage][5 : 5 + BIG] = 0
            check(client, made)


def test_a_session_is_parked_while_its_client_reads_slowly_and_the_client_gets_what_it_asked_for(start_on_pool: Start) -> None:
    worker = start_on_pool()
    client = worker.serve()
    with client.socket:
        made = fill(client)
        storage, tensor = max(made.items(), key=lambda item: len(item[1]))
        client.send(stream.Read(client.request(), storage, 0, stream.CHUNK_BYTES_MAX))
        assert client.socket.recv(1, socket.MSG_PEEK), "the answer is on its way, and larger than what a socket takes"
        worker.pool.send(messages.Close(epoch=worker.epoch))
        worker.pool.expect(messages.Closed)
        assert park(worker, 0, 1 << 40).spilled_bytes
        assert client.reply().data == bytes(tensor[: stream.CHUNK_BYTES_MAX].numpy())
        worker.open()
        check(client, made)


@pytest.mark.everywhere
@pytest.mark.parametrize("spilled", [False, True])
@pytest.mark.parametrize("listen", [(), ("--listen", "tcp:127.0.0.1:0")])
def test_a_session_leaves_one_worker_and_goes_on_at_another(start_on_pool: Start, spilled: bool, listen: tuple[str, ...]) -> None:
    old, new = start_on_pool(*listen), start_on_pool(*listen)
    client = old.serve()
    with client.socket:
        made = fill(client)
        lost = client.storage()
        client.writer.add(stream.Allocate(lost, LIMIT_BYTES))
        client.writer.add(stream.Write(next(iter(made)), 0, b"!"))  # after the failure
        if spilled:
            old.drain(client)
            park(old, 0, 1 << 40)
        client.send(stream.Leave(client.request()))
        assert isinstance(client.reply(), stream.Done)
        left = old.pool.expect(messages.Left)
        assert left.bytes == total(made) and (left.spilled_bytes > 0) == spilled
        source = messages.Source(address=left.address, ticket=left.ticket)
    new.assign(source)
    new.pool.expect(messages.Assigned)
    again = new.client()
    with again.socket:
        new.open()
        failure = again.sync()
        assert isinstance(failure, stream.Failure) and failure.code == stream.FailureCode.OUT_OF_MEMORY
        check(again, made)
        again.send(stream.Read(again.request(), lost, 0, 1))
        assert again.reply().code == stream.FailureCode.NEVER_MADE
    old.pool.send(messages.End())
    assert old.process.wait(WAIT_SECONDS_MAX) == 0


@pytest.mark.everywhere
def test_what_a_session_left_is_carried_off_the_device_no_faster_than_is_said_and_passed_on(start_on_pool: Start) -> None:
    old, carrier, new = (start_on_pool("--listen", "tcp:127.0.0.1:0") for _ in range(3))
    client = old.serve()
    with client.socket:
        made = fill(client)
        client.send(stream.Leave(client.request()))
        assert isinstance(client.reply(), stream.Done)
        left = old.pool.expect(messages.Left)
    began, source = time.monotonic(), messages.Source(address=left.address, ticket=left.ticket)
    pace = {"bytes_max": left.bytes, "bytes_per_second_max": 2 * left.bytes}
    carrier.pool.send(messages.Carry(session="s-1", source=source, heartbeat_seconds=0.2, **pace))
    carried = carrier.pool.expect(messages.Left)
    assert time.monotonic() - began > 0.4 and (carried.bytes, carried.spilled_bytes) == (left.bytes, 0)
    old.pool.send(messages.End())
    assert old.process.wait(WAIT_SECONDS_MAX) == 0
    new.assign(messages.Source(address=carried.address, ticket=carried.ticket))
    new.pool.expect(messages.Assigned)
    new.open()
    check(new.client(), made)


def test_a_session_goes_on_with_other_numbers_of_devices(start_on_pool: Start) -> None:
    """From one to three, to two, and back to one."""
    source, made, workers = None, {}, []
    for devices in ("cpu:0", "cpu:0,cpu:0,cpu:0", "cpu:0,cpu:0", "cpu:0"):
        worker = start_on_pool(device=devices)
        workers.append(worker)
        worker.assign(source)
        worker.pool.expect(messages.Assigned)
        client = worker.client()
        with client.socket:
            worker.open()
            made = made or fill(client)
            check(client, made)
            client.send(stream.Leave(client.request()))
            assert isinstance(client.reply(), stream.Done)
            left = worker.pool.expect(messages.Left)
            source = messages.Source(address=left.address, ticket=left.ticket)
    for worker in workers:
        worker.pool.send(messages.End())
        assert worker.process.wait(WAIT_SECONDS_MAX) == 0


def test_a_worker_that_dies_in_the_middle_of_a_fetch_leaves_the_image_for_the_next(start_on_pool: Start) -> None:
    old = start_on_pool()
    client = old.serve()
    made = fill(client)
    client.send(stream.Leave(client.request()))
    left = old.pool.expect(messages.Left)
    with fetching(left) as peer:
        peer.recv(1000)
    new = start_on_pool()
    new.assign(messages.Source(address=left.address, ticket=left.ticket))
    new.pool.expect(messages.Assigned)
    new.open()
    check(new.client(), made)


def fetching(left: messages.Left, ticket: bytes | None = None) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(WAIT_SECONDS_MAX)
    peer.connect(left.address.removeprefix("unix:"))
    writer = stream.CommandWriter()
    writer.add(stream.Fetch(ticket or bytes.fromhex(left.ticket), torch.__version__))
    peer.sendall(stream.frame(writer.take()))
    return peer


def test_an_image_is_given_to_nobody_without_its_ticket(start_on_pool: Start) -> None:
    old = start_on_pool()
    client = old.serve()
    fill(client)
    client.send(stream.Leave(client.request()))
    left = old.pool.expect(messages.Left)
    with fetching(left, secrets.token_bytes(32)) as peer:
        reply = stream.decode_reply(stream.read_frame(peer) or b"")
        assert reply == stream.Refused("the ticket is not this session's")
    with fetching(left) as peer:
        assert isinstance(stream.decode_reply(stream.read_frame(peer) or b""), stream.ImageHead)


def heard(pool: Pool) -> list[Any]:
    """What the worker has said until now."""
    said = []
    with contextlib.suppress(queue.Empty):
        while True:
            said.append(pool.heard.get(timeout=0.1))
    return said


HEAD, EMPTY = stream.ImageHead(0, 0, 0, 0, 1, 8), stream.ImageHead(0, 0, 0, 0, 0, 0)
HOSTILE = {
    "an unknown answer": ([b"\x07"], "what is not part of an image"),
    "a refusal": ([stream.Refused("no")], "the other worker refused: no"),
    "storages first": ([stream.ImageStorages((stream.ImageStorage(1, 8),))], "storages before the image"),
    "more than fits": ([stream.ImageHead(0, 0, 0, 0, 1, 2**40)], "out of memory"),
    "two heads": ([HEAD, HEAD], "a second image"),
    "a cause too many": ([HEAD, stream.ImageCause(1, 0, "a", "b")], "a cause that the image does not announce"),
    "more bytes than announced": ([HEAD, stream.ImageStorages((stream.ImageStorage(1, 9),))], "storages of more bytes than the image"),
    "fewer bytes than announced": ([HEAD, stream.ImageStorages((stream.ImageStorage(1, 7),))], "storages of 7 bytes in an image of 8"),
    "no such id": ([HEAD, stream.ImageStorages((stream.ImageStorage(0, 8),))], "may not have the id 0"),
    "one id twice": (
        [stream.ImageHead(0, 0, 0, 0, 2, 8), stream.ImageStorages((stream.ImageStorage(1, 4), stream.ImageStorage(1, 4)))],
        "exists already",
    ),
    "bytes without a storage": ([HEAD, stream.ImageBytes(b"12345678")], "more bytes than the image announces"),
    "bytes too many": (
        [HEAD, stream.ImageStorages((stream.ImageStorage(1, 8),)), stream.ImageBytes(b"123456789")],
        "more bytes than the image announces",
    ),
    "a cause that is none": ([HEAD, stream.ImageStorages((stream.ImageStorage(1, 0, 1),))], "the number of a cause is 1"),
    "what was never made, with bytes": (
        [stream.ImageHead(0, 0, 1, 0, 1, 8), stream.ImageCause(1, 0, "a", "b"), stream.ImageStorages((stream.ImageStorage(1, 8, 1),))],
        "a storage that was never made, with bytes",
    ),
    "an end too soon": ([HEAD], "ended the connection"),
    "versions too late": ([HEAD, ImageVersions(b"")], "versions behind an image"),
    "versions that end early": ([ImageVersions(b"\x01\x00\x00"), EMPTY], "frame"),
    "versions and more": ([ImageVersions(b"\x01\x00\x00\x00\x00\x00\x00\x01"), EMPTY], "something after the versions"),
    "versions that do not ascend": ([ImageVersions(b"\x01\x00\x00\x00\x00\x01\x02\x00\x00\x00\x00\x00"), EMPTY], "do not ascend"),
    "what does not come": ([ImageVersions(b"\x01\x00\x00\x00\x00\x01\x01\x00\x00\x01\x05\x01\x00\x00"), EMPTY], "does not come"),
    "what no storage held": (
        [ImageVersions(b"\x01\x00\x00\x00\x01\x08\x00\x01\x01\x00\x00\x01\x05\x01\x00\x00"), EMPTY],
        "what no storage held",
    ),
    "a storage that is not there": ([ImageVersions(b"\x01\x00\x00\x00\x00\x00\x01\x05\x00\x00\x00"), EMPTY], "storage 5 does not exist"),
    "a failure that is not there": (
        [ImageVersions(b"\x01\x00\x00\x00\x00\x01\x01\x00\x01\x00\x00\x01\x05\x00\x03\x00\x00\x00\x00"), EMPTY],
        "a failure that the image does not have",
    ),
}


@pytest.mark.parametrize("what", list(HOSTILE))
def test_a_hostile_source_ends_the_restore_with_a_sentence(start_on_pool: Start, socket_folder: Path, what: str) -> None:
    replies, sentence = HOSTILE[what]
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(f"{socket_folder}/hostile.sock")
        door.listen()
        door.settimeout(WAIT_SECONDS_MAX)
        worker = start_on_pool()
        worker.assign(messages.Source(address=f"unix:{socket_folder}/hostile.sock", ticket="0" * 64))
        peer, _ = door.accept()
        with peer:
            for reply in replies:
                peer.sendall(stream.frame(reply if isinstance(reply, bytes) else stream.encode_reply(reply)))
            peer.shutdown(socket.SHUT_WR)
            assert worker.process.wait(WAIT_SECONDS_MAX) == 1
    assert worker.process.stderr
    assert sentence in worker.process.stderr.read()
    assert not [message for message in heard(worker.pool) if not isinstance(message, messages.Heartbeat)]
