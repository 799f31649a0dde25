"""What workers that are reached over a network tell the pool of their certificates, and each other by TLS."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
from forebay_wire import messages, stream, vocabulary
from link_to_pool import WAIT_SECONDS_MAX, Linked
from processes import own_address

pytestmark = pytest.mark.skipif(not own_address(), reason="this host has the loopback interface alone")
Start = Callable[..., Linked]
LISTEN = ("--listen", f"tcp:{own_address()}:0")
OTHER = "0f" * 32
BYTES = 5 << 20


def left_with_bytes(worker: Linked) -> tuple[messages.Left, dict[int, torch.Tensor]]:
    """A session that uploads and leaves the worker."""
    client = worker.serve()
    made = {client.upload(tensor): tensor for tensor in (torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (1, 70_000, BYTES))}
    client.send(stream.Leave(client.request()))
    assert isinstance(client.reply(), stream.Done)
    return worker.pool.expect(messages.Left), made


def test_a_session_moves_between_workers_by_tls(start_on_pool: Start) -> None:
    old, new = start_on_pool(*LISTEN), start_on_pool(*LISTEN)
    left, made = left_with_bytes(old)
    assert old.certificate is not None and new.certificate not in (None, old.certificate)
    assert left.certificate == old.certificate
    new.assign(left.source)
    new.pool.expect(messages.Assigned)
    new.open()
    client = new.client()
    for storage, tensor in made.items():
        assert client.read(storage, tensor.numel()) == bytes(tensor.numpy())


def test_a_session_is_fetched_from_no_other_worker_than_the_pool_told_of(start_on_pool: Start) -> None:
    old, new = start_on_pool(*LISTEN), start_on_pool(*LISTEN)
    left, _ = left_with_bytes(old)
    new.assign(left.source.model_copy(update={"certificate": OTHER}))
    assert new.process.wait(WAIT_SECONDS_MAX) == 1
    assert new.process.stderr is not None
    assert f"cannot be fetched from {left.address}: it shows another certificate than the pool told of" in new.process.stderr.read()


def test_a_session_is_not_fetched_in_clear_from_a_worker_that_speaks_tls_alone(start_on_pool: Start) -> None:
    old, new = start_on_pool(*LISTEN), start_on_pool(*LISTEN)
    left, _ = left_with_bytes(old)
    new.assign(left.source.model_copy(update={"certificate": None}))
    assert new.process.wait(WAIT_SECONDS_MAX) == 1


@pytest.mark.parametrize("plaintext", [False, True])
def test_process_groups_meet_over_a_network_only_where_that_may_be_in_clear(start_on_pool: Start, plaintext: bool) -> None:
    client = start_on_pool(*LISTEN, *(["--plaintext"] if plaintext else [])).serve()
    client.send(vocabulary.OpenDoor(client.request(), 1, 0, 2, 1000))
    reply: Any = client.reply()
    if plaintext:
        assert isinstance(reply, vocabulary.Door)
    else:
        assert isinstance(reply, stream.Failure)
        assert reply.message == "process groups go over the network in clear, which is refused here: the pool's setting plaintext allows it"


def test_a_pool_that_finds_its_worker_again_is_told_the_certificate(start_on_pool: Start) -> None:
    worker = start_on_pool(*LISTEN, "--resume-seconds", "20")
    worker.pool.drop()
    assert worker.pool.expect(messages.ResumeWorker).certificate == worker.certificate


def test_who_speaks_noise_instead_of_tls_keeps_nobody_out(start_on_pool: Start) -> None:
    """The first byte is that of a handshake, or of nothing known; some say nothing at all."""
    worker = start_on_pool(*LISTEN)
    worker.assign()
    worker.pool.expect(messages.Assigned)
    worker.open()
    host, port = worker.address.removeprefix("tcp:").rsplit(":", 1)
    strangers = [socket.create_connection((host, int(port))) for _ in range(4)]
    for stranger, noise in zip(strangers, (b"\x16\x03\x01\x02\x00\x01\x00", b"\x16" * 4096, bytes(range(256)), b""), strict=True):
        stranger.sendall(noise)
    client = worker.client()
    storage = client.upload(torch.arange(4, dtype=torch.uint8))
    assert client.read(storage, 4) == bytes([0, 1, 2, 3])
    for stranger in strangers:
        stranger.close()
