"""Bulk data through memory that a worker shares, and copies between its storages."""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from forebay_wire import stream

HEADER_BYTES = stream.SHARED_HEADER_BYTES
AREA_BYTES = 1 << 20
F_SEAL_SHRINK, F_SEAL_GROW = 2, 4


class Area:
    """A client's mapping of what its worker shares."""

    def __init__(self, client: Any, size: int = AREA_BYTES) -> None:
        client.writer.add(stream.Share(client.request(), size))
        client.socket.sendall(stream.frame(client.writer.take()))
        data, descriptors, _, _ = socket.recv_fds(client.socket, 4096, 1)
        self.reply = stream.decode_reply(data[4:])
        (self.descriptor,) = descriptors
        self.memory = mmap.mmap(self.descriptor, size)

    def taken(self) -> int:
        return int.from_bytes(self.memory[:4], "little")

    def close(self) -> None:
        self.memory.close()
        os.close(self.descriptor)


@pytest.fixture
def area(client: Any) -> Iterator[Area]:
    area = Area(client)
    yield area
    area.close()


def is_done(reply: stream.Reply, request: int) -> bool:
    return isinstance(reply, stream.Done) and reply.request == request and reply.busy_ns > 0


@pytest.mark.everywhere
def test_bytes_go_through_the_shared_area_both_ways(client: Any, area: Area) -> None:
    data = os.urandom(300_000)
    area.memory[HEADER_BYTES : HEADER_BYTES + len(data)] = data
    client.send(stream.Allocate(1, 400_000), stream.WriteShared(1, 50_000, len(data), HEADER_BYTES))
    assert isinstance(client.sync(), stream.Done)
    assert area.taken() == 1
    assert client.read(1, 400_000) == bytes(50_000) + data + bytes(50_000)
    target = 500_000
    client.send(stream.ReadShared(9, 1, 40_000, 320_000, target))
    assert is_done(client.reply(), 9)
    assert area.memory[target : target + 320_000] == bytes(10_000) + data + bytes(10_000)


