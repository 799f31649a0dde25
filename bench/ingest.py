"""How many usage records a second billing makes durable, over HTTP, on SQLite with full synchronisation."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tornado.httpclient import AsyncHTTPClient, HTTPRequest

ROOT = Path(__file__).resolve().parents[1]
TOKEN = "token-of-the-benchmark"
READY_SECONDS_MAX = 20


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="forebay-ingest-") as folder:
        figures = [measure(Path(folder), options.batch, callers, options.seconds) for callers in options.callers]
    single = figures[0]["records_per_second"]
    print(f"{'callers':>8} {'batch':>6} {'records/s':>10} {'÷ one':>6} {'p50 ms':>8} {'p99 ms':>8}")
    for figure in figures:
        figure["ratio_to_one_caller"] = round(figure["records_per_second"] / single, 2)
        print(
            f"{figure['callers']:8} {figure['batch']:6} {figure['records_per_second']:10.0f} {figure['ratio_to_one_caller']:6.2f} "
            f"{figure['p50_ms']:8.1f} {figure['p99_ms']:8.1f}"
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"benchmark": "ingest", "processors": os.cpu_count(), "figures": figures}, indent=2) + "\n")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=100, help="records in a request (default 100)")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 4], help="requests in flight, one run each (default 1 4)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run (default 5)")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "ingest.json", help="where the figures go as JSON")
    return parser.parse_args()


def measure(folder: Path, batch: int, callers: int, seconds: float) -> dict[str, float]:
    """One run against a fresh service; every answer is checked, and the sum in the end."""
    database = folder / f"{callers}.sqlite3"
    config = folder / f"{callers}.toml"
    config.write_text(
        f'database_url = "sqlite:///{database}"\nport = 0\nlog_level = "INFO"\n'
        f'[[tokens]]\ntoken = "{TOKEN}"\nname = "bench"\nkind = "service"\nscopes = ["custom:forebay:service"]\n'
    )
    log = folder / f"{callers}.log"
    path = os.pathsep.join([str(ROOT / "billing"), str(ROOT / "hub")])
    with log.open("w") as stderr:
        command = [sys.executable, "-m", "forebay_billing", "--config", str(config)]
        service = subprocess.Popen(command, stderr=stderr, env={**os.environ, "PYTHONPATH": path})
        try:
            return asyncio.run(load(address_of(log, service), batch, callers, seconds))
        finally:
            service.terminate()
            service.wait()


def address_of(log: Path, service: subprocess.Popen[bytes]) -> str:
    """Waits until the service says its port."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline and service.poll() is None:
        for line in log.read_text().splitlines():
            if "action=service.start" in line:
                return f"http://127.0.0.1:{line.partition('port=')[2].split()[0]}"
        time.sleep(0.05)
    raise SystemExit(f"The service did not start:\n{log.read_text()}")


async def load(address: str, batch: int, callers: int, seconds: float) -> dict[str, float]:
    client = AsyncHTTPClient(force_instance=True, max_clients=callers)
    headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
    delays: list[float] = []
    deadline = time.monotonic() + seconds

    async def call(caller: int) -> None:
        sent = 0
        while time.monotonic() < deadline:
            body = json.dumps({"records": [record(caller, sent * batch + n) for n in range(batch)]})
            started = time.monotonic()
            response = await client.fetch(HTTPRequest(f"{address}/api/usage", "POST", headers, body))
            delays.append(time.monotonic() - started)
            if json.loads(response.body) != {"accepted": batch, "duplicates": 0}:
                raise SystemExit(f"unexpected answer: {response.body!r}")
            sent += 1

    started = time.monotonic()
    await asyncio.gather(*(call(caller) for caller in range(callers)))
    elapsed = time.monotonic() - started
    answer = await client.fetch(HTTPRequest(f"{address}/api/summary?by=flavor", headers=headers))
    client.close()
    rows = json.loads(answer.body)
    if [row["leases"] for row in rows] != [len(delays) * batch]:
        raise SystemExit(f"{len(delays) * batch} records were sent, the books have {rows}")
    delays.sort()
    return {
        "callers": callers,
        "batch": batch,
        "records_per_second": round(len(delays) * batch / elapsed, 1),
        "p50_ms": round(delays[len(delays) // 2] * 1000, 2),
        "p99_ms": round(delays[len(delays) * 99 // 100] * 1000, 2),
    }


def record(caller: int, number: int) -> dict[str, object]:
    return {
        "source": "bench",
        "id": f"{caller}-{number}/1",
        "tenant": f"tenant-{number % 10}",
        "user": f"user-{number % 100}",
        "session": f"session-{number % 200}",
        "lease": f"{caller}-{number}",
        "span": {"id": f"span-{number}", "kind": "cell", "label": "notebooks/digits.ipynb", "cell": number % 50},
        "flavor": "small.64gb",
        "device_model": "null",
        "devices": 1,
        "started_at_ns": 1_700_000_000_000_000_000 + number * 1_000_000_000,
        "duration_ns": 5_000_000 + number % 195_000_000,
        "close_reason": "drained",
    }


if __name__ == "__main__":
    sys.exit(main())
