"""The pool on a Ray cluster of four nodes on this machine: real workers, gangs, and what the death of an actor or a node does."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from forebay_wire import messages as wire
from forebay_wire import stream
from processes import own_address

ray = pytest.importorskip("ray")
from forebay_pool.hosts.probes import Drivers, HostWatch, NamedDevice  # noqa: E402
from forebay_pool.hosts.ray_host import Host  # noqa: E402
from forebay_pool.hosts.ray_nodes import NODE_LABEL, RayNode, devices_of, named_apart  # noqa: E402
from forebay_pool.hosts.ray_probes import RayProbe  # noqa: E402
from forebay_pool.model.health import Reading, judge  # noqa: E402
from forebay_pool.settings import DeviceGroup  # noqa: E402
from forebay_service.errors import SettingsError  # noqa: E402
from ray.util import placement_group_table  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
STORE_BYTES = 80 * 2**20
UNNEEDED = {"include_log_monitor": False}
"""A process of each node that sends workers' output to drivers, of which none asks for it."""
NO_WORKERS_YET = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
"""Ray's own, a process for each processor, that would wait for tasks: a worker of ours is an actor, which starts its own."""
NODES = 3
"""With devices; the head has none."""
MODELS = ("cpu-dev", "cpu-dev", "cpu-fast")


class RayCluster:
    """Four nodes on loopback addresses of their own: Ray takes 127.0.0.1 for another word for the host's address."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "node_ip_address": "127.0.0.2", "include_dashboard": False, **UNNEEDED}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = {f"n{number}": self.add(f"n{number}", number) for number in range(NODES)}
        self.cluster.wait_for_nodes()

    def add(self, name: str, number: int) -> Any:
        labels = {"forebay.io/model": MODELS[number], "forebay.io/node": name, "forebay.io/switch": f"s{number // 2}"}
        return self.cluster.add_node(
            wait=False, num_cpus=1, object_store_memory=STORE_BYTES, node_ip_address=f"127.0.0.{number + 3}", labels=labels, **UNNEEDED
        )

    def kill(self, name: str) -> None:
        """Ends all of the node's processes at once."""
        node = self.nodes[name]
        for infos in list(node.all_processes.values()):
            for info in infos:
                process = psutil.Process(info.process.pid)
                for one in [*process.children(recursive=True), process]:
                    one.kill()


def started() -> RayCluster:
    """A cluster; on a busy machine Ray's own limit of 30 s for a node's start may pass once or twice."""
    for _ in range(2):
        with contextlib.suppress(Exception):
            return RayCluster()
    return RayCluster()


@pytest.fixture(scope="module")
def temperatures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the devices' drivers say, a line each."""
    return tmp_path_factory.mktemp("drivers") / "temperatures"


