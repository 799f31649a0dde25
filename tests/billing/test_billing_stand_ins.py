"""Rows with text that no book can hold: metered under a stand-in, counted, and in the audit; no pool lets such a row in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from forebay_billing.http.bodies import HeartbeatBody, UsageBatchBody
from forebay_billing.model.types import Span, UsageRecord
from forebay_pool.store.flavors import EquivalentBody
from forebay_service.bodies import body_of
from forebay_service.identity import COMPUTE, IdentityRefused, identity_of
from forebay_wire import messages as wire
from forebay_wire.texts import label_of, name_of
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError
from running_billing import Running

Usage = Callable[..., UsageRecord]
ANY = st.text(st.characters(codec=None, exclude_categories=()), max_size=40) | st.text(min_size=1, max_size=3).map(lambda text: text * 1000)
SPAN = {"id": "s", "kind": "cell", "label": "\0", "cell": 1}


def sent(usage: UsageRecord, **changes: Any) -> dict[str, Any]:
    return {**asdict(usage), **changes}


def test_device_time_is_metered_whatever_its_notebook_is_called(running_anywhere: Running, usage: Usage) -> None:
    running, long = running_anywhere, "u" * 200
    batch = {"records": [sent(usage("a/1")), sent(usage("b/1"), span=SPAN, user=long), sent(usage("c/1"), span={**SPAN, "id": "\0" * 9})]}
    for accepted in (3, 0):
        answer = running.request("pool", "POST", "/api/usage", json=batch).json()
        assert answer == {"accepted": accepted, "duplicates": 3 - accepted}
    rows = {row["id"]: row for row in running.get("pool", "/api/usage").json()["records"]}
    assert rows["b/1"]["span"]["label"] == label_of("\0") and rows["b/1"]["user"] == name_of(long)
    assert rows["c/1"]["span"]["id"] == name_of("\0" * 9) and rows["a/1"]["cost_nano"] == rows["c/1"]["cost_nano"] > 0
    told = {entry["subject"]: entry for entry in running.get("operator", "/api/audit", action="usage.stand_in").json()["entries"]}
    assert set(told) == {"pool/b/1", "pool/c/1"}, "each once, although both came twice"
    assert told["pool/b/1"]["before"]["span.label"] == r"'\x00'" and told["pool/b/1"]["after"]["user"] == name_of(long)
    assert 'rows_set_aside_total{kind="usage",outcome="metered"} 4.0' in running.get(None, "/metrics").text


def test_the_lease_of_an_odd_notebook_counts_against_budgets_and_so_do_the_others(running: Running, usage: Usage) -> None:
    rows = [sent(usage("a-1/1"), record="a-1/1"), sent(usage("b-1/1"), record="b-1/1", span=SPAN)]
    for row in rows:
        del row["id"], row["source"], row["close_reason"], row["parked_bytes"], row["energy_mj"]
    body = {"source": "pool", "sent_at_ns": running.clock.now_ns, "period_ns": 5 * 10**9, "leases": rows}
    assert running.request("pool", "POST", "/api/heartbeats", json=body).json() == {"budgets": []}
    both = running.get("acme-owner", "/api/balance").json()["balances"][0]["held_nano"]
    body["leases"], body["sent_at_ns"] = rows[:1], running.clock.now_ns + 1
    running.request("pool", "POST", "/api/usage", json={"records": [sent(usage("b-1/1"), span=SPAN)]})
    held = running.get("acme-owner", "/api/balance").json()["balances"][0]["held_nano"]
    assert abs(2 * held - both) <= 1, "its record releases its hold; each sum is rounded"
    assert 'rows_set_aside_total{kind="heartbeat",outcome="metered"} 1.0' in running.get(None, "/metrics").text


@given(ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, st.integers(0, 2**63 - 1) | st.none())
def test_whatever_the_pool_lets_in_billing_takes(
    login: str, group: str, process: str, span: str, label: str, model: str, cell_id: str, line: str, cell: int | None
) -> None:
    """A hostile hub's login and tenant, a hostile client's process, span and label, an operator's name of a device."""
    try:
        who = identity_of({"name": login, "groups": [f"tenant-{group}"], "scopes": [COMPUTE]})
        device = EquivalentBody(model=model).model
    except (IdentityRefused, ValidationError):
        who, device = identity_of({"name": "ada", "groups": ["tenant-acme"], "scopes": []}), "MI250"
    of_cell = {"cell": cell, "cell_id": cell_id, "first_line": line}
    said = json.dumps({"type": "acquire", "request": 1, "span": {"id": span, "kind": "cell", "label": label, **of_cell}})
    hello = json.dumps({"type": "hello", "process": process, "pid": 1, "torch": "2"})
    try:
        acquire, joined = wire.from_client(said), wire.from_client(hello)
    except wire.MessageError:
        assume(False)
    assert isinstance(acquire, wire.Acquire) and isinstance(joined, wire.Hello)
    for work in (acquire.span, wire.Span(id="s", kind="process", label=joined.process)):
        record = {
            "lease": "s.1", "tenant": who.tenant, "user": who.name, "session": "s", "span": work.model_dump(), "flavor": "small.64gb",
            "device_model": device, "devices": 1, "share_milli": 1000, "started_at_ns": 1, "duration_ns": 1,
        }  # fmt: skip
        beat = {"source": "pool", "sent_at_ns": 1, "period_ns": 1, "leases": [{**record, "record": "s.1/1"}]}
        assert len(body_of(HeartbeatBody, json.dumps(beat).encode()).leases) == 1
        usage = {"records": [{**record, "source": "pool", "id": "s.1/1", "close_reason": "drained"}]}
        (taken,) = body_of(UsageBatchBody, json.dumps(usage).encode()).records
        assert asdict(taken.span) == asdict(Span(**work.model_dump()))
