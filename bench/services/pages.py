"""How long the dashboards' server takes for each page, with many users, live leases and usage records, on SQLite or PostgreSQL.

Billing and the dashboards are the real services; the hub is the tests' own, with as many people, and the pool is the tests' busy one, which
tells so many live leases and turns them over. The records are posted by billing's own code, so the ledger is whole. Bar: 200 ms at p95.

    PYTHONPATH=bench python bench/services/pages.py --users 10000 --records 10000000 --postgresql /usr/lib/postgresql/15/bin
"""

from __future__ import annotations

import argparse
import contextlib
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
from forebay_billing.model.types import Span, UsageRecord
from forebay_billing.settings import Settings
from forebay_billing.tables.engines import open_engines
from forebay_billing.writes.store import Store
from forebay_billing.writes.usage import post_usage, seed
from ingest import nothing, postgresql, processor_seconds
from report import percentile, report

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "dashboards")]
import dashboards_installation as installed  # noqa: E402

BAR_MS = 200.0
TENANTS = 40
BATCH = 5_000
YEAR_NS = 365 * 86_400 * 10**9
FLAVORS = ("dev.1gb", "dev.4gb", "small.64gb")
MEMBER, OWNER, OPERATOR = "user-0", "owner-0", "operator"
"""Who asks: the member and the owner are of the same tenant."""
PAGES = {
    MEMBER: ("usage", "usage?period=last-month", "usage/notebook?label=work-0.ipynb"),
    OWNER: ("tenant", "tenant?month=2026-10", "tenant/people", "tenant/budgets", "tenant/bills"),
    OPERATOR: (
        *("operator", "operator/leases", "operator/sessions", "operator/devices", "operator/nodes"),
        *("operator/usage", "operator/usage?period=last-month", "operator/tenants", "operator/tenant/tenant-0"),
        *("operator/search?q=user-77", "operator/invoices"),
    ),
}


