"""Collectives that workers' devices make by a library of theirs: here gloo, on devices of the host, in the place that NCCL has on GPUs."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fork_server
import pytest
import torch
from conftest import DTYPES, bytes_of, pid_of
from forebay_wire import messages, stream, vocabulary
from forebay_wire.vocabulary import Collective, Parcel, Reduction, Span
from forebay_worker import WorkerError
from forebay_worker.groups import device_library
from forebay_worker.pytorch import SeenDevice
from test_group_sums import MIB, Members, made_of, uploaded, values

HOST = SeenDevice("cpu:0", "cpu", "cpu-dev", 1 << 30)
SIZES = (70_001, 300_000)
OPENED, DECLINED = "collectives are made by gloo", "devices make no collectives by gloo"
UNWILLING = (str(Path(__file__).with_name("unwilling_library_worker.py")),)
SUMS = (Reduction.SUM, Reduction.AVERAGE)
END_SECONDS_MAX = 20
EXACT = {torch.float64: 1e-14, torch.float32: 1e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}
"""By how much another order of a sum of four may change it, of the largest of what is added."""


@pytest.fixture
def device_environment(device_environment: dict[str, str]) -> dict[str, str]:
    """May be changed between workers."""
    return device_environment | {"FOREBAY_WORKER_COLLECTIVES": "gloo"}


@pytest.fixture
def worker_python() -> Path:
    return fork_server.collectives()


@pytest.fixture
def connected(start_worker: Any) -> Iterator[Callable[..., Any]]:
    found = []

    def connect(**options: Any) -> Any:
        found.append(start_worker(**options).connect())
        assert isinstance(found[-1].hello(), stream.Welcome)
        return found[-1]

    yield connect
    for client in found:
        client.socket.close()


def times_said(folder: Path, words: str) -> int:
    return sum(path.read_text().count(words) for path in folder.glob("worker-*.log"))


def check_sum(found: list[bytes], parts: list[torch.Tensor], reduction: Reduction) -> None:
    """The same bits on all ranks, and what is added in another order: special values as they are, the others within rounding."""
    assert len(set(found)) == 1, "ranks have other bits"
    ours, wanted = torch.frombuffer(bytearray(found[0]), dtype=parts[0].dtype), made_of([part.double() for part in parts], reduction)
    if not parts[0].is_floating_point():
        assert torch.equal(ours, made_of(parts, reduction))
        return
    limits, finite = torch.finfo(parts[0].dtype), torch.stack([part.double() for part in parts]).nan_to_num(0, 0, 0).abs()
    fits = finite.sum(0) < limits.max  # in whichever order
    ours, wanted, largest = ours.double()[fits], wanted[fits], finite.amax(0)[fits]
    assert torch.equal(ours.isnan(), wanted.isnan())
    assert torch.equal(ours[wanted.isinf()], wanted[wanted.isinf()])
    there = wanted.isfinite()
    least = limits.smallest_normal * limits.eps
    assert ((ours - wanted).abs()[there] <= EXACT[parts[0].dtype] * largest[there] + least).all()


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_sums_of_all_types_have_the_same_bits_on_all_ranks(connected: Any, tmp_path: Path, ranks: int) -> None:
    members = Members([connected() for _ in range(ranks)], 1).meet()
    kinds = [(dtype, reduction) for dtype in EXACT for reduction in SUMS]
    kinds += [(dtype, reduction) for dtype in (torch.int64, torch.int32) for reduction in (Reduction.SUM, Reduction.MIN, Reduction.MAX)]
    for seed, (dtype, reduction) in enumerate(kinds):
        parts = [values(ranks, size, dtype, seed) for size in SIZES]
        ids = [members.upload(part) for part in parts]
        members.each(*((one, part[0], reduction) for one, part in zip(ids, parts, strict=True)))
        for one, part in zip(ids, parts, strict=True):
            check_sum(members.read(one, part[0]), part, reduction)
    assert times_said(tmp_path, OPENED) == ranks


def test_what_the_library_does_otherwise_and_what_is_small_goes_by_the_hosts(connected: Any, tmp_path: Path) -> None:
    """A maximum with NaN, truths, complex numbers and bytes; and a few numbers."""
    members = Members([connected() for _ in range(3)], 1).meet()
    for dtype, reduction, size in (
        (torch.float32, Reduction.MAX, 70_001), (torch.float64, Reduction.PRODUCT, 70_001), (torch.bool, Reduction.SUM, 70_001),
        (torch.uint8, Reduction.SUM, 70_001), (torch.float32, Reduction.SUM, 100),
    ):  # fmt: skip
        part = values(3, size, dtype, 1)
        ids = members.upload(part)
        members.each((ids, part[0], reduction))
        found, wanted = members.read(ids, part[0]), made_of(part, reduction)
        assert len(set(found)) == 1
        ours = torch.frombuffer(bytearray(found[0]), dtype=dtype)
        assert torch.equal(plain(ours), plain(wanted))
    assert times_said(tmp_path, OPENED) == 0


def plain(value: torch.Tensor) -> torch.Tensor:
    """With a number in the place of NaN."""
    return value.nan_to_num() if value.is_floating_point() else value


def reduce(members: Members, what: Collective, inputs: list[Span], results: list[Span], dtype: torch.dtype = torch.float32) -> None:
    for rank, client in enumerate(members.clients):
        client.send(vocabulary.Reduce(members.group, what, DTYPES[dtype], Reduction.SUM, inputs[rank], results[rank]))


def test_a_sum_is_scattered_beside_its_input_and_into_it(connected: Any, tmp_path: Path) -> None:
    ranks, each = 3, 50_000
    members = Members([connected() for _ in range(ranks)], 1).meet()
    parts = [torch.randn(ranks * each) for _ in range(ranks)]
    wanted = made_of(parts, Reduction.SUM).view(ranks, each)
    ids, beside = members.upload(parts), members.upload([torch.full((each + 3,), 7.0)] * ranks)
    reduce(members, Collective.REDUCE_SCATTER, [Span(one, 0, 4 * ranks * each) for one in ids], [Span(one, 12, 4 * each) for one in beside])
    for rank, client in enumerate(members.clients):
        made = torch.frombuffer(bytearray(client.read(beside[rank], 4 * each + 12)), dtype=torch.float32)
        assert torch.equal(made[:3], torch.full((3,), 7.0))
        assert torch.allclose(made[3:], wanted[rank], rtol=0, atol=1e-5)
    reduce(
        members, Collective.REDUCE_SCATTER,
        [Span(one, 0, 4 * ranks * each) for one in ids], [Span(one, 4 * each * rank, 4 * each) for rank, one in enumerate(ids)],
    )  # fmt: skip
    for rank, client in enumerate(members.clients):
        whole = torch.frombuffer(bytearray(client.read(ids[rank], 4 * ranks * each)), dtype=torch.float32)
        assert torch.allclose(whole.view(ranks, each)[rank], wanted[rank], rtol=0, atol=1e-5)
    assert times_said(tmp_path, OPENED) == ranks


def exchange(members: Members, what: Collective, sizes: list[list[int]]) -> None:
    """Each rank's bytes to each other, of so many in its row; all must arrive."""
    count, clients = len(sizes), members.clients
    sent = [[torch.randint(0, 256, (size,), dtype=torch.uint8) for size in row] for row in sizes]
    ours = [[uploaded(client, one) for one in row] for client, row in zip(clients, sent, strict=True)]
    empty = [[torch.zeros(row[column], dtype=torch.uint8) for row in sizes] for column in range(count)]
    theirs = [[uploaded(client, one) for one in row] for client, row in zip(clients, empty, strict=True)]

    def parcels(rank: int) -> tuple[tuple[Parcel, ...], tuple[Parcel, ...]]:
        out = tuple(Parcel(other, Span(ours[rank][other], 0, sizes[rank][other])) for other in range(count))
        return out, tuple(Parcel(other, Span(theirs[rank][other], 0, sizes[other][rank])) for other in range(count))

    members.exchange(what, parcels)
    members.settle()
    for row in range(count):
        for column in range(count):
            assert members.clients[row].read(theirs[row][column], sizes[column][row]) == bytes_of(sent[column][row])


