"""A worker as a member of a process group: who is let in at its door, and what others' bytes can do."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from forebay_wire import stream, vocabulary
from forebay_wire.vocabulary import Collective, Parcel, Reduction, Span
from group_member import ENDS, FLOAT, HEADER, OTHER, greeting, header, meet, opened, path_of, read


class Case:
    """A worker that is rank 0, under an open collective; the test is rank 1."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.peers: list[socket.socket] = []
        self.door = opened(client)
        self.storage = client.storage()
        client.send(stream.Allocate(self.storage, 12), stream.Write(self.storage, 0, struct.pack("<3f", 1, 2, 3)))
        client.send(vocabulary.Member(1, 1, "unix:/nowhere", OTHER))

    def reduce(self) -> None:
        span = Span(self.storage, 0, 12)
        self.client.send(vocabulary.Reduce(1, Collective.ALL_REDUCE, FLOAT, Reduction.SUM, span, span))

    def at_door(self) -> socket.socket:
        self.peers.append(socket.socket(socket.AF_UNIX))
        self.peers[-1].settimeout(10)
        self.peers[-1].connect(path_of(self.door.address))
        return self.peers[-1]

    def met(self) -> socket.socket:
        """A connection that has shown the ticket; the door speaks first."""
        peer = self.at_door()
        meet(peer, self.door)
        return peer

    def failure(self) -> str:
        reply = self.client.sync()
        assert isinstance(reply, stream.Failure), reply
        return reply.message

    def values(self) -> tuple[float, ...]:
        self.client.send(stream.Read(request := self.client.request(), self.storage, 0, 12))
        reply = self.client.reply()
        assert isinstance(reply, stream.Data)
        assert reply.request == request
        return struct.unpack("<3f", reply.data)


@pytest.fixture
def case(client: Any) -> Iterator[Case]:
    case = Case(client)
    yield case
    for peer in case.peers:
        peer.close()


@pytest.mark.everywhere
def test_a_member_that_shows_the_ticket_takes_part(case: Case) -> None:
    case.reduce()
    peer = case.met()
    peer.sendall(header(Collective.ALL_REDUCE, 12) + struct.pack("<3f", 10, 20, 30))
    assert read(peer, HEADER.size + 12) == header(Collective.ALL_REDUCE, 12) + struct.pack("<3f", 1, 2, 3)
    assert case.values() == (11, 22, 33)


@pytest.mark.parametrize("what", ["another ticket", "no member's rank", "its own rank", "noise", "silence", "a hello"])
def test_whoever_else_is_not_let_in_and_members_come_all_the_same(case: Case, what: str) -> None:
    """The group of another tenant has another ticket, which nobody can guess."""
    case.reduce()
    stranger = case.at_door()
    stream.read_frame(stranger)
    said = {
        "another ticket": stream.frame(greeting(bytes(32), 1)),
        "no member's rank": stream.frame(greeting(case.door.ticket, 2)),
        "its own rank": stream.frame(greeting(case.door.ticket, 0)),
        "noise": bytes(range(256)) * 64,
        "silence": b"",
        "a hello": stream.frame(bytes([1]) + greeting(case.door.ticket, 1)[1:]),
    }[what]
    with contextlib.suppress(OSError):  # it may be turned away before it has said all
        stranger.sendall(said)
    peer = case.met()
    peer.sendall(header(Collective.ALL_REDUCE, 12) + struct.pack("<3f", 1, 1, 1))
    assert case.values() == (2, 3, 4)


@pytest.mark.everywhere
@pytest.mark.parametrize(
    ("sent", "sentence"),
    [
        (b"\xff" * 24, "rank 1 of the process group broke the protocol"),
        (header(Collective.ALL_REDUCE, 12, number=7), "rank 1 of the process group broke the protocol"),
        (header(Collective.ALL_REDUCE, 2**63), "rank 1 of the process group called all_reduce with 9223372036854775808 bytes"),
        (header(Collective.BROADCAST, 12, dtype=0), "rank 1 of the process group called broadcast with 12 bytes"),
        (
            header(Collective.ALL_REDUCE, 12, dtype=7),
            "(type 7, reduction 0) where this one called all_reduce with 12 bytes (type 6, reduction 0)",
        ),
        (header(77, 12), "called something unknown"),
        (header(ENDS, 5) + b"tired", "rank 1 ended the process group: tired"),
        (header(ENDS, 2**62) + b"x" * 2000, "rank 1 ended the process group: xxx"),
        (header(Collective.ALL_REDUCE, 12) + b"half", "rank 1 of the process group is gone"),
    ],
)
def test_bytes_that_are_not_the_protocol_end_the_group_and_not_the_session(case: Case, sent: bytes, sentence: str) -> None:
    case.reduce()
    peer = case.met()
    peer.sendall(sent)
    peer.shutdown(socket.SHUT_WR)
    assert sentence in case.failure()
    case.reduce()  # the group is over
    assert sentence in case.failure()
    fresh = case.client.storage()
    case.client.send(stream.Allocate(fresh, 4))
    assert isinstance(case.client.sync(), stream.Done)


