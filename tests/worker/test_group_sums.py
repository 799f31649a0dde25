"""Reductions among workers of one host, through memory that they share: bit for bit, whatever values, sizes, types and number of ranks."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import pytest
import torch
from conftest import DTYPES, bytes_of, pid_of
from forebay_wire import stream, vocabulary
from forebay_wire.vocabulary import Collective, InPlace, Parcel, Reduction, Span
from group_member import OTHER, greeting, opened, path_of
from two_hosts import Network

MIB = 1 << 20
SIZES = (0, 1, 2, 3, 4095, 4097, 70_001, 300_000)
"""Some of them less than there are ranks, some no multiple of their number, some in several windows."""
REALS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WAYS: dict[Reduction, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    Reduction.SUM: torch.add,
    Reduction.AVERAGE: torch.add,
    Reduction.PRODUCT: torch.mul,
    Reduction.MIN: torch.minimum,
    Reduction.MAX: torch.maximum,
}


def uploaded(client: Any, value: torch.Tensor) -> int:
    """A storage that is there."""
    storage: int = client.upload(value)
    assert isinstance(client.sync(), stream.Done)
    return storage


class Members:
    """Clients whose sessions are the ranks of a process group."""

    def __init__(self, clients: Sequence[Any], group: int, patience_ms: int = 10_000) -> None:
        self.clients, self.group = clients, group
        self.doors = [opened(client, group, rank, len(clients), patience_ms) for rank, client in enumerate(clients)]

    def meet(self, hosts: str = "", network: Network | None = None) -> Members:
        """``hosts``: a letter for each rank; those of other hosts reach a rank over the network."""
        for rank, client in enumerate(self.clients):
            for other, door in enumerate(self.doors):
                if other != rank:
                    is_far = network is not None and hosts[rank] != hosts[other] and other < rank
                    address = network.address(door.address) if network is not None and is_far else door.address
                    client.send(vocabulary.Member(self.group, other, address, door.ticket))
        return self

    def upload(self, values: Sequence[torch.Tensor]) -> list[int]:
        return [uploaded(client, value) for client, value in zip(self.clients, values, strict=True)]

    def read(self, storages: Sequence[int], like: torch.Tensor) -> list[bytes]:
        return [client.read(storage, like.nbytes) for client, storage in zip(self.clients, storages, strict=True)]

    def each(self, *lists: tuple[list[int], torch.Tensor, Reduction]) -> None:
        for rank, client in enumerate(self.clients):
            items = (InPlace(DTYPES[like.dtype], reduction, Span(ids[rank], 0, like.nbytes)) for ids, like, reduction in lists)
            client.send(vocabulary.ReduceEach(self.group, tuple(items)))

    def exchange(self, what: Collective, parcels: Callable[[int], tuple[tuple[Parcel, ...], tuple[Parcel, ...]]]) -> None:
        for rank, client in enumerate(self.clients):
            client.send(vocabulary.Exchange(self.group, what, *parcels(rank)))

    def settle(self) -> None:
        for client in self.clients:
            assert isinstance(reply := client.sync(), stream.Done), reply


@pytest.fixture
def clients(start_worker: Any) -> Iterator[list[Any]]:
    found = [start_worker().connect() for _ in range(4)]
    for client in found:
        assert isinstance(client.hello(), stream.Welcome)
    yield found
    for client in found:
        client.socket.close()


def values(ranks: int, size: int, dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """Ordinary ones, and those that break what is nearly right: zeros of both signs, a rank of zeros alone, NaN, infinities."""
    torch.manual_seed(seed)
    if not dtype.is_floating_point:
        found = [torch.randint(0, 5, (size,)).to(dtype) for _ in range(ranks)]
    else:
        found = [(torch.randn(size, dtype=torch.float64) * 10.0 ** torch.randint(-3, 4, (size,))).to(dtype) for _ in range(ranks)]
        special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 60_000.0], dtype=dtype)
        for value in found:
            places = torch.randint(0, 12, (size,))
            value[places < 6] = special[places[places < 6]]
    if seed % 3 == 0:
        found[seed % ranks].zero_()
    return found


def made_of(parts: Sequence[torch.Tensor], reduction: Reduction) -> torch.Tensor:
    if parts[0].dtype == torch.bool:
        return reduce(torch.logical_and if reduction == Reduction.PRODUCT else torch.logical_or, parts)
    made = reduce(WAYS[reduction], parts)
    return made / len(parts) if reduction == Reduction.AVERAGE else made


def check(found: Sequence[bytes], wanted: torch.Tensor, reduction: Reduction = Reduction.SUM) -> None:
    assert len(set(found)) == 1, "ranks have other bits"
    ours = torch.frombuffer(bytearray(found[0]), dtype=wanted.dtype) if found[0] else wanted
    if not wanted.is_floating_point():
        assert torch.equal(ours, wanted)
        return
    assert torch.equal(ours.isnan(), wanted.isnan())
    there = ~wanted.isnan()
    if reduction in (Reduction.MIN, Reduction.MAX):  # which of two zeros is the least is not said
        assert torch.equal(ours[there], wanted[there])
    else:
        assert bytes_of(ours[there]) == bytes_of(wanted[there])


@pytest.mark.everywhere
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_all_ranks_have_the_sum_in_the_order_of_ranks_bit_for_bit(clients: list[Any], ranks: int) -> None:
    members = Members(clients[:ranks], 1).meet()
    kinds = [(dtype, reduction) for dtype in REALS for reduction in WAYS]
    kinds += [(torch.int64, Reduction.SUM), (torch.uint8, Reduction.MAX), (torch.bool, Reduction.SUM), (torch.bool, Reduction.PRODUCT)]
    for seed, (dtype, reduction) in enumerate(kinds):
        parts = [values(ranks, size, dtype, seed) for size in SIZES]
        ids = [members.upload(part) for part in parts]
        members.each(*((one, part[0], reduction) for one, part in zip(ids, parts, strict=True)))
        for one, part in zip(ids, parts, strict=True):
            check(members.read(one, part[0]), made_of(part, reduction), reduction)


@pytest.mark.everywhere
def test_kinds_may_be_mixed_and_come_again_with_the_same_bits(clients: list[Any]) -> None:
    members = Members(clients[:3], 1).meet()
    kinds = [(torch.float32, Reduction.SUM), (torch.float16, Reduction.AVERAGE)] * 2
    kinds[2] = (torch.float32, Reduction.MAX)
    found = []
    for _ in range(2):
        parts = [values(3, size, dtype, seed) for seed, ((dtype, _), size) in enumerate(zip(kinds * 2, SIZES, strict=True))]
        ids = [members.upload(part) for part in parts]
        members.each(*((one, part[0], kind[1]) for one, part, kind in zip(ids, parts, kinds * 2, strict=True)))
        found.append([members.read(one, part[0]) for one, part in zip(ids, parts, strict=True)])
        for read, part, kind in zip(found[-1], parts, kinds * 2, strict=True):
            check(read, made_of(part, kind[1]), kind[1])
    assert found[0] == found[1]


@pytest.mark.everywhere
def test_messages_larger_than_the_memory_that_is_shared_arrive_whole_and_in_order(clients: list[Any]) -> None:
    """From each to each other at once, of sizes that are no multiple of anything, some of them nothing."""
    members = Members(clients, 1).meet()
    sizes = [[random.Random(100 * row + column).choice((0, 1, 5 * MIB + 3, 70_001)) for column in range(4)] for row in range(4)]
    sent = [[torch.randint(0, 256, (sizes[row][column],), dtype=torch.uint8) for column in range(4)] for row in range(4)]
    ours = [[uploaded(clients[row], one) for one in sent[row]] for row in range(4)]
    theirs = [[uploaded(clients[row], torch.zeros(sizes[column][row], dtype=torch.uint8)) for column in range(4)] for row in range(4)]

    def parcels(rank: int) -> tuple[tuple[Parcel, ...], tuple[Parcel, ...]]:
        out = tuple(Parcel(other, Span(ours[rank][other], 0, sizes[rank][other])) for other in range(4))
        return out, tuple(Parcel(other, Span(theirs[rank][other], 0, sizes[other][rank])) for other in range(4))

    members.exchange(Collective.ALL_TO_ALL, parcels)
    members.settle()
    for row in range(4):
        for column in range(4):
            assert members.clients[row].read(theirs[row][column], sizes[column][row]) == bytes_of(sent[column][row])


@pytest.mark.parametrize(("hosts", "copies"), [("aabb", 2), ("abab", 2), ("aaab", 3), ("aab", 3)])
def test_across_hosts_goes_what_one_member_of_each_would_send(clients: list[Any], hosts: str, copies: int) -> None:
    """Hosts add up their own members' first, where they have equally many; else all reduce together, and more goes across."""
    part = values(len(hosts), MIB + 5, torch.float32, 1)
    with Network() as network:
        members = Members(clients[: len(hosts)], 1).meet(hosts, network)
        ids = members.upload(part)
        members.each((ids, part[0], Reduction.SUM))
        found = members.read(ids, part[0])
        for client in members.clients:
            client.send(vocabulary.Part(1))
        members.settle()
    if len(hosts) == 4 and copies == 2:
        part = [made_of([one for one, at in zip(part, hosts, strict=True) if at == host], Reduction.SUM) for host in "ab"]
    check(found, made_of(part, Reduction.SUM))
    assert network.bytes < 1.1 * copies * part[0].nbytes