@pytest.mark.parametrize("what", [Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER, Collective.ALL_GATHER])
def test_messages_among_all_arrive_whole_whatever_their_sizes(connected: Any, tmp_path: Path, what: Collective) -> None:
    """Uneven, nothing among them, and of one rank small ones alone; to itself, too."""
    members = Members([connected() for _ in range(4)], 1).meet()
    chance = random.Random(what)
    exchange(members, what, [[chance.choice((0, 1, 5 * MIB + 3, 70_001)) if row else 16 for _ in range(4)] for row in range(4)])
    assert times_said(tmp_path, OPENED) == 4


def test_a_broadcast_reaches_all_from_any_rank(connected: Any, tmp_path: Path) -> None:
    members = Members([connected() for _ in range(3)], 1).meet()
    for root in (2, 0):
        value = torch.randn(MIB)
        ids = members.upload([value if rank == root else torch.zeros(MIB) for rank in range(3)])
        spans = [Span(one, 0, 4 * MIB) for one in ids]

        def parcels(rank: int, root: int = root, spans: list[Span] = spans) -> tuple[tuple[Parcel, ...], tuple[Parcel, ...]]:
            if rank == root:
                return tuple(Parcel(other, spans[rank]) for other in range(3) if other != root), ()
            return (), (Parcel(root, spans[rank]),)

        members.exchange(Collective.BROADCAST, parcels)
        assert set(members.read(ids, value)) == {bytes_of(value)}
    assert times_said(tmp_path, OPENED) == 3


