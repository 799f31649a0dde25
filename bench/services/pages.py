"""How long the dashboards' server takes for each page of each role, with many users, live leases and usage records.

Billing and the dashboards are the real services; the hub is the tests' own, with as many people, and the pool is the tests' busy one, which
tells so many live leases and turns them over. Books are filled once and kept under ``--books``; see ``books.py``. A page's time is from the
request to its last byte, what it asks of pool and billing included. Bar: 200 ms at p95.

    PYTHONPATH=bench python bench/services/pages.py --users 10000 --records 10000000 --books /tmp/books \\
        --postgresql /usr/lib/postgresql/15/bin
"""

from __future__ import annotations

import argparse
import contextlib
import gc
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
from books import IN_A_HURRY, TENANTS, fill, tenant_of
from forebay_billing.model.months import Month
from forebay_dashboards.service import ROUTES
from ingest import nothing, postgresql, processor_seconds
from report import percentile, report

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "dashboards")]
import dashboards_installation as installed  # noqa: E402

BAR_MS = 200.0
UPSTREAM_SECONDS = "20"
"""Far above the bar, so that a slow part is seen as slow and not as missing."""
MEMBER, OWNER, OPERATOR = "user-0", "owner-0", "operator"
"""Who asks: the member has used more than anybody else, and the owner is of the same tenant, which has used most."""
GROUPS_TOLD = 200
"""In one answer, as JupyterHub tells at most."""
LAST = str(Month.of(Month.of(time.time_ns()).start_ns - 1))
PAGES: dict[str, tuple[str, ...]] = {
    MEMBER: (
        *("usage", "usage/totals", "usage/live", "usage/budgets", "usage/spread", "usage/records", "usage?period=last-month"),
        *("usage/notebook?label=work-0.ipynb", "usage/notices", "usage/timeline", "jobs", "jobs/list", "shared", "help"),
    ),
    OWNER: (
        *("tenant", "tenant/spend", "tenant/live", f"tenant?month={LAST}", "tenant/people", "tenant/people/user-0"),
        *("tenant/budgets", "tenant/budgets/terms", "tenant/budgets/terms/budget", "tenant/budgets/terms/budget/edit"),
        *("tenant/alerts", "tenant/reports", "tenant/bills", f"statement?tenant=tenant-0&month={LAST}", "invoice?number={invoice}"),
        *(f"report?tenant=tenant-0&month={LAST}", "tenant/shared"),
    ),
    OPERATOR: (
        *("operator", "operator/live", "operator/money", "operator/trends", "operator?over=month", "operator/trends?over=month"),
        *(f"operator/{table}{part}" for table in ("leases", "queue", "sessions", "devices") for part in ("", "/rows")),
        *("operator/nodes", "operator/nodes/map", "operator/timeline", "operator/timeline/chart", "operator/timeline?ms=2678400000"),
        *("operator/tenants", "operator/tenants/rows", "operator/tenants?sort=end&order=desc", "operator/tenants?sort=open&order=desc"),
        *("operator/tenants?sort=budget&order=desc", "operator/tenant/tenant-0", "operator/tenant/tenant-0/spend"),
        *(f"operator/tenant/tenant-0/{part}" for part in ("live", "terms", "owed", "people")),
        *("operator/tenant/tenant-0/terms/plan", "operator/tenant/tenant-0/terms/plan/edit"),
        *("operator/usage", "operator/usage/table", "operator/usage?period=last-month", "operator/usage?period=week"),
        *("operator/invoices", "operator/flavors", "operator/flavors/table", "operator/flavors/new", "operator/flavors/dev.1gb/row"),
        *("operator/flavors/dev.1gb/edit", "operator/flavors/dev.1gb/prices", "operator/suggestions", "operator/surcharges"),
        *("operator/price-list", "operator/plans", "operator/quotas", "operator/shares", "operator/payments", "operator/alerts"),
        *("operator/search", "operator/search?q=user-77", "operator/search?q=tenant-1", "operator/audit"),
    ),
}
NO_PAGES = (
    *("usage.csv", "jobs/1", "shared/1", "shared/1/page", "language", "events", "oauth_callback", "static/forebay.css"),
    *("health", "metrics"),
    *("operator/sessions/s/park", "operator/devices/d/close", "operator/nodes/n/drain"),
)
"""What is sent as it is read, takes the tests' pool's place, only changes something, or is no page."""


def check_pages() -> None:
    """Raises SystemExit for a route of the dashboards that is not asked for."""
    asked = [path.partition("?")[0] for path in (*NO_PAGES, *(path for paths in PAGES.values() for path in paths))]
    forgotten = [route for route, _ in ROUTES if not any(re.fullmatch(route, path) for path in asked)]
    if forgotten:
        raise SystemExit(f"No page is asked for of {', '.join(forgotten)}.")