@pytest.fixture(scope="module")
def cluster(temperatures: Path) -> Iterator[RayCluster]:
    libraries = os.pathsep.join([str(Path(__file__).parent / "node_libraries"), os.environ.get("PYTHONPATH", "")])
    nodes = {"PYTHONPATH": libraries, "FOREBAY_TEST_TEMPERATURES": str(temperatures)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120", **NO_WORKERS_YET, **nodes}.items():
            patch.setenv(name, value)
        made = started()
        yield made
        made.cluster.shutdown()


@pytest.fixture
def on_ray(pool: Callable[..., Any], cluster: RayCluster) -> Callable[..., Any]:
    """A pool whose workers run on the cluster."""
    group = {"kind": "cpu", "memory": "2 GiB", "count": 1}
    return lambda more_devices=(), **more: pool(
        **more,
        launcher="ray",
        ray_address=cluster.cluster.address,
        worker_python=Path(sys.executable),
        devices=[{**group, "model": model} for model in ("cpu-dev", "cpu-fast", *more_devices)],
        warm_workers=0,
        heartbeat_seconds=0.5,
        idle_release_seconds=60.0,
    )


async def put_flavor(running: Any, name: str, *equivalents: dict[str, Any]) -> None:
    answer = await running.call("PUT", f"api/flavors/{name}", body={"memory_bytes": 2**30, "equivalents": list(equivalents)})
    assert answer.code == 200, answer.body


async def lease(running: Any, flavor: str) -> tuple[Any, wire.Granted]:
    client = await running.client()
    await client.hello(flavor)
    await client.ask()
    return client, await client.hears(wire.Granted)


def worker_process(worker: str) -> psutil.Process:
    """The worker's process on this machine."""
    running = ((process, process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))
    return next(process for process, command in running if worker in command and "forebay_worker" in command)


def test_a_cluster_that_does_not_answer_is_told_at_once_in_a_sentence(pool: Callable[..., Any]) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(SettingsError, match=rf"^no Ray cluster answers at '{address}' \(.*Connect call failed.*\): start one, or set"):
            async with pool(launcher="ray", ray_address=address):
                pass

    began = time.monotonic()
    asyncio.run(scenario())
    assert time.monotonic() - began < 60, "Ray itself tries for minutes"


def test_workers_run_on_the_nodes_that_their_labels_say_and_die_with_their_actor(on_ray: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with on_ray() as running:
            devices = {row["device"]: row["model"] for row in await running.get("api/devices")}
            assert devices == {"n0/cpu:0": "cpu-dev", "n1/cpu:0": "cpu-dev", "n2/cpu:0": "cpu-fast"}
            await put_flavor(running, "fast", {"model": "cpu-fast", "count": 1})
            client, granted = await lease(running, "fast")
            assert (granted.device.model, granted.address.split(":")[:2]) == ("cpu-fast", ["tcp", "127.0.0.5"])
            process = worker_process(granted.worker)
            os.kill(process.ppid(), signal.SIGKILL)
            closed = await client.hears(wire.LeaseClosed)
            assert closed.reason == "failed"
            await client.hears(wire.SessionLost)
            await running.until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
            await client.hello("fast")
            await client.ask()
            assert (await client.hears(wire.Granted)).worker != granted.worker

    asyncio.run(scenario())


def test_the_nodes_own_drivers_say_how_their_devices_are(cluster: RayCluster, temperatures: Path) -> None:
    temperatures.write_text("54 99")
    group = DeviceGroup(kind="cuda", model="cpu-dev", memory=2**30, count=3)
    ray.init(address=cluster.cluster.address, namespace="probes", log_to_driver=False, configure_logging=False)
    try:
        rows = [RayNode.of(row) for row in ray.nodes() if row["Alive"]]
        nodes = [(node, devices_of(node, [group])) for node in rows if node.name in ("n0", "n1")]
        probe = RayProbe(lambda: nodes, Drivers(nvidia=str(temperatures)))
        readings: dict[str, Reading] = {}
        until = time.monotonic() + 100
        while len(readings) < 6:  # the actors may start one after the other
            assert time.monotonic() < until, readings
            readings |= {reading.device: reading for reading in probe.read()}
        assert [judge(readings[f"n1/cuda:{index}"], 0).level for index in range(3)] == ["good", "drain", "drain"]
        assert (readings["n0/cuda:1"].temperature_celsius, readings["n0/cuda:2"].lost) == (99, "error 15")
        nodes[:] = [(node, devices) for node, devices in nodes if node.name == "n1"]
        temperatures.write_text("54 60 61")
        assert sorted(reading.temperature_celsius for reading in probe.read()) == [54, 60, 61]
    finally:
        ray.shutdown()


def test_nodes_need_no_package_of_ours(temperatures: Path) -> None:
    temperatures.write_text("54")
    sent = [(HostWatch, [NamedDevice("n0/cuda:0", "cuda", 0)], Drivers(nvidia=str(temperatures))), (Host, None, None)]
    there = """
import pickle, sys
sys.modules["forebay_pool"] = None
(watch, devices, drivers), (host, *_) = pickle.loads(sys.stdin.buffer.read())
print([reading.temperature_celsius for reading in watch(devices, drivers).read()], host().output())
"""
    paths = os.pathsep.join([str(Path(__file__).parent / "node_libraries"), *sys.path])
    environment = {"PYTHONPATH": paths, "FOREBAY_TEST_TEMPERATURES": str(temperatures)}
    command = [sys.executable, "-c", there]
    done = subprocess.run(command, input=ray.cloudpickle.dumps(sent), env=environment, capture_output=True, check=False)
    assert done.stdout == b"[54] []\n", done.stderr


def test_a_gang_holds_devices_of_several_nodes_and_gives_all_of_them_back(on_ray: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with on_ray() as running:
            await put_flavor(running, "pair", {"model": "cpu-dev", "count": 2})
            client, granted = await lease(running, "pair")
            assert granted.devices == 2
            held = {row["device"] for row in await running.get("api/devices") if row["state"] == "leased"}
            assert held == {"n0/cpu:0", "n1/cpu:0"}
            await client.say(wire.Release(epoch=granted.epoch))
            await client.hears(wire.LeaseClosed)
            await running.until(running.records)
            assert running.records()[0]["devices"] == 2

    asyncio.run(scenario())


@pytest.mark.skipif(not own_address(), reason="this host has the loopback interface alone")
@pytest.mark.parametrize("plaintext", [False, True])
def test_a_worker_on_a_node_beyond_this_host_is_reached_by_tls_and_in_clear_if_the_pool_says_that_it_may(
    on_ray: Callable[..., Any], cluster: RayCluster, plaintext: bool
) -> None:
    labels = {"forebay.io/model": "cpu-beyond", "forebay.io/node": "beyond"}
    node = cluster.cluster.add_node(
        num_cpus=1, object_store_memory=STORE_BYTES, node_ip_address=own_address(), labels=labels, **UNNEEDED
    )

    async def scenario() -> None:
        async with on_ray(plaintext=plaintext, more_devices=("cpu-beyond",), worker_attempts_max=1) as running:
            await running.until(lambda: "beyond" in running.machine.fleet.nodes)
            await put_flavor(running, "beyond", {"model": "cpu-beyond", "count": 1})
            client = await running.client()
            await client.hello("beyond")
            await client.ask()
            granted = await client.hears(wire.Granted)
            assert granted.address.startswith(f"tcp:{own_address()}:") and granted.certificate is not None
            peer, answer = await asyncio.to_thread(greeted, granted)
            peer.close()
            assert isinstance(answer, stream.Welcome if plaintext else stream.Refused)
            await client.say(wire.Release(epoch=granted.epoch))
            await client.hears(wire.LeaseClosed)
            await running.until(running.records)

    try:
        asyncio.run(scenario())
    finally:
        cluster.cluster.remove_node(node)


def greeted(granted: wire.Granted) -> tuple[socket.socket, stream.Reply]:
    """The client's connection to a worker, in clear, and what that answers."""
    host, port = granted.address.removeprefix("tcp:").rsplit(":", 1)
    peer = socket.create_connection((host, int(port)), timeout=60)
    writer = stream.CommandWriter()
    writer.add(stream.Hello(bytes.fromhex(granted.ticket), "2.13.0"))
    peer.sendall(stream.frame(writer.take()))
    return peer, stream.decode_reply(stream.read_frame(peer) or b"")


def filled(granted: wire.Granted) -> socket.socket:
    """The client's connection to a worker, after two storages of which no device of the lease holds more than one."""
    peer, answer = greeted(granted)
    assert isinstance(answer, stream.Welcome)
    writer = stream.CommandWriter()
    for storage in (1, 2):
        writer.add(stream.Allocate(storage, 400 << 20))
        writer.add(stream.Write(storage, 0, bytes([storage])))
    for storage in (1, 2):
        writer.add(stream.Read(storage, storage, 0, 2))
    peer.sendall(stream.frame(writer.take()))
    for storage in (1, 2):
        reply = stream.decode_reply(stream.read_frame(peer) or b"")
        assert isinstance(reply, stream.Data) and reply.data == bytes([storage, 0])
    return peer


def others_of(granted: wire.Granted) -> list[psutil.Process]:
    """The processes of a lease's devices on other nodes than its worker's."""
    running = [(process, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    hosts = {f"tcp:127.0.0.{number}:0" for number in range(2, 10)} - {f"{granted.address.rpartition(':')[0]}:0"}
    return [process for process, command in running if "--standalone" in command and hosts & set(command)]


@pytest.mark.full_sweep
def test_a_gang_on_two_nodes_holds_what_neither_device_holds_and_ends_with_either(on_ray: Callable[..., Any]) -> None:
    async def scenario() -> None:
        async with on_ray() as running:
            await put_flavor(running, "pair", {"model": "cpu-dev", "count": 2})
            client, granted = await lease(running, "pair")
            with await asyncio.to_thread(filled, granted) as peer:
                (other,) = others_of(granted)
                assert other.memory_info().data > 400 << 20  # zeros that nobody wrote take no pages
                other.kill()
                assert (await client.hears(wire.LeaseClosed)).reason == "failed"
                await client.hears(wire.SessionLost)
                said = stream.decode_reply(await asyncio.to_thread(stream.read_frame, peer) or b"")
            assert said == stream.Refused("device 2 of this session has ended", goes_on=True)
            assert not running.records() or running.records()[0]["close_reason"] == "failed"

    asyncio.run(scenario())


def descends_from(process: psutil.Process, node: Any) -> bool:
    """Whether the node's Ray started it."""
    return bool({one.pid for one in process.parents()} & {info.process.pid for infos in node.all_processes.values() for info in infos})


@pytest.mark.full_sweep
def test_a_gang_is_a_placement_group_on_its_nodes_and_nothing_of_a_pool_outlives_it(
    on_ray: Callable[..., Any], cluster: RayCluster
) -> None:
    async def scenario() -> None:
        async with on_ray(resume_seconds=30.0) as running:
            await put_flavor(running, "pair", {"model": "cpu-dev", "count": 2})
            await put_flavor(running, "fast", {"model": "cpu-fast", "count": 1})
            _, granted = await lease(running, "pair")
            (group,) = [one for one in placement_group_table().values() if one["name"] == granted.worker]
            there = {node.node_id for name, node in cluster.nodes.items() if name in ("n0", "n1")}
            assert (group["state"], set(group["bundles_to_node_id"].values())) == ("CREATED", there)
            process = worker_process(granted.worker)
            assert descends_from(process, cluster.nodes[running.machine.fleet.workers[granted.worker].device.node])
            _, alone = await lease(running, "fast")
            assert descends_from(worker_process(alone.worker), cluster.nodes["n2"])
            assert not [name for name in process.environ() if name.startswith("RAY_")]
        assert not ray.is_initialized()

    asyncio.run(scenario())
    ray.init(address=cluster.cluster.address, namespace="forebay", log_to_driver=False, configure_logging=False)
    try:
        assert ray.util.list_named_actors() == []
        assert {one["state"] for one in placement_group_table().values()} == {"REMOVED"}
    finally:
        ray.shutdown()


@pytest.mark.full_sweep
def test_workers_on_ray_are_taken_over_by_the_pool_that_leads_next(on_ray: Callable[..., Any]) -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        async with on_ray(port=port, resume_seconds=30.0) as first:
            await put_flavor(first, "pair", {"model": "cpu-dev", "count": 2})
            client = await first.client()
            opened = await client.hello("pair")
            await client.ask()
            granted = await client.hears(wire.Granted)
            process = worker_process(granted.worker)
            await first.until(lambda: first.machine.sessions[client.session].lease.confirmed_ns > 0)
            await first.until(lambda: first.rows("open_leases") and first.rows("workers"))  # its successor knows of them
            lease = first.machine.sessions[client.session].lease
            before_ns = lease.confirmed_ns - lease.opened_ns
            await first.service.leave()
            assert process.is_running()
            async with on_ray(port=port, resume_seconds=30.0) as second:
                session = second.machine.sessions[client.session]
                assert (session.lease.id, session.worker.id) == (granted.lease, granted.worker)
                await second.until(lambda: session.worker.away_ns is None)
                assert {row["device"] for row in await second.get("api/devices") if row["state"] == "leased"} == {"n0/cpu:0", "n1/cpu:0"}
                again = await second.client()
                await again.say(wire.ResumeSession(session=client.session, key=opened.resume_key, epoch=granted.epoch))
                await again.hears(wire.SessionOpened)
                await again.say(wire.Release(epoch=granted.epoch))
                closed = await again.hears(wire.LeaseClosed)
                assert closed.lease == granted.lease and closed.duration_ns > 0 and closed.duration_ns >= before_ns
                await again.link.close()
                await second.until(lambda: granted.worker not in second.machine.fleet.workers)
                await second.until(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
                with pytest.raises(ValueError, match="Failed to look up actor"):
                    ray.get_actor(granted.worker, namespace="forebay")
            first.machine.sessions.clear()
            first.machine.fleet.workers.clear()

    asyncio.run(scenario())


@pytest.mark.full_sweep
def test_the_death_of_a_node_is_noticed_and_who_computed_there_starts_again_elsewhere(
    on_ray: Callable[..., Any], cluster: RayCluster
) -> None:
    async def scenario() -> None:
        async with on_ray() as running:
            await put_flavor(running, "any", {"model": "cpu-fast", "count": 1}, {"model": "cpu-dev", "count": 1})
            await put_flavor(running, "fast", {"model": "cpu-fast", "count": 1})
            client, granted = await lease(running, "fast")
            assert granted.device.model == "cpu-fast"
            cluster.kill("n2")
            assert (await client.hears(wire.LeaseClosed)).reason == "failed"
            await client.hears(wire.SessionLost)
            await client.hello("any")
            await client.ask()
            again = await client.hears(wire.Granted)
            assert again.device.model == "cpu-dev"
            seat = running.machine.fleet.seats["n2/cpu:0"]
            await running.until(lambda: seat.state == "lost", seconds=60)
            cluster.nodes["n2"] = cluster.add("n2", 2)  # here, for Ray sets signal handlers: the pool stands still meanwhile
            await running.until(lambda: seat.state == "free", seconds=60)

    asyncio.run(scenario())


@pytest.mark.full_sweep
def test_a_node_whose_ray_is_started_again_before_its_end_is_noticed_is_another_of_the_same_name(
    on_ray: Callable[..., Any], cluster: RayCluster
) -> None:
    async def scenario() -> None:
        async with on_ray() as running:
            await put_flavor(running, "fast", {"model": "cpu-fast", "count": 1})
            client, _ = await lease(running, "fast")
            before = cluster.nodes["n2"].node_id
            cluster.kill("n2")
            cluster.nodes["n2"] = cluster.add("n2", 2)
            both = [row["NodeID"] for row in ray.nodes() if row["Alive"] and row["Labels"].get(NODE_LABEL) == "n2"]
            assert sorted(both) == sorted([before, cluster.nodes["n2"].node_id])
            assert (await client.hears(wire.LeaseClosed)).reason == "failed"
            await client.hears(wire.SessionLost)
            await running.until(lambda: before not in [row["NodeID"] for row in ray.nodes() if row["Alive"]], seconds=60)
            await running.until(lambda: [*running.service._nodes].count(cluster.nodes["n2"].node_id) == 1, seconds=10)
            await client.hello("fast")
            await client.ask()
            granted = await client.hears(wire.Granted)
            assert descends_from(worker_process(granted.worker), cluster.nodes["n2"])
            states = {row["device"]: row["state"] for row in await running.get("api/devices")}
            assert states == {"n0/cpu:0": "free", "n1/cpu:0": "free", "n2/cpu:0": "leased"}

    asyncio.run(scenario())


def test_a_node_keeps_its_name_while_it_lives_and_no_other_gets_it() -> None:
    def names(known: list[RayNode], *living: RayNode) -> list[str]:
        return [node.name for node in named_apart(living, {node.id: node for node in known})]

    old, new = (RayNode(letter * 12, "host", "10.0.0.1") for letter in "ab")
    assert names([], old) == ["host"]
    assert names([], old, new) == ["host-aaaaaaaa", "host-bbbbbbbb"]
    assert names([old], new, old) == ["host", "host-bbbbbbbb"]
    apart = named_apart([old, new], {old.id: old})
    assert names(apart, new) == ["host-bbbbbbbb"]
    old, new = (RayNode(letter * 12, "n2", "10.0.0.2", {NODE_LABEL: "n2"}) for letter in "ab")
    assert [node.id for node in named_apart([new, old], {old.id: old})] == [old.id]
    assert [node.id for node in named_apart([new], {old.id: old})] == [new.id]
