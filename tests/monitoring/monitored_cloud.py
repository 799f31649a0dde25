"""Our services as processes, with something to tell of: leases, a queue, usage, budgets, payments, devices that are too hot."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import httpx
from dashboards_installation import PEOPLE, PYTHONPATH, Hub, Installation, eventually, install, person, running
from forebay_service.identity import COMPUTE
from forebay_wire import messages as wire
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from stripe_emulator import Emulator
from websockets.sync.client import connect

GPU_HOST = Path(__file__).parent / "gpu_host"
SERVICES = ("pool", "billing", "dashboards", "edge")
DEVICES = '[{kind = "null", model = "null", memory = "4 GiB", count = 4}, {kind = "cuda", model = "H100", memory = "80 GiB", count = 2}]'
WHOLE_DEVICE = "dev.4gb"


@dataclass(frozen=True)
class Family:
    """A metric as a scrape tells of it. ``name`` is that of its samples, without a histogram's endings."""

    name: str
    kind: str
    text: str
    samples: tuple[Sample, ...]

    @property
    def labels(self) -> frozenset[str]:
        """Those that a sample bears, but a histogram's own."""
        return frozenset(name for sample in self.samples for name in sample.labels if (name, self.kind) != ("le", "histogram"))

    @property
    def series(self) -> frozenset[tuple[str, tuple[tuple[str, str], ...]]]:
        return frozenset((sample.name, tuple(sorted(sample.labels.items()))) for sample in self.samples)


@dataclass
class Cloud:
    """The installation while it is watched."""

    installation: Installation
    stripe: Emulator

    def text(self, service: str) -> str:
        """What Prometheus is told."""
        answer = httpx.get(self.installation.urls[service] + "metrics", timeout=20)
        assert answer.is_success, answer.text
        return answer.text

    def families(self, service: str) -> list[Family]:
        parsed = text_string_to_metric_families(self.text(service))
        return [
            Family(family.name + "_total" * (family.type == "counter"), family.type, family.documentation, tuple(family.samples))
            for family in parsed
        ]

    def newcomer(self, name: str, tenant: str) -> None:
        """The hub knows another member of the tenant."""
        PEOPLE[name] = person(name, tenant, f"{COMPUTE}!user=USER")
        self.installation.hub.tokens[name] = f"token-of-{name}"

    def work(self, who: str, cell: int = 1) -> None:
        """A session of somebody's computes for a moment, and ends."""
        with self.installation.session(who) as session:
            granted = session.acquire(cell=cell)
            session.release(granted.epoch)


    def refuse(self, who: str) -> None:
        """Somebody asks for a flavor that is not there."""
        url = self.installation.urls["pool"].replace("http", "ws", 1) + "api/session"
        headers = {"Authorization": f"token {self.installation.hub.tokens[who]}"}
        with connect(url, additional_headers=headers) as link:
            link.send(wire.Hello(process="ipykernel", pid=1, torch="2.13.0", flavor="no.such").encode())
            assert isinstance(wire.to_client(link.recv(timeout=10)), wire.Refused)


def describe(installation: Installation, stripe: Emulator, folder: Path) -> None:
    """Completes the installation of the dashboards' tests: devices with probes, payments, fast heartbeats."""
    installation.pool.module = "pool_with_gpus"
    installation.pool.environment |= {
        "PYTHONPATH": f"{GPU_HOST}:{PYTHONPATH}",
        "FOREBAY_POOL_DEVICES": DEVICES,
        "FOREBAY_POOL_WARM_WORKERS": "0",
        "FOREBAY_POOL_BILLING_HEARTBEAT_SECONDS": "1",
    }
    (folder / "stripe-key").write_text(stripe.api_key)
    (folder / "stripe-webhooks").write_text(stripe.secret)
    installation.billing.environment |= {
        "FOREBAY_BILLING_STRIPE_MODE": "invoices",
        "FOREBAY_BILLING_STRIPE_KEY_FILE": str(folder / "stripe-key"),
        "FOREBAY_BILLING_STRIPE_WEBHOOK_SECRETS_FILE": str(folder / "stripe-webhooks"),
        "FOREBAY_BILLING_STRIPE_API_URL": stripe.url,
    }


def happen(cloud: Cloud) -> None:
    """What there is to see for good: a budget, usage within it, a customer at Stripe, finished leases, a refusal, a quota."""
    ask = cloud.installation.ask
    cloud.newcomer("worker-bee", "initech")
    ask("pool", "operator", "PUT", "api/quotas/globex", json={"devices_milli": 1000})
    for tenant, limit in (("acme", 10**9), ("globex", 10**6)):
        budget = {"tenant": tenant, "currency": "USD", "limit_nano": limit, "new": True}
        ask("billing", "operator", "PUT", "api/budgets", json=budget)
    ask("billing", "operator", "PUT", "api/payments/contacts/acme", json={"name": "Acme Ltd", "email": "pay@acme.example"})
    for tenant, who in (("acme", "acme-member"), ("globex", "globex-owner")):
        cloud.installation.record_usage(tenant=tenant, user=who, duration_ns=900 * 10**9, started_at_ns=time.time_ns() - 1000 * 10**9)
        cloud.work(who)
    cloud.refuse("worker-bee")


def stay(cloud: Cloud, stack: ExitStack) -> None:
    """What there is to see as long as it lasts: a parked session, three open leases, and one that a quota keeps waiting."""
    session = cloud.installation.session
    parked = stack.enter_context(session("worker-bee", WHOLE_DEVICE))
    parked.release(parked.acquire().epoch)
    for who in ("acme-member", "acme-owner", "globex-owner"):
        stack.enter_context(session(who)).acquire()
    cloud.work("worker-bee")
    stack.enter_context(session("globex-owner")).ask("waits.ipynb", 1)
    eventually(lambda: re.search(r'waiting_requests\{.*reason="quota".*\} 1.0', cloud.text("pool")))
    eventually(lambda: re.search(r'parked_bytes\{tenant="initech"\} [1-9]', cloud.text("pool")))
    eventually(lambda: 'orders{state="waiting"} 0.0' in cloud.text("billing"))
    for tenant in ("acme", "globex"):  # their workers' heartbeats
        eventually(lambda tenant=tenant: re.search(rf'worker_commands_total\{{[^}}]*tenant="{tenant}"', cloud.text("pool")))


@contextmanager
def watched(hub: Hub, worker_python: Path, folder: Path) -> Iterator[Cloud]:
    """The services, until the block ends."""
    with ExitStack() as stack:
        stripe = stack.enter_context(Emulator(SimpleNamespace(now_ns=time.time_ns())))
        installation = install(hub, worker_python, folder)
        describe(installation, stripe, folder)
        stack.enter_context(running(installation, *("billing", "pool", "dashboards", "edge")))
        cloud = Cloud(installation, stripe)
        eventually(lambda: httpx.get(installation.dashboards.health_url).json()["live"])
        happen(cloud)
        stay(cloud, stack)
        yield cloud