def test_the_area_can_be_neither_shrunk_nor_grown(area: Area) -> None:
    assert area.reply == stream.Shared(2, AREA_BYTES)
    assert os.fstat(area.descriptor).st_size == AREA_BYTES
    assert fcntl.fcntl(area.descriptor, fcntl.F_GET_SEALS) & (F_SEAL_SHRINK | F_SEAL_GROW) == F_SEAL_SHRINK | F_SEAL_GROW
    for size in (0, AREA_BYTES - 1, AREA_BYTES + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(area.descriptor, size)


def test_what_a_client_writes_over_the_count_changes_nothing_for_the_worker(client: Any, area: Area) -> None:
    client.send(stream.Allocate(1, 8))
    for count in range(1, 4):
        area.memory[:4] = b"\xff" * 4
        area.memory[HEADER_BYTES : HEADER_BYTES + 8] = bytes([count]) * 8
        client.send(stream.WriteShared(1, 0, 8, HEADER_BYTES))
        assert client.read(1, 8) == bytes([count]) * 8
        assert area.taken() == count


def test_holes_that_a_client_punches_read_as_zeros(client: Any, area: Area) -> None:
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    area.memory[HEADER_BYTES : HEADER_BYTES + 8] = b"abcdefgh"
    punch_and_keep_size = 3
    punched = libc.fallocate(area.descriptor, punch_and_keep_size, ctypes.c_long(0), ctypes.c_long(AREA_BYTES))
    assert punched == 0, os.strerror(ctypes.get_errno())
    client.send(stream.Allocate(1, 8), stream.WriteShared(1, 0, 8, HEADER_BYTES))
    assert client.read(1, 8) == bytes(8)


def test_a_write_to_a_lost_storage_gives_its_room_back(client: Any, area: Area) -> None:
    client.send(stream.Allocate(1, 1 << 40), stream.WriteShared(1, 0, 8, HEADER_BYTES), stream.ReadShared(9, 1, 0, 8, HEADER_BYTES))
    failure = client.reply()
    assert isinstance(failure, stream.Failure) and failure.code == stream.FailureCode.OUT_OF_MEMORY
    assert area.taken() == 1
    client.send(stream.ReadShared(10, 1, 0, 8, HEADER_BYTES))
    assert client.reply().code == stream.FailureCode.NEVER_MADE


def test_a_worker_over_tcp_shares_nothing(start_worker: Callable[..., Any]) -> None:
    with start_worker(address="tcp:127.0.0.1:0").connect().socket as peer:
        peer.close()
    client = start_worker(address="tcp:127.0.0.1:0").connect()
    with client.socket:
        client.hello()
        client.send(stream.Share(2, AREA_BYTES))
        assert client.reply() == stream.Shared(2, 0)


def test_a_null_device_reads_zeros_through_the_shared_area(start_worker: Callable[..., Any]) -> None:
    client = start_worker(device="null:0").connect()
    with client.socket:
        client.hello()
        area = Area(client)
        area.memory[HEADER_BYTES : HEADER_BYTES + 8] = b"abcdefgh"
        client.send(stream.Allocate(1, 8), stream.WriteShared(1, 0, 8, HEADER_BYTES), stream.ReadShared(9, 1, 0, 8, HEADER_BYTES))
        assert is_done(client.reply(), 9)
        assert area.memory[HEADER_BYTES : HEADER_BYTES + 8] == bytes(8)
        area.close()


def test_a_copy_moves_bytes_between_storages(client: Any) -> None:
    client.send(stream.Allocate(1, 8), stream.Allocate(2, 10), stream.Write(1, 0, b"abcdefgh"), stream.Copy(2, 3, 1, 2, 5))
    assert client.read(2, 10) == b"\0\0\0cdefg\0\0"
    client.send(stream.Allocate(3, 8), stream.Copy(3, 0, 1, 0, 8))
    assert client.read(3, 8) == b"abcdefgh"
    client.send(stream.Write(1, 0, b"X"))
    assert client.read(3, 8) == b"abcdefgh"


def test_a_copy_of_a_lost_storage_is_lost_for_the_same_reason(client: Any) -> None:
    client.send(stream.Allocate(1, 1 << 40), stream.Allocate(2, 8))
    assert client.sync().code == stream.FailureCode.OUT_OF_MEMORY
    client.send(stream.Copy(2, 0, 1, 0, 8), stream.Read(9, 2, 0, 8))
    failure = client.reply()
    assert failure.code == stream.FailureCode.NEVER_MADE and failure.operator == "ALLOCATE"


SHARE = stream.Share(2, AREA_BYTES)
STORAGE = stream.Allocate(1, 16)
REFUSED = [
    ("a WRITE_SHARED without an area", [STORAGE, stream.WriteShared(1, 0, 4, HEADER_BYTES)], "there is no shared area; SHARE comes first"),
    ("a READ_SHARED without an area", [STORAGE, stream.ReadShared(9, 1, 0, 4, HEADER_BYTES)], "there is no shared area; SHARE comes first"),
    ("a second SHARE", [SHARE, SHARE], "a second SHARE"),
    ("an area without payload", [stream.Share(2, HEADER_BYTES)], "a shared area of 4096 bytes has no room for payload"),
    ("an area too large", [stream.Share(2, stream.SHARED_BYTES_MAX + 1)], "the size of a shared area is 134217729"),
    ("payload in the header", [SHARE, STORAGE, stream.WriteShared(1, 0, 4, HEADER_BYTES - 1)], "4 bytes at 4095 of a shared area"),
    ("payload past the end", [SHARE, STORAGE, stream.WriteShared(1, 0, 4, AREA_BYTES - 3)], "4 bytes at 1048573 of a shared area"),
    ("payload at the largest offset", [SHARE, STORAGE, stream.ReadShared(9, 1, 0, 4, 2**64 - 1)], "4 bytes at 18446744073709551615 of a"),
    ("a WRITE_SHARED past the end", [SHARE, STORAGE, stream.WriteShared(1, 13, 4, HEADER_BYTES)], "a WRITE of 4 bytes at 13"),
    ("a READ_SHARED past the end", [SHARE, STORAGE, stream.ReadShared(9, 1, 0, 17, HEADER_BYTES)], "a READ of 17 bytes at 0"),
    ("a WRITE_SHARED to nowhere", [SHARE, stream.WriteShared(5, 0, 4, HEADER_BYTES)], "storage 5 does not exist"),
    ("a COPY to itself", [STORAGE, stream.Copy(1, 0, 1, 8, 8)], "a COPY of storage 1 to itself"),
    ("a COPY from nowhere", [STORAGE, stream.Copy(1, 0, 2, 0, 8)], "storage 2 does not exist"),
    ("a COPY past its source", [STORAGE, stream.Allocate(2, 4), stream.Copy(1, 0, 2, 0, 8)], "a COPY of 8 bytes at 0 of a storage of 4"),
    ("a COPY past its target", [STORAGE, stream.Allocate(2, 99), stream.Copy(1, 9, 2, 0, 8)], "a COPY of 8 bytes at 9 of a storage of 16"),
]


@pytest.mark.parametrize(("commands", "reason"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_what_reaches_beyond_the_area_or_a_storage_is_refused(client: Any, commands: list[stream.Command], reason: str) -> None:
    client.send(*commands)
    replies = [client.reply()]
    while not isinstance(replies[-1], stream.Refused):
        replies.append(client.reply())
    assert reason in replies[-1].message
    assert stream.read_frame(client.socket) is None
