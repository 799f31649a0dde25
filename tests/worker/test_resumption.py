"""A worker that listens on TCP waits for a client whose connection broke, and for nobody else."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from forebay_wire import stream
from forebay_wire.greetings import Hello, Resume, Resumed

ACKNOWLEDGE, BYE = 0x80000000, 0x80000001
GRACE = ("--reconnect-seconds", "5")


class Peer:
    """A client that counts what goes and comes, as docs/wire.md says."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.sent = self.received = 0
        self.writer = stream.CommandWriter()
        self.socket = socket.socket()
        self.connect()

    def connect(self) -> None:
        self.socket.close()
        self.socket = worker_socket(self.worker)

    def send_aside(self, command: stream.Command) -> stream.Reply:
        """Not counted."""
        self.writer.add(command)
        self.socket.sendall(stream.frame(self.writer.take()))
        return self.reply_aside()

    def reply_aside(self) -> stream.Reply:
        body = stream.read_frame(self.socket)
        assert body is not None, "the worker closed the connection"
        return stream.decode_reply(body)

    def control(self, kind: int, count: int) -> None:
        self.socket.sendall(struct.pack("<IQ", kind, count))

    def begin(self) -> stream.Welcome:
        welcome = self.send_aside(Hello(self.worker.ticket, torch.__version__))
        assert isinstance(welcome, stream.Welcome)
        self.control(ACKNOWLEDGE, 0)
        return welcome

    def frame_of(self, *commands: stream.Command) -> bytes:
        for command in commands:
            self.writer.add(command)
        return stream.frame(self.writer.take())

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)
        self.sent += len(data)

    def reply(self) -> stream.Reply:
        head = self._receive(4)
        while int.from_bytes(head, "little") & ACKNOWLEDGE:
            self._receive(8)
            self.received -= 12
            head = self._receive(4)
        return stream.decode_reply(self._receive(int.from_bytes(head, "little")))

    def _receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "the worker closed the connection"
            data += more
        self.received += size
        return data

    def resume(self, received: int | None = None, ticket: bytes | None = None) -> stream.Reply:
        self.connect()
        count = self.received if received is None else received
        return self.send_aside(Resume(ticket or self.worker.ticket, "", count))

    def does_sync(self, number: int) -> bool:
        self.send(self.frame_of(stream.Sync(number)))
        return isinstance(self.reply(), stream.Done)


def worker_socket(worker: Any) -> socket.socket:
    host, _, port = worker.address.removeprefix("tcp:").rpartition(":")
    peer = socket.create_connection((host, int(port)))
    peer.settimeout(30)
    return peer


@pytest.fixture
def peer(start_worker: Callable[..., Any]) -> Iterator[Peer]:
    """The client of a worker over TCP that waits five seconds for it."""
    found = Peer(start_worker(*GRACE, address="tcp:127.0.0.1:0"))
    assert found.begin().grace_ms == 5000
    yield found
    found.socket.close()


def test_a_client_that_is_back_goes_on_where_it_was(peer: Peer) -> None:
    assert peer.does_sync(1)
    assert peer.resume() == Resumed(peer.sent)
    assert peer.does_sync(2)


def test_answers_that_came_while_the_client_was_away_are_kept(peer: Peer) -> None:
    peer.send(peer.frame_of(stream.Sync(1), stream.Sync(2)))
    select.select([peer.socket], [], [], 30)
    peer.socket.close()
    assert peer.resume() == Resumed(peer.sent)
    assert [peer.reply().request, peer.reply().request] == [1, 2]  # type: ignore[union-attr]


def test_a_frame_that_was_cut_in_its_middle_is_completed(peer: Peer) -> None:
    frame = peer.frame_of(stream.Allocate(7, 1 << 20), stream.Write(7, 0, bytes(1 << 20)), stream.Sync(1))
    peer.socket.sendall(frame[:300_001])
    time.sleep(0.2)
    resumed = peer.resume()
    assert isinstance(resumed, Resumed) and 0 < resumed.received <= 300_001
    peer.socket.sendall(frame[resumed.received :])
    assert isinstance(peer.reply(), stream.Done)