def main() -> int:
    options = parse()
    check_pages()
    with contextlib.ExitStack() as stack:
        folder = Path(options.books or stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-pages-")))
        folder.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{folder / 'billing.sqlite3'}"
        if options.postgresql:
            url = f"postgresql+psycopg://postgres@/postgres?host={folder / 'postgresql'}"
        with postgresql(options.postgresql, folder, IN_A_HURRY) if options.postgresql else nothing():
            fill(url, options.users, options.records)
        server = stack.enter_context(postgresql(options.postgresql, folder) if options.postgresql else nothing())
        with installation(options, url, Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forebay-pages-")))) as cloud:
            number = cloud.ask("billing", OPERATOR, "GET", f"api/invoices?tenant=tenant-0&month={LAST}")[0]["number"]
            asked = [(who, path.format(invoice=number)) for who, paths in PAGES.items() for path in paths]
            asks = stack.enter_context(httpx.Client(base_url=cloud.urls["dashboards"], follow_redirects=True, timeout=60))
            asked = [(who, path) for who, path in asked if re.search(options.only, path)]
            gc.freeze()  # 10,000 people are looked through otherwise whenever this process's memory is, in the middle of a page
            figures = [measure(cloud, asks, server, who, path, options.repeat) for who, path in asked]
    database = "postgresql" if options.postgresql else "sqlite"
    sizes = {"users": options.users, "tenants": TENANTS, "leases": options.leases, "records": options.records}
    report(f"pages-{database}", figures, **sizes, database=database, bar_ms=BAR_MS)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=1_000)
    parser.add_argument("--leases", type=int, default=1_000, help="live ones, of which 40 a second close and open")
    parser.add_argument("--records", type=int, default=100_000, help="of usage, over the last year")
    parser.add_argument("--repeat", type=int, default=20, help="how often each page is asked for")
    parser.add_argument("--only", default="", metavar="PATTERN", help="ask only for pages whose address this is found in")
    parser.add_argument("--postgresql", type=Path, metavar="BIN", help="on a PostgreSQL of our own, with this folder of programs")
    parser.add_argument("--books", type=Path, metavar="FOLDER", help="keep the books there, and go on with what is in them")
    return parser.parse_args()


@contextlib.contextmanager
def installation(options: argparse.Namespace, url: str, folder: Path) -> Iterator[Any]:
    """The services, started; the pool tells of live leases."""
    for number in range(options.users):
        installed.PEOPLE[f"user-{number}"] = installed.person(f"user-{number}", tenant_of(number), f"{installed.COMPUTE}!user=USER")
    own = f"{installed.TENANT}!group=tenant-tenant-0"
    installed.PEOPLE[OWNER] = installed.person(OWNER, "tenant-0", f"{installed.COMPUTE}!user=USER", own)
    hub = installed.Hub()
    hub.groups_told = GROUPS_TOLD
    cloud = installed.install(hub, Path(sys.executable), folder)
    cloud.billing.environment["FOREBAY_BILLING_DATABASE_URL"] = url
    cloud.dashboards.environment["FOREBAY_DASHBOARDS_UPSTREAM_SECONDS"] = UPSTREAM_SECONDS
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


def measure(cloud: Any, asks: httpx.Client, database: psutil.Process | None, who: str, path: str, repeat: int) -> dict[str, Any]:
    """A page's time from the request to its last byte, and how large it is. The connection is kept, as a browser keeps it."""
    headers = {"Authorization": f"token {cloud.hub.tokens[who]}"}
    taken: list[float] = []
    servers = [psutil.Process(one.process.pid) for one in (cloud.dashboards, cloud.billing)] + ([] if database is None else [database])
    for turn in range(repeat + 1):
        if turn == 1:
            before = [processor_seconds(server) for server in servers]
        began = time.perf_counter()
        answer = asks.get(path, headers=headers)
        taken.append((time.perf_counter() - began) * 1e3)
    spent_ms = [(processor_seconds(server) - was) * 1e3 / repeat for server, was in zip(servers, before, strict=True)]
    problems = answer.text.count('class="problem"')
    p95 = percentile(taken[1:], 0.95)
    row = {"page": path, "who": who.partition("-")[0], "status": answer.status_code, "first_ms": round(taken[0], 1)}
    row |= {"p50_ms": round(percentile(taken[1:], 0.5), 1), "p95_ms": round(p95, 1), "pages_cpu_ms": round(spent_ms[0], 1)}
    row |= {"billing_cpu_ms": round(spent_ms[1], 1), "database_cpu_ms": round(sum(spent_ms[2:]), 1)}
    row |= {"bytes": len(answer.content), "problems": problems}
    if problems:
        print(path, re.findall(r'class="problem"[^>]*>(.*?)<', answer.text, re.S)[:3], file=sys.stderr)
    return row | {"bar": "met" if p95 <= BAR_MS and answer.is_success and not problems else "missed"}


if __name__ == "__main__":
    sys.exit(main())