def main() -> int:
    options = parse()
    with contextlib.ExitStack() as stack:
        folder = Path(options.books or stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-pages-")))
        folder.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{folder / 'billing.sqlite3'}"
        if stack.enter_context(postgresql(options.postgresql, folder) if options.postgresql else nothing()) is not None:
            url = f"postgresql+psycopg://postgres@/postgres?host={folder / 'postgresql'}"
        fill(url, options.users, options.records)
        with installation(options, url, folder) as cloud:
            figures = [measure(cloud, who, path, options.repeat) for who, paths in PAGES.items() for path in paths]
    database = "postgresql" if options.postgresql else "sqlite"
    header = {"users": options.users, "leases": options.leases, "records": options.records, "database": database, "bar_ms": BAR_MS}
    report(f"pages-{database}", figures, **header)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--leases", type=int, default=1_000, help="live ones, of which 40 a second close and open")
    parser.add_argument("--records", type=int, default=100_000, help="of usage, over the last year")
    parser.add_argument("--repeat", type=int, default=20, help="how often each page is asked for")
    parser.add_argument("--postgresql", type=Path, metavar="BIN", help="on a PostgreSQL of our own, with this folder of programs")
    parser.add_argument("--books", type=Path, metavar="FOLDER", help="keep the books of SQLite there, and go on with what is in them")
    return parser.parse_args()


def tenant_of(user: int) -> str:
    return f"tenant-{user % TENANTS}"


def fill(url: str, users: int, records: int) -> None:
    """Posts what is missing of so many records."""
    settings = Settings(database_url=url)
    store = Store(open_engines(url, 60.0), time.time_ns)
    try:
        store.submit(lambda books: seed(books, 0)).result()
        for first in range(store_count(store), records, BATCH):
            batch = [record(number, users, records) for number in range(first, min(first + BATCH, records))]
            store.submit(lambda books, batch=batch: post_usage(books, batch, settings.currency_of, time.time_ns)).result()
            print(f"\r{first + len(batch):,} of {records:,} records", end="", file=sys.stderr, flush=True)
    finally:
        store.close()
        print(file=sys.stderr)


def store_count(store: Store) -> int:
    return int(store.submit(lambda books: books.connection.exec_driver_sql("SELECT COUNT(*) FROM usage").scalar_one()).result())


def record(number: int, users: int, records: int) -> UsageRecord:
    """Records in the order of time. Few people use most: a user's weight falls with the number."""
    chance = random.Random(number)
    user = min(int(users * chance.random() ** 3), users - 1)
    started_ns = time.time_ns() - YEAR_NS + YEAR_NS * number // records
    span = Span(f"span-{number}", "cell", f"work-{chance.randrange(5)}.ipynb", number % 50, f"cell-{number % 50}", "train(model)")
    lasts_ns = int(chance.expovariate(1 / 60e9)) + 10**6
    who = {"tenant": tenant_of(user), "user": f"user-{user}", "session": f"session-{user}"}
    return UsageRecord(
        source="bench", id=f"{number}/1", lease=str(number), span=span, flavor=chance.choice(FLAVORS), device_model="null", devices=1,
        started_at_ns=started_ns, duration_ns=lasts_ns, close_reason="drained", energy_mj=lasts_ns // 10**5, **who,
    )  # fmt: skip


@contextlib.contextmanager
def installation(options: argparse.Namespace, url: str, folder: Path) -> Iterator[Any]:
    """The services, started; the pool tells of live leases."""
    for number in range(options.users):
        installed.PEOPLE[f"user-{number}"] = installed.person(f"user-{number}", tenant_of(number), f"{installed.COMPUTE}!user=USER")
    own = f"{installed.TENANT}!group=tenant-tenant-0"
    installed.PEOPLE[OWNER] = installed.person(OWNER, "tenant-0", f"{installed.COMPUTE}!user=USER", own)
    hub = installed.Hub()
    cloud = installed.install(hub, Path(sys.executable), folder)
    cloud.billing.environment["FOREBAY_BILLING_DATABASE_URL"] = url
    cloud.dashboards.forked = cloud.billing.forked = False
    port = str(urlsplit(cloud.urls["pool"]).port)
    busy = [sys.executable, str(ROOT / "tests" / "dashboards" / "busy_pool.py"), "--port", port, "--leases", str(options.leases)]
    pool = subprocess.Popen(busy)
    try:
        with installed.running(cloud, "billing", "dashboards"):
            installed.eventually(lambda: httpx.get(cloud.dashboards.health_url).json()["live"], 60)
            yield cloud
    finally:
        pool.terminate()
        pool.wait()
        hub.close()


def measure(cloud: Any, who: str, path: str, repeat: int) -> dict[str, Any]:
    """A page's time from the request to its last byte, and how large it is."""
    taken: list[float] = []
    servers = [psutil.Process(one.process.pid) for one in (cloud.dashboards, cloud.billing)]
    for turn in range(repeat + 1):
        if turn == 1:
            before = [processor_seconds(server) for server in servers]
        began = time.perf_counter()
        answer = cloud.get(who, path, follow_redirects=True)
        taken.append((time.perf_counter() - began) * 1e3)
    spent_ms = [(processor_seconds(server) - was) * 1e3 / repeat for server, was in zip(servers, before, strict=True)]
    problems = answer.text.count('class="problem"')
    p95 = percentile(taken[1:], 0.95)
    row = {"page": path, "who": who.partition("-")[0], "status": answer.status_code, "first_ms": round(taken[0], 1)}
    row |= {"p50_ms": round(percentile(taken[1:], 0.5), 1), "p95_ms": round(p95, 1), "pages_cpu_ms": round(spent_ms[0], 1)}
    row |= {"billing_cpu_ms": round(spent_ms[1], 1), "bytes": len(answer.content), "problems": problems}
    if problems:
        print(path, re.findall(r'class="problem"[^>]*>(.*?)<', answer.text, re.S)[:3], file=sys.stderr)
    return row | {"bar": "met" if p95 <= BAR_MS and answer.is_success and not problems else "missed"}


if __name__ == "__main__":
    sys.exit(main())
