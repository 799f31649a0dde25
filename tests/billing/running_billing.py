"""A real billing service on loopback, its callers, and a clock that stands still."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import asdict
from typing import Any

import httpx
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.service import Service, authenticator_of
from forebay_billing.settings import Settings, TokenSettings
from forebay_service.identity import BILLING, COMPUTE, OPERATE, SERVICE, TENANT
from forebay_service.people.memberships import People

NOVEMBER = Month(2026, 11)
NOW_NS = NOVEMBER.start_ns + 20 * 86_400 * 10**9

CALLERS = {
    "pool": TokenSettings(token="token-of-the-pool-service", name="pool", kind="service", scopes=frozenset({SERVICE})),
    "operator": TokenSettings(token="token-of-the-operator", name="operator", kind="user", scopes=frozenset({OPERATE, COMPUTE})),
    "acme-owner": TokenSettings(
        token="token-of-acme-owner", name="acme-owner", kind="user", tenant="acme", scopes=frozenset({TENANT, COMPUTE})
    ),
    "acme-billing": TokenSettings(
        token="token-of-acme-billing", name="acme-billing", kind="user", tenant="acme", scopes=frozenset({BILLING, COMPUTE})
    ),
    "acme-member": TokenSettings(token="token-of-acme-member", name="acme-member", kind="user", tenant="acme", scopes=frozenset({COMPUTE})),
    "globex-owner": TokenSettings(
        token="token-of-globex-owner", name="globex-owner", kind="user", tenant="globex", scopes=frozenset({TENANT, COMPUTE})
    ),
    "loner": TokenSettings(token="token-of-a-tenantless-user", name="loner", kind="user", scopes=frozenset({TENANT, COMPUTE})),
    "scopeless": TokenSettings(token="token-of-a-scopeless-service", name="scopeless", kind="service"),
}


class Clock:
    """Unix time in nanoseconds that moves only when told."""

    def __init__(self) -> None:
        self.now_ns = NOW_NS

    def __call__(self) -> int:
        return self.now_ns


class Running:
    """A service in a thread of its own, and a client that knows the callers' tokens."""

    def __init__(self, settings: Settings, clock: Clock, people: People | None = None) -> None:
        self.settings = settings
        self._people = people
        self.clock = clock
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="billing-service")
        self._thread.start()
        self.service = self._run(self._start())
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.service.port}", timeout=30, trust_env=False)

    async def _start(self) -> Service:
        return Service(self.settings, authenticator_of(self.settings), self.clock, self._people)

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def stop(self) -> None:
        self.client.close()
        self._run(self.service.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def request(self, caller: str | None, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {} if caller is None else {"Authorization": f"token {CALLERS[caller].token}"}
        return self.client.request(method, path, headers={**headers, **options.pop("headers", {})}, **options)

    def get(self, caller: str | None, path: str, **query: Any) -> httpx.Response:
        return self.request(caller, "GET", path, params=query or None)

    def post_usage(self, *records: UsageRecord, caller: str = "pool") -> httpx.Response:
        return self.request(caller, "POST", "/api/usage", json={"records": [asdict(record) for record in records]})

    def set_surcharge(self, model: str, nano: int, caller: str = "operator", **body: Any) -> httpx.Response:
        body = {"surcharge_nano_per_hour": nano, "currency": "USD", **body}
        return self.request(caller, "PUT", f"/api/surcharges/{model}", json=body)

    def set_price(self, flavor: str, caller: str = "operator", **body: Any) -> httpx.Response:
        return self.request(caller, "PUT", f"/api/prices/{flavor}", json=body)
