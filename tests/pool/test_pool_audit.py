"""What operators do is written down with what was before and after, and read newest first by operators alone; and they park sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.errors import Deposed
from forebay_pool.model.events import QuotaSet, SessionParked
from forebay_pool.model.types import Quota
from forebay_pool.store.database import Store
from forebay_service.audit import Wanted
from forebay_wire import messages as wire

Make = Callable[..., Any]

CHANGES = {
    "flavor.set": ("api/flavors/made.1gb", {"memory_bytes": 2**30, "equivalents": [{"model": "cpu-dev", "share_milli": 500}]}),
    "quota.set": ("api/quotas/acme/ada", {"devices_milli": 1500}),
    "device.set": ("api/devices/main/cpu:0", {"cordoned": True, "cause": "a fan is loud"}),
    "node.set": ("api/nodes/main", {"drain": True, "grace_seconds": 5.0}),
    "model.set": ("api/models/cpu-dev", {"tenants": ["acme"]}),
}


def test_each_change_of_an_operator_is_written_down_with_what_was_before(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            for path, body in CHANGES.values():
                assert (await running.call("PUT", path, "ada", body)).code == 403
                assert (await running.call("PUT", path, "operator", body)).code == 200
            page = await running.get("api/audit")
        assert [entry["action"] for entry in page["entries"]] == [*reversed(CHANGES)]
        assert {entry["who"] for entry in page["entries"]} == {"operator"}
        found = {entry["action"]: entry for entry in page["entries"]}
        assert (found["device.set"]["subject"], found["quota.set"]["subject"]) == ("main/cpu:0", "acme/ada")
        assert found["device.set"]["before"] == {"cordoned": False, "cause": ""}
        assert found["device.set"]["after"] == {"cordoned": True, "cause": "a fan is loud"}
        assert (found["quota.set"]["before"], found["quota.set"]["after"]["devices_milli"]) == (None, 1500)
        assert (found["flavor.set"]["before"], found["model.set"]["after"]["tenants"]) == (None, ["acme"])
        async with pool(warm_workers=0) as running:
            assert await running.get("api/audit") == page, "it outlives a restart"
            assert (await running.call("PUT", *_again("quota.set"))).code == 200
            newest = (await running.get("api/audit?limit=1"))["entries"][0]
            assert newest["before"]["devices_milli"] == 1500

    asyncio.run(scenario())


def _again(action: str) -> tuple[str, str, dict[str, Any]]:
    path, body = CHANGES[action]
    return path, "operator", body


def test_entries_are_filtered_and_paged_and_for_operators_alone(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            for number in range(5):
                await running.call("PUT", f"api/quotas/firm-{number}", "operator", {"weight": number + 1})
            for who, status in ((None, 401), ("ada", 403), ("dashboards", 403)):
                assert (await running.call("GET", "api/audit", who)).code == status
            seen, cursor = [], ""
            while cursor is not None:
                page = await running.get(f"api/audit?limit=2{cursor and '&cursor='}{cursor}")
                seen += [entry["subject"] for entry in page["entries"]]
                cursor = page["next"]
            assert seen == [f"firm-{number}" for number in (4, 3, 2, 1, 0)]
            one = (await running.get("api/audit?subject=firm-3&action=quota.set&who=operator"))["entries"]
            assert [entry["after"]["weight"] for entry in one] == [4]
            await running.call("PUT", "api/quotas/firm-3/ada", "operator", {"weight": 9})
            own = (await running.get("api/audit?subject=firm-3"))["entries"]
            assert [entry["subject"] for entry in own] == ["firm-3/ada", "firm-3"], "and what is of it"
            assert (await running.get("api/audit?subject=firm-"))["entries"] == []
            at_ns = one[0]["at_ns"]
            assert len((await running.get(f"api/audit?since_ns={at_ns}&until_ns={at_ns + 1}"))["entries"]) >= 1
            for bad in ("limit=0", "limit=x", "cursor=-1", "who=", "colour=red", "who=%ff"):
                answer = await running.call("GET", f"api/audit?{bad}")
                assert (answer.code, json.loads(answer.body)["error"]["code"]) == (400, "invalid"), bad

    asyncio.run(scenario())


def test_what_operators_do_to_sessions_is_written_down_and_what_their_users_do_is_not(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(revoke_grace_seconds=0.1) as running:
            client = await running.client("ada")
            await client.hello()
            granted = await client.acquire()
            name = client.session
            assert (await running.call("POST", f"api/sessions/{name}/park", body={})).code == 409, "it computes"
            await client.say(wire.Release(epoch=granted.epoch))
            await running.until(lambda: running.machine.sessions[name].state == "resident")
            for who in ("ada", "dashboards"):
                assert (await running.call("POST", f"api/sessions/{name}/park", who, {})).code == 403
            answer = await running.call("POST", f"api/sessions/{name}/park", body={})
            assert (answer.code, json.loads(answer.body)["device"]) == (202, "main/cpu:0")
            await running.until(lambda: running.machine.sessions[name].state == "parked")
            assert (await running.call("POST", f"api/sessions/{name}/park", body={})).code == 409, "it is parked"
            assert (await running.call("POST", "api/sessions/nobody/park", body={})).code == 404
            await client.acquire(2)
            await running.call("POST", f"api/sessions/{name}/revoke", body={})
            await running.call("DELETE", f"api/sessions/{name}")
            own = await running.client("ada")
            await own.hello()
            await running.call("DELETE", f"api/sessions/{own.session}", "ada")
            entries = (await running.get("api/audit"))["entries"]
            assert [(entry["action"], entry["subject"]) for entry in entries] == [
                ("session.end", name),
                ("session.revoke", name),
                ("session.park", name),
            ]
            assert entries[2]["before"] == {"tenant": "acme", "user": "ada", "flavor": "dev.1gb", "state": "resident"}

    asyncio.run(scenario())


def test_an_operator_parks_who_rests_and_nobody_who_computes_or_whose_quota_forbids_it(world: Make) -> None:
    w = world()
    w.lease("a")
    w.do(SessionParked("a"))
    w.do(SessionParked("nobody"))
    assert not [m for m in w.ordered(w.worker_of("a")) if isinstance(m, wire.Park)]
    w.drain("a")
    w.do(QuotaSet("acme", None, Quota(parked_bytes=0, on_parked_full="end")))
    w.worker(w.worker_of("a"), wire.Heartbeat(epoch=1, memory_bytes=3, busy_ns=0, commands=1))
    w.do(SessionParked("a"))
    w.settle()
    assert w.machine.sessions["a"].state == "resident"
    w.do(QuotaSet("acme", None, Quota()))
    w.do(SessionParked("a"))
    w.settle()
    assert w.machine.sessions["a"].state == "parked"
    w.lease("a", 2)
    assert w.machine.sessions["a"].state == "active"


def test_a_change_that_cannot_be_written_leaves_no_entry(tmp_path: Any) -> None:
    store = Store(f"sqlite:///{tmp_path / 'pool.sqlite3'}")
    store.migrate()
    first = store.lead("http://one")
    store.set_quota("acme", None, Quota(weight=2), "operator")
    assert first == store.epoch
    store.epoch = first - 1
    with pytest.raises(Deposed):
        store.set_quota("acme", None, Quota(weight=9), "operator")
    assert [quota.weight for _, _, quota in store.quotas()] == [2]
    assert len(store.audit_entries(Wanted(), 10, None)) == 1
    store.close()
