"""What the dashboards ask of the pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import quote

from pydantic import TypeAdapter

from forebay_dashboards.rows.bases import Equivalent, Over
from forebay_dashboards.rows.pool import (
    AuditPage,
    Device,
    Flavor,
    Forecast,
    Health,
    Job,
    JobOutput,
    Lease,
    Model,
    Node,
    NotebookPage,
    Quota,
    Schedule,
    Session,
    SharedNotebook,
    ShareRow,
    Suggestion,
    Timeline,
    Trends,
)
from forebay_dashboards.upstream.client import NO_HEADERS, Query, Upstream

_HEALTH = TypeAdapter(Health)
_LEASES = TypeAdapter(tuple[Lease, ...])
_SESSIONS = TypeAdapter(tuple[Session, ...])
_DEVICES = TypeAdapter(tuple[Device, ...])
_NODES = TypeAdapter(tuple[Node, ...])
_TRENDS = TypeAdapter(Trends)
_TIMELINE = TypeAdapter(Timeline)
_FORECAST = TypeAdapter(tuple[Forecast, ...])
_FLAVORS = TypeAdapter(tuple[Flavor, ...])
_SUGGESTIONS = TypeAdapter(tuple[Suggestion, ...])
_QUOTAS = TypeAdapter(tuple[Quota, ...])
_QUOTA = TypeAdapter(Quota)
_SHARES = TypeAdapter(tuple[ShareRow, ...])
_MODELS = TypeAdapter(tuple[Model, ...])
_AUDIT = TypeAdapter(AuditPage)
_JOBS = TypeAdapter(tuple[Job, ...])
_JOB = TypeAdapter(Job)
_OUTPUT = TypeAdapter(JobOutput)
_SCHEDULES = TypeAdapter(tuple[Schedule, ...])
_SHARED_NOTEBOOKS = TypeAdapter(tuple[SharedNotebook, ...])
_SHARED_NOTEBOOK = TypeAdapter(SharedNotebook)
_NOTEBOOK_PAGE = TypeAdapter(NotebookPage)
_ANYTHING: TypeAdapter[Any] = TypeAdapter(Any)


class Pool:
    """The pool's HTTP interface. Each method raises UpstreamUnavailable and UpstreamRefused."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    async def health(self, token: str) -> Health:
        return await self._upstream.read(_HEALTH, token, "health")

    async def leases(self, token: str) -> tuple[Lease, ...]:
        return await self._upstream.read(_LEASES, token, "api/leases")

    async def sessions(self, token: str) -> tuple[Session, ...]:
        return await self._upstream.read(_SESSIONS, token, "api/sessions")

    async def devices(self, token: str) -> tuple[Device, ...]:
        return await self._upstream.read(_DEVICES, token, "api/devices")

    async def nodes(self, token: str) -> tuple[Node, ...]:
        return await self._upstream.read(_NODES, token, "api/nodes")

    async def forecast(self, token: str) -> tuple[Forecast, ...]:
        """What each flavor's demand will come to."""
        return await self._upstream.read(_FORECAST, token, "api/forecast")

    async def trends(self, token: str, over: Over) -> Trends:
        """How devices were used lately."""
        return await self._upstream.read(_TRENDS, token, "api/trends", {"over": over})

    async def timeline(self, token: str, devices: Sequence[str], since_ns: int, until_ns: int) -> Timeline:
        """Who held which of the devices when."""
        asked: Query = {"devices": ",".join(devices), "since_ns": since_ns, "until_ns": until_ns}
        return await self._upstream.read(_TIMELINE, token, "api/timeline", asked)

    async def flavors(self, token: str) -> tuple[Flavor, ...]:
        return await self._upstream.read(_FLAVORS, token, "api/flavors")

    async def suggestions(self, token: str) -> tuple[Suggestion, ...]:
        """Flavors that the devices which are here could serve, and that are not there yet."""
        return await self._upstream.read(_SUGGESTIONS, token, "api/suggestions")

    async def set_flavor(
        self, token: str, name: str, memory_bytes: int, equivalents: tuple[Equivalent, ...], of: Flavor | Suggestion | None,
        expected: Mapping[str, str],
    ) -> None:  # fmt: skip
        """Takes effect on leases opened from then on, as far as ``expected`` allows: see :func:`stamps.expecting`. What is set otherwise
        is as in ``of``."""
        rows = [row.model_dump() for row in equivalents]
        others: dict[str, object] = {} if of is None else {"residents_max": of.residents_max, "images": of.images}
        if of is not None:  # pools of older releases know of neither
            others |= {name: set_to for name, set_to in (("runtimes", of.runtimes), ("egress", of.egress)) if set_to is not None}
        body = {"memory_bytes": memory_bytes, "equivalents": rows, **others}
        await self._upstream.write(_ANYTHING, token, f"api/flavors/{quote(name, safe='')}", body, headers=expected)

    async def remove_flavor(self, token: str, name: str, expected: Mapping[str, str]) -> None:
        """Nobody gets it any more, as far as ``expected`` allows."""
        await self._upstream.delete(token, f"api/flavors/{quote(name, safe='')}", expected)

    async def command_session(self, token: str, session: str, command: str) -> None:
        """``park``, ``move`` or ``revoke``."""
        await self._upstream.write(_ANYTHING, token, f"api/sessions/{quote(session, safe='')}/{command}", {}, "POST")

    async def end_session(self, token: str, session: str) -> None:
        """Its tensors are lost."""
        await self._upstream.delete(token, f"api/sessions/{quote(session, safe='')}")

    async def set_device(self, token: str, device: str, body: Mapping[str, Any]) -> None:
        """Closes it to new leases, or opens it."""
        await self._upstream.write(_ANYTHING, token, f"api/devices/{quote(device, safe='')}", body)

    async def set_node(self, token: str, node: str, body: Mapping[str, Any]) -> None:
        """Drains it, or lends its devices again."""
        await self._upstream.write(_ANYTHING, token, f"api/nodes/{quote(node, safe='')}", body)

    async def audit(self, token: str, asked: Query) -> AuditPage:
        """What operators did, newest first."""
        return await self._upstream.read(_AUDIT, token, "api/audit", asked)

    async def quotas(self, token: str) -> tuple[Quota, ...]:
        """The quotas that are set."""
        return await self._upstream.read(_QUOTAS, token, "api/quotas")

    async def quota(self, token: str, tenant: str, user: str | None) -> Quota:
        """One, whether it is set or not."""
        return await self._upstream.read(_QUOTA, token, _quota_path(tenant, user))

    async def set_quota(
        self, token: str, tenant: str, user: str | None, body: Mapping[str, Any], expected: Mapping[str, str] = NO_HEADERS
    ) -> None:
        """Replaces it, as far as ``expected`` allows: see :func:`stamps.expecting`."""
        await self._upstream.write(_ANYTHING, token, _quota_path(tenant, user), body, headers=expected)

    async def shares(self, token: str) -> tuple[ShareRow, ...]:
        """Tenants in the fair share."""
        return await self._upstream.read(_SHARES, token, "api/shares")

    async def models(self, token: str) -> tuple[Model, ...]:
        """Each model there is, or that has a policy."""
        return await self._upstream.read(_MODELS, token, "api/models")

    async def set_model(self, token: str, model: str, tenants: list[str] | None, expected: Mapping[str, str]) -> None:
        """Who may have it (None: all), as far as ``expected`` allows."""
        await self._upstream.write(_ANYTHING, token, f"api/models/{quote(model, safe='')}", {"tenants": tenants}, headers=expected)

    async def jobs(self, token: str, most: int) -> tuple[Job, ...]:
        """The bearer's, newest first."""
        return await self._upstream.read(_JOBS, token, "api/jobs", {"limit": most})

    async def job(self, token: str, number: int) -> Job:
        return await self._upstream.read(_JOB, token, f"api/jobs/{number}")

    async def submit_job(self, token: str, body: Mapping[str, Any]) -> Job:
        return await self._upstream.write(_JOB, token, "api/jobs", body, "POST")

    async def cancel_job(self, token: str, number: int) -> None:
        await self._upstream.write(_JOB, token, f"api/jobs/{number}/cancel", {}, "POST")

    async def job_output(self, token: str, number: int, attempt: int | None, after: int) -> JobOutput:
        """Of one run, else the newest, what comes after what is known."""
        return await self._upstream.read(_OUTPUT, token, f"api/jobs/{number}/output", {"attempt": attempt, "after": after})

    async def schedules(self, token: str) -> tuple[Schedule, ...]:
        """The bearer's."""
        return await self._upstream.read(_SCHEDULES, token, "api/schedules")

    async def set_schedule(self, token: str, body: Mapping[str, Any]) -> None:
        await self._upstream.write(_ANYTHING, token, "api/schedules", body, "POST")

    async def remove_schedule(self, token: str, number: int) -> None:
        await self._upstream.delete(token, f"api/schedules/{number}")

    async def shared_notebooks(self, token: str, everybody: bool) -> tuple[SharedNotebook, ...]:
        """The bearer's, or those of everybody in the tenant, the newest first."""
        return await self._upstream.read(_SHARED_NOTEBOOKS, token, "api/shared-notebooks", {"everybody": str(everybody).lower()})

    async def shared_notebook(self, token: str, number: int, key: str) -> SharedNotebook:
        """What a link opens."""
        return await self._upstream.read(_SHARED_NOTEBOOK, token, f"api/shared-notebooks/{number}", {"key": key})

    async def notebook_page(self, token: str, number: int, key: str) -> NotebookPage:
        return await self._upstream.read(_NOTEBOOK_PAGE, token, f"api/shared-notebooks/{number}/page", {"key": key})

    async def unshare(self, token: str, number: int) -> None:
        """Its link opens nothing any more."""
        await self._upstream.delete(token, f"api/shared-notebooks/{number}")

    def events(self, token: str, silence_seconds: float) -> AbstractAsyncContextManager[AsyncIterator[bytes]]:
        """The event stream, entered once the pool has begun to send."""
        return self._upstream.stream(token, "api/events", silence_seconds)


def _quota_path(tenant: str, user: str | None) -> str:
    return "/".join(["api/quotas", *(quote(name, safe="") for name in (tenant, user) if name is not None)])
