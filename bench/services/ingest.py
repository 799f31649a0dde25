"""How many usage records a second billing makes durable, over HTTP, on SQLite with full synchronisation or on PostgreSQL.

Beside the rate stands what a record takes of a processor, in the service and in PostgreSQL: a busy machine changes the rate alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
from tornado.httpclient import AsyncHTTPClient, HTTPRequest

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "token-of-the-benchmark"
READY_SECONDS_MAX = 20
BATCHES_PER_SECOND_MAX = 400
"""Bodies made for each second of a run; where they do not suffice, the run is shorter."""


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory(prefix="forebay-ingest-", dir=options.folder) as name:
        folder = Path(name)
        with postgresql(options.postgresql, folder) if options.postgresql else nothing() as server:
            figures = [measure(folder, server, options.batch, callers, options.seconds) for callers in options.callers]
    single = figures[0]["records_per_second"]
    print(f"{'callers':>8} {'batch':>6} {'records/s':>10} {'÷ first':>8} {'p50 ms':>8} {'p99 ms':>8} {'service µs':>11} {'server µs':>10}")
    for figure in figures:
        figure["ratio_to_first"] = round(figure["records_per_second"] / single, 2)
        print(
            f"{figure['callers']:8} {figure['batch']:6} {figure['records_per_second']:10.0f} {figure['ratio_to_first']:8.2f} "
            f"{figure['p50_ms']:8.1f} {figure['p99_ms']:8.1f} {figure['service_us']:11.1f} {figure['database_us']:10.1f}"
        )
    options.out.parent.mkdir(parents=True, exist_ok=True)
    database = "postgresql" if options.postgresql else "sqlite"
    written = {"benchmark": "ingest", "database": database, "processors": os.cpu_count(), "figures": figures}
    options.out.write_text(json.dumps(written, indent=2) + "\n")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=100, help="records in a request (default 100)")
    parser.add_argument("--callers", type=int, nargs="+", default=[1, 2, 4], help="requests in flight, one run each (default 1 2 4)")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run (default 5)")
    parser.add_argument("--postgresql", type=Path, metavar="BIN", help="on a PostgreSQL of our own, with this folder of programs")
    parser.add_argument("--folder", type=Path, help="where the database lies meanwhile")
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "ingest.json", help="where the figures go as JSON")
    return parser.parse_args()


@contextmanager
def nothing() -> Iterator[None]:
    """Where no server is needed."""
    yield None


@contextmanager
def postgresql(binaries: Path, folder: Path, settings: Sequence[str] = ()) -> Iterator[psutil.Process]:
    """A PostgreSQL on a socket in ``folder``, with what is there already; its first process. It is durable and as it is installed, but for
    ``settings``, each as ``name=value``."""
    as_owner: list[str] = []
    home = folder / "postgresql"
    home.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        shutil.chown(home, *pwd.getpwnam("postgres")[2:4])
        folder.chmod(0o755)
        as_owner = ["runuser", "-u", "postgres", "--"]

    def control(program: str, *arguments: str) -> None:
        command = [*as_owner, str(binaries / program), "-D", str(home / "data"), *arguments]
        subprocess.run(command, check=True, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    if not (home / "data").exists():
        control("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8")
    given = ("listen_addresses=''", f"unix_socket_directories={home}", *settings)
    control("pg_ctl", "-l", str(home / "log"), "-o", " ".join(f"-c {one}" for one in given), "-w", "start")
    try:
        yield psutil.Process(int((home / "data" / "postmaster.pid").read_text().split()[0]))
    finally:
        control("pg_ctl", "-m", "fast", "-w", "stop")


def measure(folder: Path, server: psutil.Process | None, batch: int, callers: int, seconds: float) -> dict[str, float]:
    """One run against a fresh service; every answer is checked, and the sum in the end."""
    url = f"sqlite:///{folder / f'{callers}.sqlite3'}"
    if server is not None:
        with psycopg.connect(host=str(folder / "postgresql"), user="postgres", dbname="postgres", autocommit=True) as connection:
            connection.execute("DROP DATABASE IF EXISTS ingest WITH (FORCE)")
            connection.execute("CREATE DATABASE ingest")
        url = f"postgresql+psycopg://postgres@/ingest?host={folder / 'postgresql'}"
    config = folder / f"{callers}.toml"
    config.write_text(
        f'database_url = "{url}"\nport = 0\nlog_level = "INFO"\n'
        f'[[tokens]]\ntoken = "{TOKEN}"\nname = "bench"\nkind = "service"\nscopes = ["custom:forebay:service"]\n'
    )
    log = folder / f"{callers}.log"
    path = os.pathsep.join([str(ROOT / "billing"), str(ROOT / "service")])
    with log.open("w") as stderr:
        command = [sys.executable, "-m", "forebay_billing", "--config", str(config)]
        service = subprocess.Popen(command, stderr=stderr, env={**os.environ, "PYTHONPATH": path})
        try:
            address = address_of(log, service)
            return asyncio.run(load(address, psutil.Process(service.pid), server, batch, callers, seconds))
        finally:
            service.terminate()
            service.wait()


def processor_seconds(process: psutil.Process | None) -> float:
    """What a process and its children have taken of the processors so far."""
    if process is None:
        return 0.0
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def address_of(log: Path, service: subprocess.Popen[bytes]) -> str:
    """Waits until the service says its port."""
    deadline = time.monotonic() + READY_SECONDS_MAX
    while time.monotonic() < deadline and service.poll() is None:
        for line in log.read_text().splitlines():
            if "action=service.start" in line:
                return f"http://127.0.0.1:{line.partition('port=')[2].split()[0]}"
        time.sleep(0.05)
    raise SystemExit(f"The service did not start:\n{log.read_text()}")


async def load(
    address: str, service: psutil.Process, server: psutil.Process | None, batch: int, callers: int, seconds: float
) -> dict[str, float]:
    """Sends for ``seconds``. The bodies are made before, so that making them takes nothing from the service."""
    client = AsyncHTTPClient(force_instance=True, max_clients=callers)
    headers = {"Authorization": f"token {TOKEN}", "Content-Type": "application/json"}
    bodies = [
        iter([body_of(caller, sent, batch) for sent in range(int(seconds * BATCHES_PER_SECOND_MAX / callers))]) for caller in range(callers)
    ]
    delays: list[float] = []
    before = processor_seconds(service), processor_seconds(server)
    started = time.monotonic()

    async def call(caller: int) -> None:
        for body in bodies[caller]:
            sent_at = time.monotonic()
            if sent_at > started + seconds:
                return
            response = await client.fetch(HTTPRequest(f"{address}/api/usage", "POST", headers, body))
            delays.append(time.monotonic() - sent_at)
            if json.loads(response.body) != {"accepted": batch, "duplicates": 0}:
                raise SystemExit(f"unexpected answer: {response.body!r}")

    await asyncio.gather(*(call(caller) for caller in range(callers)))
    elapsed = time.monotonic() - started
    records = len(delays) * batch
    spent = processor_seconds(service) - before[0], processor_seconds(server) - before[1]
    answer = await client.fetch(HTTPRequest(f"{address}/api/summary?by=flavor", headers=headers))
    client.close()
    rows = json.loads(answer.body)
    if [row["leases"] for row in rows] != [records]:
        raise SystemExit(f"{records} records were sent, the books have {rows}")
    delays.sort()
    return {
        "callers": callers,
        "batch": batch,
        "records_per_second": round(records / elapsed, 1),
        "p50_ms": round(delays[len(delays) // 2] * 1000, 2),
        "p99_ms": round(delays[len(delays) * 99 // 100] * 1000, 2),
        "service_us": round(spent[0] / records * 1e6, 1),
        "database_us": round(spent[1] / records * 1e6, 1),
    }


def body_of(caller: int, sent: int, batch: int) -> bytes:
    return json.dumps({"records": [record(caller, sent * batch + n) for n in range(batch)]}).encode()


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
