"""Two pools as the chart starts them, on one database: the one that leads is ready, and no other, so the Service leads to it."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fork_server
import httpx
from chart import POD_IP, Chart, rendered

START_SECONDS = 30.0


@contextmanager
def pool(chart: Chart, folder: Path, database_url: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A pool in the container's environment, but for the address of its pod, its database, and Ray and its nodes, which are not here."""
    file = folder / "pool.toml"
    file.write_text(chart.file("pool", "pool.toml"), encoding="utf-8")
    own = {name: value.replace(POD_IP, "127.0.0.1").replace(":8091", f":{port}") for name, value in chart.environment("pool").items()}
    own |= {"FOREBAY_POOL_DATABASE_URL": database_url, "FOREBAY_POOL_WARM_WORKERS": "0"}
    own |= {"FOREBAY_POOL_LAUNCHER": "local", "FOREBAY_POOL_DEVICES": "[]"}
    own |= {"FOREBAY_POOL_STATE_DIR": str(folder / str(port))}
    process = subprocess.Popen([fork_server.services(), "-m", "forebay_pool", "--config", str(file)], env=own, cwd=folder)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def probed(chart: Chart, kind: str, port: int) -> int | None:
    """The status that the kubelet would see."""
    path = chart.pod("pool").spec["containers"][0][kind]["httpGet"]["path"]
    try:
        return httpx.get(f"http://127.0.0.1:{port}{path}").status_code
    except httpx.TransportError:
        return None


def eventually(chart: Chart, port: int, status: int) -> None:
    """Returns once the pool's readiness is this."""
    until = time.monotonic() + START_SECONDS
    while (found := probed(chart, "readinessProbe", port)) != status:
        assert time.monotonic() < until, f"{found} instead of {status}"
        time.sleep(0.05)


def test_the_pool_that_leads_is_ready_and_the_one_that_waits_lives(helm: str, tmp_path: Path, postgres_url: str) -> None:
    chart, first, second = rendered(helm, "gpus"), free_port(), free_port()
    with pool(chart, tmp_path, postgres_url, first) as leader:
        eventually(chart, first, 200)
        with pool(chart, tmp_path, postgres_url, second):
            eventually(chart, second, 503)
            assert probed(chart, "livenessProbe", first) == probed(chart, "livenessProbe", second) == 200
            leader.send_signal(signal.SIGTERM)
            eventually(chart, second, 200)