def test_two_members_send_each_other_large_messages_and_small_ones_in_order(connected: Any, tmp_path: Path) -> None:
    """The third one is not asked."""
    members = Members([connected() for _ in range(3)], 1).meet()
    sizes = [3 * MIB + 1, 0, 5, 2 * MIB]
    values_of = [[torch.randint(0, 256, (size,), dtype=torch.uint8) for size in sizes] for _ in range(2)]
    ids = [[uploaded(members.clients[rank], one) for one in values_of[rank]] for rank in range(2)]
    into = [[uploaded(members.clients[rank], torch.zeros_like(one)) for one in values_of[rank]] for rank in range(2)]
    for _ in range(2):
        for rank in range(2):
            out = tuple(Parcel(1 - rank, Span(one, 0, size)) for one, size in zip(ids[rank], sizes, strict=True))
            back = tuple(Parcel(1 - rank, Span(one, 0, size)) for one, size in zip(into[rank], sizes, strict=True))
            members.clients[rank].send(vocabulary.Exchange(1, Collective.MESSAGE, out, back))
    for rank in range(2):
        for one, value in zip(into[rank], values_of[1 - rank], strict=True):
            assert members.clients[rank].read(one, value.numel()) == bytes_of(value)
    assert times_said(tmp_path, OPENED) == 2


def test_messages_among_several_do_not_wait_for_each_other(connected: Any) -> None:
    """Rank 0 exchanges with both others at once. Rank 2 comes only when rank 1 has what rank 0 sent."""
    members = Members([connected() for _ in range(3)], 1).meet()
    first, second, third = members.clients
    value = torch.randint(0, 256, (3 * MIB,), dtype=torch.uint8)
    nothing = torch.zeros_like(value)
    sent, from_third, at_second, at_third = (
        uploaded(client, one) for client, one in ((first, value), (first, nothing), (second, nothing), (third, value.flip(0)))
    )
    met = members.upload([torch.ones(3)] * 3)
    members.each((met, torch.ones(3), Reduction.SUM))
    members.settle()
    span = [Span(one, 0, 3 * MIB) for one in (sent, from_third, at_second, at_third)]
    first.send(vocabulary.Exchange(1, Collective.MESSAGE, (Parcel(1, span[0]),), (Parcel(2, span[1]),)))
    second.send(vocabulary.Exchange(1, Collective.MESSAGE, (), (Parcel(0, span[2]),)))
    assert second.read(at_second, 3 * MIB) == bytes_of(value)
    third.send(vocabulary.Exchange(1, Collective.MESSAGE, (Parcel(0, span[3]),), ()))
    assert first.read(from_third, 3 * MIB) == bytes_of(value.flip(0))