def test_a_member_that_does_not_come_is_waited_for_as_long_as_was_said(case: Case) -> None:
    began = time.monotonic()
    case.reduce()
    assert "rank 1 of the process group did not come within 3 s" in case.failure()
    assert 2.5 < time.monotonic() - began < 8


def test_a_member_that_hangs_in_the_middle_is_waited_for_as_long(case: Case) -> None:
    case.reduce()
    peer = case.met()
    peer.sendall(header(Collective.ALL_REDUCE, 12)[:10])
    assert "rank 1 of the process group did not take part in all_reduce within 3 s" in case.failure()
    assert read(peer, HEADER.size + 12)  # its part of the collective
    ended = HEADER.unpack(read(peer, HEADER.size))
    assert ended[1] == ENDS
    assert b"did not take part in all_reduce within 3 s" in read(peer, ended[-1])
    assert peer.recv(1) == b""


@contextmanager
def listening(folder: Path) -> Iterator[tuple[str, socket.socket]]:
    """What is no group's door."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "other.sock"))
        listener.listen()
        listener.settimeout(10)
        yield f"unix:{folder}/other.sock", listener


@pytest.mark.parametrize("said", [b"", b"220 smtp.example ESMTP\r\n", b"\x00" * 64])
def test_nothing_is_said_to_what_is_no_groups_door(socket_folder: Path, client: Any, said: bytes) -> None:
    """A client names addresses; its worker must not be the one who speaks there for it."""
    opened(client, rank=1, patience_ms=1000)
    storage = client.storage()
    with listening(socket_folder) as (address, listener):
        client.send(stream.Allocate(storage, 4), vocabulary.Member(1, 0, address, OTHER))
        client.send(vocabulary.Exchange(1, Collective.MESSAGE, (), (Parcel(0, Span(storage, 0, 4)),)))
        with listener.accept()[0] as peer:
            peer.settimeout(10)
            peer.sendall(said)
            reply = client.sync()
            assert isinstance(reply, stream.Failure)
            assert "cannot be reached" in reply.message or "did not come within 1 s" in reply.message
            assert peer.recv(100) == b""


@pytest.mark.parametrize(
    "command",
    [
        vocabulary.OpenDoor(1, 5, 3, 2, 1000),
        vocabulary.OpenDoor(1, 1, 0, 2, 1000),
        vocabulary.Member(1, 0, "unix:/x", OTHER),
        vocabulary.Member(1, 2, "unix:/x", OTHER),
        vocabulary.Member(1, 1, "unix:/x", OTHER),
        vocabulary.Exchange(1, Collective.MESSAGE, (Parcel(2, Span(2, 0, 4)),), ()),
        vocabulary.Exchange(1, Collective.MESSAGE, (Parcel(1, Span(2, 8, 5)),), ()),
        vocabulary.Exchange(1, Collective.MESSAGE, (Parcel(1, Span(99, 0, 4)),), ()),
        vocabulary.Reduce(1, Collective.ALL_REDUCE, FLOAT, Reduction.SUM, Span(2, 1, 8), Span(2, 0, 8)),
        vocabulary.Reduce(1, Collective.ALL_REDUCE, 200, Reduction.SUM, Span(2, 0, 8), Span(2, 0, 8)),
        vocabulary.Reduce(1, Collective.ALL_REDUCE, FLOAT, Reduction.SUM, Span(2, 0, 8), Span(2, 0, 4)),
        vocabulary.Reduce(1, Collective.REDUCE_SCATTER, FLOAT, Reduction.SUM, Span(2, 0, 8), Span(2, 0, 8)),
        vocabulary.Reduce(1, Collective.ALL_REDUCE, FLOAT, Reduction.SUM, Span(2, 0, 2**46), Span(2, 0, 2**46)),
    ],
)
def test_a_command_beyond_its_bounds_ends_the_session_with_a_sentence(case: Case, command: stream.Command) -> None:
    case.client.send(command)
    reply = case.client.reply()
    assert isinstance(reply, stream.Refused)
    assert reply.message


def test_a_group_that_the_worker_does_not_know_fails_and_ends_nothing(case: Case) -> None:
    """As after a move to another worker."""
    span = Span(case.storage, 0, 12)
    case.client.send(vocabulary.Member(9, 1, "unix:/x", OTHER))
    case.client.send(vocabulary.Part(9))
    case.client.send(vocabulary.Reduce(9, Collective.ALL_REDUCE, FLOAT, Reduction.SUM, span, span))
    assert "the process group ended when this session moved to another device" in case.failure()
    assert case.values() == (1, 2, 3)