def test_a_client_that_takes_its_own_place_needs_not_have_been_away(peer: Peer) -> None:
    assert peer.does_sync(1)
    before = peer.socket
    peer.socket = socket.socket()
    assert peer.resume() == Resumed(peer.sent)
    assert before.recv(1) == b""
    before.close()
    assert peer.does_sync(2)


@pytest.mark.parametrize(
    ("claim", "sentence"),
    [({"received": 1 << 30}, "the other side says that it has"), ({"ticket": bytes(32)}, "the ticket is not this session's")],
)
def test_who_claims_what_cannot_be_is_refused_and_the_session_is_unharmed(peer: Peer, claim: dict[str, Any], sentence: str) -> None:
    assert peer.does_sync(1)
    stranger = Peer(peer.worker)
    refused = stranger.resume(**{"received": 0, **claim})
    assert isinstance(refused, stream.Refused) and sentence in refused.message
    assert peer.does_sync(2)
    stranger.socket.close()


def test_less_than_was_acknowledged_is_refused(peer: Peer) -> None:
    assert peer.does_sync(1)
    peer.control(ACKNOWLEDGE, peer.received)
    assert peer.does_sync(2)
    stranger = Peer(peer.worker)
    assert isinstance(stranger.resume(received=1), stream.Refused)
    assert peer.does_sync(3)
    stranger.socket.close()


def test_a_hello_is_taken_again_before_anything_else_came_and_not_later(peer: Peer) -> None:
    again = Peer(peer.worker)
    assert isinstance(again.send_aside(Hello(peer.worker.ticket, torch.__version__)), stream.Welcome)
    again.control(ACKNOWLEDGE, 0)
    assert again.does_sync(1)
    third = Peer(peer.worker)
    refused = third.send_aside(Hello(peer.worker.ticket, torch.__version__))
    assert isinstance(refused, stream.Refused) and "the session has begun already" in refused.message
    assert again.does_sync(2)
    third.socket.close()
    again.socket.close()


def test_a_client_that_acknowledges_nothing_gets_so_much_and_no_more(peer: Peer) -> None:
    reads = [stream.Read(number, 7, 0, stream.CHUNK_BYTES_MAX) for number in range(1, 9)]
    peer.send(peer.frame_of(stream.Allocate(7, stream.CHUNK_BYTES_MAX), *reads))
    for _ in range(2):
        assert isinstance(peer.reply(), stream.Data)
    peer.socket.settimeout(0.5)
    with pytest.raises(TimeoutError):
        peer.socket.recv(1)
    peer.socket.settimeout(30)
    peer.control(ACKNOWLEDGE, peer.received)
    assert isinstance(peer.reply(), stream.Data)


@pytest.mark.parametrize("says", ["bye", "nothing"])
def test_a_client_that_says_goodbye_or_resumes_nothing_is_gone_at_once(start_worker: Callable[..., Any], says: str) -> None:
    peer = Peer(start_worker("--reconnect-seconds", "60", address="tcp:127.0.0.1:0"))
    if says == "bye":
        peer.begin()
        assert peer.does_sync(1)
        peer.control(BYE, peer.received)
    else:
        peer.send_aside(Hello(peer.worker.ticket, torch.__version__))
        assert peer.does_sync(1)
    peer.socket.close()
    assert [event["event"] for event in peer.worker.events()][-1] == "client_gone"


def test_without_a_time_to_wait_for_a_worker_is_as_before(start_worker: Callable[..., Any]) -> None:
    peer = Peer(start_worker(address="tcp:127.0.0.1:0"))
    welcome = peer.send_aside(Hello(peer.worker.ticket, torch.__version__))
    assert isinstance(welcome, stream.Welcome) and welcome.grace_ms == 0
    assert peer.does_sync(1)
    with pytest.raises(OSError):
        peer.resume()
    peer.socket.close()


def test_a_client_that_resumes_nothing_is_sent_no_acknowledgements(start_worker: Callable[..., Any]) -> None:
    """One of a release that had no resumption would take them for frames."""
    client = start_worker(*GRACE, address="tcp:127.0.0.1:0").connect()
    with client.socket:
        assert isinstance(client.hello(), stream.Welcome)
        storage = client.upload(torch.ones(3 << 20, dtype=torch.uint8))
        assert isinstance(client.sync(), stream.Done)
        assert client.read(storage, 4) == bytes([1, 1, 1, 1])