@pytest.mark.parametrize("wrong", ["size", "type", "collective", "list"])
def test_members_that_call_different_collectives_hear_of_it(connected: Any, wrong: str) -> None:
    members = Members([connected() for _ in range(2)], 1).meet()
    ids = members.upload([torch.ones(MIB), torch.ones(MIB)])
    spans = [Span(one, 0, 4 * MIB) for one in ids]
    reduce(members, Collective.ALL_REDUCE, spans, spans)
    first, second = members.clients
    first.send(vocabulary.Reduce(1, Collective.ALL_REDUCE, DTYPES[torch.float32], Reduction.SUM, spans[0], spans[0]))
    if wrong == "size":
        less = Span(ids[1], 0, 2 * MIB)
        second.send(vocabulary.Reduce(1, Collective.ALL_REDUCE, DTYPES[torch.float32], Reduction.SUM, less, less))
    elif wrong == "type":
        second.send(vocabulary.Reduce(1, Collective.ALL_REDUCE, DTYPES[torch.int32], Reduction.SUM, spans[1], spans[1]))
    elif wrong == "collective":
        second.send(vocabulary.Exchange(1, Collective.ALL_GATHER, (Parcel(0, spans[1]),), (Parcel(0, spans[1]),)))
    else:
        halves = [Span(ids[1], 0, MIB), Span(ids[1], MIB, 3 * MIB)]
        items = tuple(vocabulary.InPlace(DTYPES[torch.float32], Reduction.SUM, one) for one in halves)
        second.send(vocabulary.ReduceEach(1, items))
    said = []
    for client in members.clients:
        reply = client.sync()
        assert isinstance(reply, stream.Failure), reply
        said.append(reply.message)
    assert any(("called all_reduce" if wrong != "list" else "different tensors") in sentence for sentence in said), said


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_killed_in_a_sum_ends_those_of_the_others_in_time(start_worker: Any, seed: int) -> None:
    chance = random.Random(seed)
    workers = [start_worker() for _ in range(2 + seed % 3)]
    clients = [worker.connect() for worker in workers]
    for client in clients:
        assert isinstance(client.hello(), stream.Welcome)
    members = Members(clients, 1, patience_ms=60_000).meet()
    ids = members.upload([torch.ones(2 * MIB)] * len(clients))
    spans = [Span(one, 0, 8 * MIB) for one in ids]
    dead = chance.randrange(len(clients))
    for _ in range(100):
        reduce(members, Collective.ALL_REDUCE, spans, spans)
    time.sleep(chance.uniform(0, 0.4))
    os.kill(pid_of(clients[dead]), signal.SIGKILL)
    killed = time.monotonic()
    for rank, client in enumerate(clients):
        with client.socket:
            if rank == dead:
                continue
            reply = client.sync()
            assert isinstance(reply, stream.Failure), reply
            assert f"rank {dead}" in reply.message
            assert time.monotonic() - killed < END_SECONDS_MAX


def test_members_with_other_settings_reduce_by_their_hosts(connected: Any, device_environment: dict[str, str], tmp_path: Path) -> None:
    """In the order of ranks then, to the bit."""
    clients = [connected()]
    device_environment["FOREBAY_WORKER_COLLECTIVES_BYTES"] = "4096"
    clients.append(connected())
    device_environment["FOREBAY_WORKER_COLLECTIVES"] = "host"
    clients.append(connected())
    members = Members(clients, 1).meet()
    part = values(3, 70_001, torch.float32, 1)
    ids = members.upload(part)
    members.each((ids, part[0], Reduction.SUM))
    found = members.read(ids, part[0])
    ours, wanted = torch.frombuffer(bytearray(found[0]), dtype=torch.float32), made_of(part, Reduction.SUM)
    assert len(set(found)) == 1
    assert torch.equal(ours.nan_to_num(), wanted.nan_to_num())
    assert times_said(tmp_path, OPENED) == 0