@pytest.mark.parametrize("seed", range(6))
def test_a_rank_killed_in_a_sum_ends_those_of_the_others_in_time_and_leaves_nothing(start_worker: Any, seed: int) -> None:
    """At a moment of chance, and of 2 to 4 ranks; a group without the dead one goes on."""
    chance = random.Random(seed)
    before = set(os.listdir("/dev/shm"))
    workers = [start_worker() for _ in range(2 + seed % 3)]
    clients = [worker.connect() for worker in workers]
    for client in clients:
        assert isinstance(client.hello(), stream.Welcome)
    members = Members(clients, 1, patience_ms=20_000).meet()
    ids = members.upload([torch.ones(2 * MIB)] * len(clients))
    span = [Span(one, 0, 8 * MIB) for one in ids]
    dead, pids = chance.randrange(len(clients)), [pid_of(client) for client in clients]
    for _ in range(200):  # as many as the sockets take, and more than are made before the kill
        for rank, client in enumerate(clients):
            client.send(vocabulary.Reduce(1, Collective.ALL_REDUCE, DTYPES[torch.float32], Reduction.SUM, span[rank], span[rank]))
    time.sleep(chance.uniform(0, 0.1))
    os.kill(pids[dead], signal.SIGKILL)
    killed = time.monotonic()
    for rank, client in enumerate(clients):
        if rank == dead:
            continue
        reply = client.sync()
        assert isinstance(reply, stream.Failure), reply
        assert f"rank {dead} of the process group" in reply.message
    assert time.monotonic() - killed < 15
    left_over = set(os.listdir("/dev/shm")) - before  # other tests leave theirs meanwhile
    assert not [name for name in left_over if any(str(pid) in name for pid in pids)]
    left = Members([client for rank, client in enumerate(clients) if rank != dead], 2).meet()
    ids = left.upload([torch.full((5,), 2.0)] * len(left.clients))
    left.each((ids, torch.empty(5), Reduction.SUM))
    check(left.read(ids, torch.empty(5)), torch.full((5,), 2.0 * len(left.clients)))
    for client in clients:
        client.socket.close()


