"""A billing service beside the pool, and an operator's calls to it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from forebay_billing import settings as books
from forebay_billing.service import Service as Billing
from forebay_billing.service import authenticator_of
from forebay_service.identity import OPERATE, SERVICE
from tornado.httpclient import AsyncHTTPClient

OPERATOR = "token-of-the-operator"
POOL = "token-of-the-pool-service"


class Books:
    """A billing service in this process, and an operator's calls to it."""

    def __init__(self, service: Billing) -> None:
        self.url = f"http://127.0.0.1:{service.port}/"

    async def ask(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"token {OPERATOR}"}
        text = None if body is None else json.dumps(body)
        response = await AsyncHTTPClient().fetch(self.url + path, method=method, headers=headers, body=text)
        return json.loads(response.body)

    async def surcharge(self, nano: int, valid_from_ns: int | None = None) -> int:
        """Sets that of the model gpu; returns from when on it is valid."""
        body = {"surcharge_nano_per_hour": nano, "currency": "USD", "valid_from_ns": valid_from_ns}
        return int((await self.ask("PUT", "api/surcharges/gpu", body))["valid_from_ns"])

    async def records(self, count: int) -> list[dict[str, Any]]:
        """The newest usage, as soon as there are so many records."""
        async with asyncio.timeout(20):
            while True:
                found: list[dict[str, Any]] = (await self.ask("GET", "api/usage"))["records"]
                if len(found) >= count:
                    return found
                await asyncio.sleep(0.02)


@asynccontextmanager
async def billing(path: Path, prices: Mapping[str, int], **settings: Any) -> AsyncIterator[Books]:
    """``prices`` are in dollars."""
    callers = (
        books.TokenSettings(token=OPERATOR, name="operator", kind="user", scopes=frozenset({OPERATE})),
        books.TokenSettings(token=POOL, name="pool", kind="service", scopes=frozenset({SERVICE})),
    )
    chosen = books.Settings(database_url=f"sqlite:///{path}/billing.sqlite3", port=0, tokens=callers, **settings)
    service = Billing(chosen, authenticator_of(chosen), time.time_ns)
    try:
        opened = Books(service)
        for flavor, price in prices.items():
            body = {"price_nano_per_hour": price, "currency": "USD", "valid_from_ns": 0, "new": True}
            await opened.ask("PUT", f"api/prices/{flavor}", body)
        yield opened
    finally:
        await service.close()
