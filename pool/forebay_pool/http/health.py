"""``metrics`` and ``health``."""

from __future__ import annotations

from forebay_service.identity import OPERATE, SERVICE
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from forebay_pool.http.handler import Api

LOOPBACK = ("127.0.0.1", "::1")


class MetricsPage(Api):
    """``GET metrics``: without a token from this host itself, never through a proxy: it tells of all tenants."""

    async def get(self) -> None:
        proxied = "X-Forwarded-For" in self.request.headers
        if proxied or self.request.remote_ip not in LOOPBACK:
            await self.bearer(SERVICE, OPERATE)
        await self.context.count_outbox()
        self.set_header("Content-Type", CONTENT_TYPE_LATEST)
        self.write(generate_latest(self.shell.metrics.registry))


class Health(Api):
    """``GET health``."""

    def get(self) -> None:
        self.write_json({"status": "ok", "role": "leader"})
