"""While leases are open billing is told of them, and answers what budgets do: both go this way, and no other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from forebay_pool.errors import BillingRefused, BillingUnavailable
from forebay_pool.model.events import BudgetSet
from forebay_pool.model.metering import SECOND_NS, record_id
from forebay_pool.model.types import BudgetState, Lease
from forebay_pool.shell import Shell

LEASES_MAX = 1_000
"""Most leases that one call carries; a pool with more makes several for each heartbeat."""
ASIDE_MAX = 32
"""Most leases that are left out because billing refuses each of them; where it refuses more, the fault is not theirs."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Budget:
    """What billing says of a budget: a tenant's, one of its users', or that of one of their spans' labels."""

    tenant: str
    user: str | None
    span: str | None
    state: BudgetState
    cause: str
    """Says why, to the people whom it concerns."""
    grace_seconds: float = 0.0
    """How long open leases may go on after a drain."""


class HeartbeatSink(Protocol):
    """Who takes heartbeats."""

    async def send_heartbeat(self, body: Mapping[str, Any]) -> list[Budget]: ...


class Heartbeats:
    """The loop that tells billing every ``period_seconds`` which leases are open, and goes on where none is: budgets change by themselves.

    Billing answers with all budgets that are not open. A call that fails changes nothing: the next one says it all again. What billing
    refuses is halved until the lease that it refuses stands alone: that one is left out from then on, and its usage record will tell of it.
    """

    def __init__(
        self,
        shell: Shell,
        sink: HeartbeatSink,
        source: str,
        period_seconds: float,
        on_beat: Callable[[bool], None] = lambda taken: None,
        on_aside: Callable[[], None] = lambda: None,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._shell = shell
        self._unix_ns = unix_ns
        self._sent_at_ns = 0
        """When the last heartbeat was sent; the next one is later, whatever steps the host's clock makes."""
        self._sink = sink
        self._source = source
        self._period_seconds = period_seconds
        self._on_beat = on_beat
        self._on_aside = on_aside
        self.trouble: str | None = None
        """Why the last heartbeat was not taken, in a sentence for everybody; None: it was."""
        self._aside: set[str] = set()
        """Records of open leases that billing refuses to hear of."""
        self._known: dict[tuple[str, str | None, str | None], BudgetSet] = {}
        """What the state machine was told of budgets that are not open."""

    async def run(self) -> None:
        """Beats until cancelled; a slow answer delays the next beat, and no beat is made up for."""
        while True:
            began = time.monotonic()
            if self._shell.leads():
                await self.beat()
            await asyncio.sleep(max(0.0, began + self._period_seconds - time.monotonic()))

    async def beat(self) -> None:
        """One heartbeat."""
        try:
            for body in self._bodies():
                budgets = await self._send(body)
        except (BillingUnavailable, BillingRefused) as error:
            log.warning("billing did not take a heartbeat: %s", error, extra={"action": "heartbeat_failed"})
            self.trouble = "Billing does not take what it is told: usage records wait, and budgets stand as they were last heard of."
            self._on_beat(False)
            return
        self.trouble = None
        self._on_beat(True)
        self.take(budgets)

    async def _send(self, body: Mapping[str, Any]) -> list[Budget]:
        """What billing answers to the leases that it takes. Raises BillingUnavailable, and BillingRefused where it takes none."""
        try:
            return await self._sink.send_heartbeat(body)
        except BillingRefused as error:
            leases = body["leases"]
            if not leases or len(self._aside) >= ASIDE_MAX:
                raise
            if len(leases) > 1:
                await self._send({**body, "leases": leases[: len(leases) // 2]})
                return await self._send({**body, "leases": leases[len(leases) // 2 :]})
            budgets = await self._sink.send_heartbeat({**body, "leases": []})  # where this is refused too, it was not for the lease
            self._set_aside(leases[0]["record"], str(error))
            return budgets

    def _set_aside(self, record: str, answer: str) -> None:
        self._aside.add(record)
        self._on_aside()
        log.error("billing does not hear of open lease %s: %s", record, answer, extra={"action": "lease_refused", "record": record})

    def take(self, budgets: Sequence[Budget]) -> None:
        """The one place where the pool hears of budgets: ``budgets`` has all that are not open."""
        now = {
            (one.tenant, one.user, one.span): BudgetSet(one.tenant, one.user, one.state, one.span, one.cause, one.grace_seconds)
            for one in budgets
            if one.state != "open"
        }
        opened = [BudgetSet(tenant, user, "open", span) for tenant, user, span in self._known if (tenant, user, span) not in now]
        for event in [*opened, *(event for key, event in now.items() if self._known.get(key) != event)]:
            self._shell.apply(event)
        self._known = now

    def _bodies(self) -> list[dict[str, Any]]:
        now_ns = self._shell.clock_ns()
        self._sent_at_ns = sent_at_ns = max(self._sent_at_ns + 1, self._unix_ns())
        leases = [open_lease(s.lease, now_ns) for s in self._shell.machine.sessions.values() if s.lease is not None]
        self._aside &= {lease["record"] for lease in leases}
        leases = [lease for lease in leases if lease["record"] not in self._aside]
        about = {"source": self._source, "sent_at_ns": sent_at_ns, "period_ns": int(self._period_seconds * SECOND_NS)}
        starts = range(0, max(1, len(leases)), LEASES_MAX)
        return [{**about, "leases": leases[start : start + LEASES_MAX]} for start in starts]


def open_lease(lease: Lease, now_ns: int) -> dict[str, Any]:
    """An open lease as ``POST api/heartbeats`` takes it: as the usage record that its running segment makes if it closes now."""
    session = lease.session
    return {
        "record": record_id(lease.id, lease.segment),
        "lease": lease.id,
        "tenant": session.tenant,
        "user": session.user,
        "session": session.id,
        "span": lease.span.model_dump(),
        "flavor": lease.flavor.name,
        "device_model": lease.device.model,
        "devices": len(lease.place.devices),
        "share_milli": lease.place.share_milli,
        "started_at_ns": lease.opened_unix_ns + lease.metered_ns,
        "duration_ns": now_ns - lease.opened_ns - lease.metered_ns,
    }
