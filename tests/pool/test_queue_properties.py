"""Random histories with quotas, priorities, budgets and revocations, on top of all that may happen to a pool anyway.

The model adds up by itself what each tenant and user holds and held, and knows the quotas that were set. At the end, once nothing stops
them any more but quotas that leave room for one request at a time, everybody who waits is served.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from forebay_pool.model.events import BudgetSet, ClientSaid, Event, LeaseRevoked, Look, QuotaSet, SessionJoined
from forebay_pool.model.instructions import Instruction, TellClient
from forebay_pool.model.limits import Limits
from forebay_pool.model.types import Quota
from forebay_wire import messages as wire
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.pool.test_pool_state_machine_properties import FLAVORS, LIMITS, PICK, PoolHistory

SECOND = 1_000_000_000
PEOPLE = (("acme", "ada"), ("acme", "ben"), ("globex", "cy"))
ACCOUNTS = (("acme", None), ("acme", "ada"), ("acme", "ben"), ("globex", None))
PRIORITIES = st.sampled_from([-5, 0, 0, 20, 99])
QUOTAS = st.builds(
    Quota,
    devices_milli=st.sampled_from([None, None, 0, 500, 1000, 2000]),
    device_seconds=st.sampled_from([1, 3]),
    window_seconds=st.sampled_from([2, 10]),
    on_exhausted=st.sampled_from(["wait", "revoke"]),
    priority_max=st.sampled_from([None, 0, 50]),
    weight=st.sampled_from([1, 3]),
    parked_bytes=st.sampled_from([None, None, 0, 2**30]),
    on_parked_full=st.sampled_from(["stay", "end"]),
)


def limits(**changes: Any) -> Limits:
    return Limits(**({name: getattr(LIMITS, name) for name in Limits.__dataclass_fields__} | changes))


class QueueHistory(PoolHistory):
    """A pool with several people, and an operator who changes the rules."""

    LIMITS = limits(
        fair_share_half_life_seconds=5.0,
        wait_seconds_max=8.0,
        backfill_seconds_max=2.0,
        revoke_grace_seconds=0.4,
        preempt_priority_gap=10,
        workers_max=16,
        sessions_max=12,
        queue_max=10,
    )

    def __init__(self) -> None:
        super().__init__()
        self.sound = True
        """Whether the last event did what it should; if not, there is no point in going on."""
        self.quotas: dict[tuple[str, str | None], tuple[Quota, int]] = {}
        self.used: dict[str, list[Any]] = {}
        """By lease: tenant, user, thousandths, from, until."""

    def carry_out(self, event: Event, instruction: Instruction) -> None:
        if isinstance(instruction, TellClient) and isinstance(instruction.message, wire.Granted):
            self.is_within_quota(instruction.session, instruction.message.lease)
        super().carry_out(event, instruction)
        for lease, use in self.used.items():
            if use[4] is None and lease not in self.leases:
                use[4] = self.now

    def is_within_quota(self, session: str, lease: str) -> None:
        if lease in self.used:
            return
        record = self.machine.sessions[session]
        assert record.lease is not None
        milli = len(record.lease.place.devices) * record.lease.place.share_milli
        for user in (None, record.user):
            quota, since = self.quotas.get((record.tenant, user), (Quota(), 0))
            mine = [use for use in self.used.values() if use[0] == record.tenant and user in (None, use[1])]
            held = milli + sum(use[2] for use in mine if use[4] is None)
            fresh = since != self.now
            assert quota.devices_milli is None or held <= quota.devices_milli or not fresh, f"{held}/1000 held of {quota}"
            if quota.device_seconds is not None and quota.window_seconds is not None:
                begin = max(since, self.now - quota.window_seconds * SECOND)
                spent = sum(use[2] * max(0, (self.now if use[4] is None else use[4]) - max(begin, use[3])) for use in mine)
                assert spent < quota.device_seconds * 1000 * SECOND or not fresh, f"{spent} spent of {quota}"
        self.used[lease] = [record.tenant, record.user, milli, self.now, None]

    @rule(flavor=st.sampled_from([*FLAVORS]), who=st.sampled_from(PEOPLE), priority=PRIORITIES, many=st.integers(1, 3))
    def somebody_computes(self, flavor: str, who: tuple[str, str], priority: int, many: int) -> None:
        for _ in range(many):
            self.names += 1
            self.do(SessionJoined(f"s{self.names}", bytes(32), *who, "python", flavor, priority))
            self.acquires(-1, False)

    @rule(account=st.sampled_from(ACCOUNTS), quota=QUOTAS, windowed=st.booleans())
    def a_quota_is_set(self, account: tuple[str, str | None], quota: Quota, windowed: bool) -> None:
        if not windowed:
            quota = replace(quota, device_seconds=None, window_seconds=None, on_exhausted="wait")
        known = self.quotas.get(account)
        same = known is not None and known[0].window_seconds == quota.window_seconds
        since = known[1] if known is not None and same else self.now
        self.quotas[account] = (quota, since)
        self.do(QuotaSet(*account, quota))

    @rule(account=st.sampled_from(ACCOUNTS), state=st.sampled_from(["open", "open", "wait", "refuse"]))
    def a_budget_is_set(self, account: tuple[str, str | None], state: Any) -> None:
        self.do(BudgetSet(*account, state))

    @rule(pick=PICK)
    def an_operator_revokes(self, pick: int) -> None:
        name = self.a_session(pick)
        if name is not None:
            self.do(LeaseRevoked(name, "An operator takes the lease back."))

    @rule(pick=PICK, priority=st.sampled_from([None, -99, 0, 30]))
    def acquires_with_a_priority(self, pick: int, priority: int | None) -> None:
        name = self.a_session(pick)
        if name is not None:
            self.numbers += 1
            span = wire.Span(id=f"span{self.numbers}", kind="cell", label="n", cell=1)
            self.do(ClientSaid(name, wire.Acquire(request=self.numbers, span=span, priority=priority)))

    @rule()
    def looks(self) -> None:
        self.do(Look())

    def do(self, event: Event) -> None:
        self.sound = False
        super().do(event)
        self.sound = True

    def teardown(self) -> None:
        if not self.sound:
            return
        for account in ACCOUNTS:
            self.do(BudgetSet(*account, "open"))
            quota = self.quotas.get(account, (Quota(), 0))[0]
            room = None if quota.devices_milli is None else max(2000, quota.devices_milli)
            self.quotas[account] = (Quota(devices_milli=room, weight=quota.weight), self.now)
            self.do(QuotaSet(*account, self.quotas[account][0]))
        super().teardown()


TestQueueHistory = QueueHistory.TestCase
TestQueueHistory.settings = settings(settings.get_profile("costly"), stateful_step_count=60, suppress_health_check=[HealthCheck.too_slow])
