"""The pool's demand makes Ray's own autoscaler start nodes, and what the pool gives back it ends: with Ray's provider of local nodes."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
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

ray = pytest.importorskip("ray")
from forebay_pool.hosts.ray_autoscaler import resource_of  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full_sweep,
    pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
PYTHON = Path(sys.executable)
HEAD_ID = "f" * 51 + "00000"
"""Which node the provider takes for the head."""
STORE_BYTES = 80 * 2**20
MODEL = "cpu-dev"
PATIENCE_SECONDS = 240.0


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def configuration(address: str) -> dict[str, Any]:
    """A cluster whose worker nodes are processes on this host."""
    worker = {
        "resources": {"CPU": 1, "object_store_memory": STORE_BYTES, resource_of(MODEL): 1},
        "labels": {"forebay.io/model": MODEL},
        "node_config": {},
        "min_workers": 0,
        "max_workers": 2,
    }
    head = {"resources": {"CPU": 0, "object_store_memory": STORE_BYTES}, "node_config": {}, "max_workers": 0}
    provider = {
        "type": "external", "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
        "disable_node_updaters": True, "disable_launch_config_check": True, "launch_multiple": True, "use_node_id_as_ip": True,
        "head_node_id": HEAD_ID, "gcs_address": address,
    }  # fmt: skip
    empty: dict[str, Any] = {"file_mounts": {}, "cluster_synced_files": [], "auth": {}, "file_mounts_sync_continuously": False}
    steps = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")
    commands: dict[str, list[str]] = {f"{step}_commands": [] for step in steps}
    return {
        "cluster_name": "forebay", "max_workers": 2, "upscaling_speed": 100.0, "idle_timeout_minutes": 0.1, "provider": provider,
        "available_node_types": {"ray.head.default": head, "lends": worker}, "head_node_type": "ray.head.default", **empty, **commands,
    }  # fmt: skip


@pytest.fixture(scope="module", params=["1", "2"], ids=["v1", "v2"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster that has only its head, and an autoscaler of that version."""
    folder, port = tmp_path_factory.mktemp("ray"), free_port()
    own = socket.gethostbyname(socket.gethostname())
    file = folder / "cluster.json"
    file.write_text(json.dumps(configuration(f"{own}:{port}")))
    environment = {**os.environ, "AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_FAKE_CLUSTER": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    environment |= {"RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID, "RAY_CLOUD_INSTANCE_ID": HEAD_ID, "RAY_raylet_start_wait_time_s": "120"}
    environment |= {"RAY_enable_autoscaler_v2": "1"} if request.param == "2" else {}
    options = [f"--node-ip-address={own}", f"--port={port}", "--num-cpus=0", "--include-dashboard=false"]
    options.append(f"--object-store-memory={STORE_BYTES}")
    command = [PYTHON.with_name("ray"), "start", "--head", "--block", *options, f"--autoscaling-config={file}"]
    head = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    known: set[int] = set()
    try:
        until = time.monotonic() + PATIENCE_SECONDS
        while not answers(own, port):
            assert head.poll() is None and time.monotonic() < until, "Ray's head does not begin"
            time.sleep(0.5)
        yield f"{own}:{port}"
    finally:
        known |= {process.pid for process in [psutil.Process(head.pid), *psutil.Process(head.pid).children(recursive=True)]}
        known |= {process.pid for process in psutil.process_iter(["cmdline"]) if f"{own}:{port}" in " ".join(process.info["cmdline"] or ())}
        for pid in known:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        head.wait()


def answers(host: str, port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((host, port), 1):
        return True
    return False


def test_demand_starts_a_node_and_idleness_ends_it(pool: Callable[..., Any], address: str) -> None:
    async def scenario() -> None:
        async with pool(**settings(address)) as running:
            assert await running.get("api/nodes") == []
            client = await running.client()
            await client.hello()
            await client.ask()
            waits = await client.hears(wire.Queued)
            while waits.code != "shortage" or "a host for it is being started" not in waits.said():
                waits = await client.hears(wire.Queued)
            await running.until(lambda: holds_lease(running), PATIENCE_SECONDS)
            (node,) = await running.get("api/nodes")
            assert (node["state"], node["leases"]) == ("up", 1)
            await client.close()
            await running.until(lambda: not running.machine.sessions, PATIENCE_SECONDS)
            await running.until(lambda: not running.machine.fleet.nodes, PATIENCE_SECONDS)
            living = [row for row in await asyncio.to_thread(ray.nodes) if row["Alive"]]
            assert [resource_of(MODEL) in row["Resources"] for row in living] == [False], "only the head is left"

    asyncio.run(scenario())


def test_a_node_that_its_provider_takes_back_is_drained_and_replaced(
    pool: Callable[..., Any], address: str, request: pytest.FixtureRequest
) -> None:
    replaced = "v2" in request.node.name  # version 1 counts it among those that are there until it is gone

    async def scenario() -> None:
        async with pool(**settings(address)) as running:
            client = await running.client()
            await client.hello()
            await client.ask()
            await running.until(lambda: holds_lease(running), PATIENCE_SECONDS)
            (name,) = running.machine.fleet.nodes
            await asyncio.to_thread(reclaim, address, next(node.id for node in running.service._nodes.values() if node.name == name))
            await running.until(lambda: running.machine.fleet.nodes[name].drains, PATIENCE_SECONDS)
            await running.until(lambda: len(running.machine.fleet.nodes) == 1 + replaced, PATIENCE_SECONDS)
            states = {row["node"]: (row["state"], row["releases"]) for row in await running.get("api/nodes")}
            assert states.pop(name) == ("draining", False) and list(states.values()) == replaced * [("up", False)]
            await client.close()

    asyncio.run(scenario())


def reclaim(address: str, node: str) -> None:
    """As a handler of the provider's notice does."""
    why = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "taken back", "--deadline-remaining-seconds", "120"]
    command = [PYTHON.with_name("ray"), "drain-node", "--address", address, "--node-id", node, *why]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)


def settings(address: str) -> dict[str, Any]:
    group = {"kind": "cpu", "model": MODEL, "memory": "2 GiB", "count": 1, "nodes_max": 2, "start_seconds": 20}
    own = {"launcher": "ray", "ray_address": address, "devices": [group], "worker_python": PYTHON, "warm_workers": 0}
    return {**own, "elastic_release_seconds": 5.0, "idle_release_seconds": 60.0, "worker_start_seconds": 120.0}


def holds_lease(running: Any) -> bool:
    return any(session.lease is not None for session in running.machine.sessions.values())
