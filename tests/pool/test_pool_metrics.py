"""What the pool tells Prometheus when something is wrong; ``tests/monitoring`` looks at names, labels and all that goes well."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from forebay_pool.model.health import Reading
from forebay_pool.model.types import Session
from forebay_pool.views.metrics import Metrics
from forebay_wire import messages as wire
from forebay_wire.messages import Heartbeat
from prometheus_client import generate_latest
from sqlalchemy.exc import OperationalError
from tornado.httpclient import AsyncHTTPClient

Make = Callable[..., Any]
NOBODY = "http://127.0.0.1:9/"
GPU = 'Hostname="main",UUID="{}",device="nvidia{}",gpu="{}",modelName="H100"'


async def page(running: Any) -> str:
    return (await running.call("GET", "metrics", None)).body.decode()


async def until_told(running: Any, line: str) -> None:
    """Waits until a line of the page begins so."""
    async with asyncio.timeout(20):
        while not re.search(rf"^{line}", await page(running), re.MULTILINE):
            await asyncio.sleep(0.02)


def test_a_silent_worker_is_a_lost_heartbeat(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(heartbeat_seconds=0.3, call_seconds_max=0.5, resume_seconds=0) as running:
            client = await running.client()
            await client.hello()
            await client.acquire()
            assert 'forebay_pool_heartbeats_lost_total{link="worker"} 0.0' in await page(running)
            client.work("mute")
            await client.hears(wire.SessionLost)
            text = await page(running)
            assert 'forebay_pool_heartbeats_lost_total{link="worker"} 1.0' in text
            assert "forebay_pool_sessions_lost_total 1.0" in text

    asyncio.run(scenario())


def test_usage_that_billing_does_not_take_is_counted_and_ages(pool: Make) -> None:
    settings = {"billing_url": NOBODY, "hub_token": "x", "billing_heartbeat_seconds": 0.1}

    async def scenario() -> None:
        async with pool(**settings) as running:
            client = await running.client()
            await client.hello()
            await client.acquire()
            client.work("mark")
            await client.hears(wire.LeaseClosed)
            await until_told(running, r'forebay_pool_undelivered_records\{state="waiting"\} 1.0')
            await until_told(running, r"forebay_pool_undelivered_oldest_seconds (0\.[1-9]|[1-9])")
            await until_told(running, r"forebay_pool_deliveries_failed_total [1-9]")
            await until_told(running, r'forebay_pool_billing_heartbeats_total\{outcome="failed"\} [1-9]')
            text = await page(running)
            assert 'forebay_pool_undelivered_records{state="refused"} 0.0' in text
            assert 'forebay_pool_billing_heartbeats_total{outcome="taken"} 0.0' in text

    asyncio.run(scenario())


def test_a_database_that_does_not_answer_hides_its_own_figures_alone(pool: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise OperationalError("select", {}, Exception("gone"))

    async def scenario() -> None:
        async with pool() as running:
            assert "forebay_pool_undelivered_records{" in await page(running)
            monkeypatch.setattr(running.service.store, "count_undelivered", gone)
            text = await page(running)
            assert "forebay_pool_undelivered" not in text and "forebay_pool_accepting 1.0" in text

    asyncio.run(scenario())


def test_through_a_proxy_metrics_are_for_operators_and_services(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            codes = {}
            for who in (None, "ada", "operator"):
                headers = {"X-Forwarded-For": "192.0.2.1"} | ({"Authorization": f"token {who}"} if who else {})
                codes[who] = (await AsyncHTTPClient().fetch(running.service.url + "metrics", headers=headers, raise_error=False)).code
            assert codes == {None: 401, "ada": 403, "operator": 200}

    asyncio.run(scenario())


def test_devices_are_told_as_dcgm_tells_them_and_an_xid_until_an_operator_has_seen_to_it(pool: Make) -> None:
    class Probe:
        readings: tuple[Reading, ...] = (
            Reading("main/cuda:0", 61, 0, 31, utilisation_percent=40, memory_used_bytes=3 * 2**30, power_watts=310.5, uuid="GPU-1"),
            Reading("main/cuda:1", 62),
            Reading("elsewhere/cuda:0", 63),
        )

        def read(self) -> list[Reading]:
            return list(self.readings)

    async def scenario() -> None:
        devices = [{"kind": "cuda", "model": "H100", "memory": "80 GiB", "count": 2}]
        async with pool(devices=devices, warm_workers=0) as running:
            probe = Probe()
            watch = asyncio.create_task(running.service.shell.watch_health(probe, 0.02))
            first, second = GPU.format("GPU-1", 0, 0), GPU.format("", 1, 1)
            await until_told(running, "DCGM_FI_DEV_GPU_TEMP")
            told = {line for line in (await page(running)).splitlines() if line.startswith("DCGM")}
            figures = {"GPU_TEMP": 61.0, "GPU_UTIL": 40.0, "FB_USED": 3072.0, "POWER_USAGE": 310.5, "XID_ERRORS": 31.0}
            figures["ECC_DBE_VOL_TOTAL"] = 0.0
            wanted = {f"DCGM_FI_DEV_{name}{{{first}}} {figure}" for name, figure in figures.items()}
            assert told == wanted | {f"DCGM_FI_DEV_GPU_TEMP{{{second}}} 62.0"}
            probe.readings = (Reading("main/cuda:0", 60),)
            await until_told(running, r"DCGM_FI_DEV_GPU_TEMP\{.*\} 60.0")
            text = await page(running)
            assert f"DCGM_FI_DEV_XID_ERRORS{{{first.replace('GPU-1', '')}}} 31.0" in text and "nvidia1" not in text
            await running.call("PUT", "api/devices/main/cuda:0", body={"cordoned": False})
            assert "DCGM_FI_DEV_XID_ERRORS{" not in await page(running)
            watch.cancel()

    asyncio.run(scenario())


def test_work_is_counted_from_a_workers_start_or_from_when_this_pool_first_heard_of_it() -> None:
    metrics, session = Metrics(), SimpleNamespace(tenant="acme", flavor="small.64gb")

    def beat(worker: str, seconds: int, commands: int, of: Any = session) -> None:
        said = Heartbeat(epoch=1, memory_bytes=0, busy_ns=seconds * 10**9, commands=commands)
        metrics.beat(worker, of if of is None else _session(of), said)

    metrics.worker_started("own")
    beat("own", 2, 20)
    beat("own", 5, 50)
    beat("another pool's", 1000, 9000)
    beat("another pool's", 1001, 9001)
    beat("own", 6, 60, None)
    metrics.worker_gone("own")
    text = generate_latest(metrics.registry).decode()
    assert 'forebay_pool_worker_busy_seconds_total{flavor="small.64gb",tenant="acme"} 6.0' in text
    assert 'forebay_pool_worker_commands_total{flavor="small.64gb",tenant="acme"} 51.0' in text


def _session(stands_for: Any) -> Session:
    found: Session = stands_for
    return found
