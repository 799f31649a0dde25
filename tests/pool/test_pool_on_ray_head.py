"""The head of a Ray cluster ends and comes back, with its state in Redis: sessions outlive it. Needs ``redis-server`` on PATH."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from forebay_wire import messages as wire

pytest.importorskip("ray")
from test_pool_on_ray import NO_WORKERS_YET, NODES, RayCluster, lease, started, worker_process

REDIS = shutil.which("redis-server")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.full_sweep,
    pytest.mark.skipif(REDIS is None, reason="redis-server is not installed"),
    pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]
AWAY_SECONDS = 8.0
"""Longer than three heartbeats of a worker here, and than a dozen looks at the nodes."""
BACK_SECONDS = 12.0


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    command = [str(REDIS), "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(folder)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    yield f"127.0.0.1:{port}"
    process.kill()
    process.wait()


@pytest.fixture(scope="module")
def cluster(redis: str) -> Iterator[RayCluster]:
    settings = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_raylet_start_wait_time_s": "120", "RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**settings, **NO_WORKERS_YET, "RAY_REDIS_ADDRESS": redis, "RAY_external_storage_namespace": "forebay"}.items():
            patch.setenv(name, value)
        made = started()
        yield made
        made.cluster.shutdown()


def test_a_head_that_ends_and_comes_back_with_its_state_ends_no_session(pool: Callable[..., Any], cluster: RayCluster) -> None:
    group = {"kind": "cpu", "memory": "2 GiB", "count": 1}
    settings: dict[str, Any] = {
        "launcher": "ray",
        "ray_address": cluster.cluster.address,
        "worker_python": Path(sys.executable),
        "devices": [{**group, "model": "cpu-dev"}, {**group, "model": "cpu-fast"}],
        "warm_workers": 0,
        "heartbeat_seconds": 0.5,
        "idle_release_seconds": 60.0,
    }

    async def scenario() -> None:
        async with pool(**settings) as running:
            nodes = running.machine.fleet.nodes
            await running.until(lambda: len(nodes) == NODES)
            client, granted = await lease(running, "dev.1gb")
            worker = worker_process(granted.worker)
            head = cluster.cluster.head_node
            head.kill_gcs_server()
            await asyncio.sleep(AWAY_SECONDS)
            assert client.session in running.machine.sessions and worker.is_running()
            head.start_gcs_server()
            await asyncio.sleep(BACK_SECONDS)
            assert [node.state for node in nodes.values()] == ["up"] * NODES
            assert worker.is_running() and running.machine.sessions[client.session].lease is not None
            other, second = await lease(running, "dev.1gb")  # Ray starts workers again
            assert second.worker != granted.worker and worker_process(second.worker).is_running()
            await client.say(wire.Release(epoch=granted.epoch))
            assert (await client.hears(wire.LeaseClosed)).reason == "released"
            await other.say(wire.Release(epoch=second.epoch))
            await other.hears(wire.LeaseClosed)
            await running.until(lambda: len(running.records()) == 2)
            assert not [row for row in running.records() if row["close_reason"] == "failed"]

    asyncio.run(scenario())