@pytest.mark.parametrize(("library", "said"), [("broken", 3), ("shared", 0)])
def test_a_library_that_cannot_be_opened_leaves_collectives_to_the_hosts(
    connected: Any, device_environment: dict[str, str], tmp_path: Path, library: str, said: int
) -> None:
    """One member cannot: all say so, once. Or two are on one device, which is no reason to say anything."""
    clients = [connected(), connected()] if library == "broken" else []
    device_environment["FOREBAY_TEST_LIBRARY"] = library
    clients += [connected(program=UNWILLING) for _ in range(3 - len(clients))]
    members = Members(clients, 1).meet()
    for _ in range(2):
        part = values(3, 70_001, torch.float32, 1)
        ids = members.upload(part)
        members.each((ids, part[0], Reduction.SUM))
        ours, wanted = torch.frombuffer(bytearray(members.read(ids, part[0])[0]), dtype=torch.float32), made_of(part, Reduction.SUM)
        assert torch.equal(ours.nan_to_num(), wanted.nan_to_num())
    assert times_said(tmp_path, DECLINED) == said
    assert times_said(tmp_path, OPENED) == 0


def test_a_member_that_leaves_its_device_has_a_communicator_made_anew(start_on_pool: Any) -> None:
    """Parked while the other one waits in the collective, which goes on when its lease is back."""
    linked = [start_on_pool(), start_on_pool()]
    members = Members([one.serve() for one in linked], 1, patience_ms=60_000).meet()
    part = values(2, 300_000, torch.float32, 1)
    ids = members.upload(part)
    spans = [Span(one, 0, part[0].nbytes) for one in ids]
    reduce(members, Collective.ALL_REDUCE, spans, spans)
    once = made_of(part, Reduction.SUM)
    assert torch.equal(torch.frombuffer(bytearray(members.read(ids, once)[0]), dtype=torch.float32).nan_to_num(), once.nan_to_num())
    linked[0].drain(members.clients[0])
    linked[0].pool.send(messages.Park(host_bytes_max=1 << 30, spill_bytes_max=1 << 30))
    linked[0].pool.expect(messages.Parked)
    reduce(members, Collective.ALL_REDUCE, spans, spans)
    linked[0].pool.expect(messages.Starved)
    linked[0].open()
    twice = [torch.frombuffer(bytearray(one), dtype=torch.float32) for one in members.read(ids, once)]
    assert torch.equal(twice[0].nan_to_num(), (once + once).nan_to_num())
    assert bytes_of(twice[0]) == bytes_of(twice[1])
    for client in members.clients:
        client.socket.close()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("COLLECTIVES", "many"), ("COLLECTIVES", "nccl"), ("COLLECTIVES_BYTES", "many"), ("COLLECTIVES_BYTES", "0")],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(f"FOREBAY_WORKER_{variable}", value)
    with pytest.raises(WorkerError, match=f"FOREBAY_WORKER_{variable} is '?{value}"):
        device_library.library_of(HOST, None)


def test_devices_of_the_host_have_no_library_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for chosen in ("auto", "host"):
        monkeypatch.setenv("FOREBAY_WORKER_COLLECTIVES", chosen)
        assert device_library.library_of(HOST, None) is None


def test_a_library_listens_where_its_worker_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the interface that has the address; a worker on a Unix socket has no need of another one than the loopback."""
    assert device_library.interface_of("127.0.0.1") == "lo"
    assert device_library.interface_of("0.0.0.0") is None  # noqa: S104 that no interface has
    for listen, interface in ((None, "=lo"), ("unix:/run/w.sock", "=lo"), ("tcp:127.0.0.1:0", "=lo"), ("tcp:0.0.0.0:0", None)):
        monkeypatch.delenv("NCCL_SOCKET_IFNAME", raising=False)
        device_library.set_up_nccl(listen)
        assert os.environ.get("NCCL_SOCKET_IFNAME") == interface
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "eth7")
    device_library.set_up_nccl("tcp:127.0.0.1:0")
    assert os.environ["NCCL_SOCKET_IFNAME"] == "eth7"