def memory(size: int, seals: int, said: bytes = b"") -> int:
    """A descriptor of what is attached to a greeting; what is ``said`` lies where counts begin."""
    descriptor = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    os.pwrite(descriptor, said, COUNTS_AT)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor



COUNTS_AT, RING_BYTES = 4096, 8192 + MIB
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


@pytest.mark.parametrize(
    ("attached", "sentence"),
    [
        (lambda: os.open("/dev/null", os.O_RDWR), "rank 1 of the process group shares no memory"),
        (lambda: memory(RING_BYTES, 0), "rank 1 of the process group shares no memory"),
        (lambda: memory(4096, SEALS), "rank 1 of the process group shares no memory"),
        (lambda: memory(RING_BYTES, SEALS, struct.pack("<Q", MIB + 1)), "rank 1 of the process group broke the protocol"),
        (lambda: memory(RING_BYTES, SEALS, struct.pack("<Q", 24)), "rank 1 of the process group broke the protocol"),
    ],
)
def test_what_a_stranger_attaches_ends_the_group_and_not_the_session(client: Any, attached: Callable[[], int], sentence: str) -> None:
    """No memory, such as may shrink, too little, more bytes than there is room for, and a header of zeros."""
    door, storage = opened(client), client.upload(torch.ones(3))
    span = Span(storage, 0, 12)
    client.send(vocabulary.Member(1, 1, "unix:/nowhere", OTHER))
    client.send(vocabulary.Reduce(1, Collective.ALL_REDUCE, DTYPES[torch.float32], Reduction.SUM, span, span))
    with socket.socket(socket.AF_UNIX) as peer:
        peer.settimeout(10)
        peer.connect(path_of(door.address))
        stream.read_frame(peer)
        descriptor = attached()
        socket.send_fds(peer, [stream.frame(greeting(door.ticket, 1))], [descriptor])
        os.close(descriptor)
        reply = client.sync()
    assert isinstance(reply, stream.Failure)
    assert sentence in reply.message
    assert client.read(storage, 4)
