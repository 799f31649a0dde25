"""The queue at the HTTP edge, on the event stream, and under a real training loop."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fork_server
import pytest
from forebay_wire import messages as wire

Make = Callable[..., Any]
EVENT_SECONDS_MAX = 0.1
REAL = {
    "real_workers": True,
    "heartbeat_seconds": 0.5,
    "idle_release_seconds": 60.0,
    "revoke_grace_seconds": 0.05,
}
TRAINING = """
import os, sys, time, torch
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
data = torch.randn(64, 16).to("cuda")
for step in range(int(sys.argv[2])):
    if os.path.exists(sys.argv[1]):
        break
    loss = (model(data) - data.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), flush=True)
    time.sleep(0.02)
print(torch.cat([p.detach().cpu().flatten() for p in model.parameters()]).sum().item().hex())
"""
"""Arguments: a file whose appearance ends the loop, and the most steps."""
STEPS_MAX = 5000
QUOTA = {"devices_milli": 1000, "device_seconds": 60, "window_seconds": 600, "on_exhausted": "revoke", "priority_max": 7, "weight": 2}


def test_operators_set_quotas_which_outlive_a_restart(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            response = await running.call("PUT", "api/quotas/acme", body=QUOTA)
            assert response.code == 200, response.body
            assert (await running.call("PUT", "api/quotas/acme/ben", body={"devices_milli": 0})).code == 200
            row = json.loads(response.body)
            assert {name: row[name] for name in QUOTA} == QUOTA
            assert (row["tenant"], row["user"], row["budget"]) == ("acme", None, "open")
            assert (row["held_milli"], row["used_device_seconds"]) == (0, 0.0)
        async with pool() as running:
            assert [(row["tenant"], row["user"]) for row in await running.get("api/quotas")] == [("acme", None), ("acme", "ben")]
            client = await running.client("ben")
            await client.hello()
            await client.ask()
            assert (await client.hears(wire.Refused)).code == "quota"
            other = await running.client("ada")
            await other.hello()
            await other.acquire()
            row = await running.get("api/quotas/acme")
            assert (row["held_milli"], 0 < row["used_device_seconds"] < 60) == (1000, True)
            assert (await running.get("api/quotas/globex"))["devices_milli"] is None

    asyncio.run(scenario())


def test_a_flavor_is_removed_for_good_once_no_session_has_it(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            default = (await running.get("api/choice", "ada"))["flavor"]
            other = next(row["name"] for row in await running.get("api/flavors") if row["name"] != default)
            path = f"api/flavors/{other}"
            for who, name, status in (("ada", other, 403), ("operator", default, 409), ("operator", "none", 404)):
                assert (await running.call("DELETE", f"api/flavors/{name}", who)).code == status
            client = await running.client("ada")
            await client.hello(flavor=other)
            refused = await running.call("DELETE", path)
            assert (refused.code, json.loads(refused.body)["error"]["fault"]["values"]) == (409, {"count": 1})
            await client.close()
            await running.until(lambda: not running.service.shell.machine.sessions)
            assert (await running.call("DELETE", path, If_Match='"gone"')).code == 412
            assert other in [row["name"] for row in await running.get("api/flavors")], "what was not written is there still"
            assert (await running.call("DELETE", path)).code == 204
        async with pool(warm_workers=0) as running:
            assert other not in [row["name"] for row in await running.get("api/flavors")]
            body = {"memory_bytes": 2**30, "equivalents": [{"model": "null"}]}
            assert (await running.call("PUT", path, body=body, If_None_Match="*")).code == 200, "a new one of its name may be made"

    asyncio.run(scenario())


def test_shares_are_told_to_operators_and_services(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            assert (await running.call("GET", "api/shares", "olga")).code == 403
            assert await running.get("api/shares") == []
            assert (await running.call("PUT", "api/quotas/globex", body={"weight": 3})).code == 200
            (row,) = await running.get("api/shares", "dashboards")
            assert row == {"tenant": "globex", "weight": 3, "held_milli": 0, "decayed_device_seconds": 0.0}

    asyncio.run(scenario())


def test_an_owner_sets_what_members_are_held_to_but_not_what_an_operator_set(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            assert (await running.call("PUT", "api/quotas/acme/ben", "olga", {"devices_milli": 0})).code == 200
            assert (await running.call("PUT", "api/quotas/globex/cem", "operator", {"weight": 2})).code == 200
            assert [(row["user"], row["origin"]) for row in await running.get("api/quotas", "olga")] == [("ben", "owner")]
        async with pool(warm_workers=0) as running:
            for path in ("api/quotas/acme", "api/quotas/globex/cem"):
                assert (await running.call("PUT", path, "olga", {})).code == 403
            assert (await running.call("GET", "api/quotas/globex/cem", "olga")).code == 403
            assert (await running.call("PUT", "api/quotas/acme/ben", "olga", {"devices_milli": 500})).code == 200
            assert (await running.call("PUT", "api/quotas/acme/ben", "operator", {"devices_milli": 1000})).code == 200
            refused = await running.call("PUT", "api/quotas/acme/ben", "olga", {"devices_milli": 9000})
            assert (refused.code, json.loads(refused.body)["error"]["fault"]["code"]) == (403, "operators_quota")
            assert (await running.get("api/quotas/acme/ben"))["devices_milli"] == 1000
            for who in ("operator", "olga"):
                cleared = await running.call("PUT", "api/quotas/acme/ben", who, {})
                assert json.loads(cleared.body)["origin"] == "operator", "what bounds nothing is nobody's"
            assert (await running.call("PUT", "api/quotas/acme/ben", "olga", {"weight": 2})).code == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("method", "path", "who", "body", "status", "code"),
    [
        ("PUT", "api/quotas/acme", "ada", QUOTA, 403, "forbidden"),
        ("PUT", "api/quotas/acme", "dashboards", QUOTA, 403, "forbidden"),
        ("GET", "api/quotas/acme", "ada", None, 403, "forbidden"),
        ("GET", "api/quotas", None, None, 401, "unauthorized"),
        ("GET", "api/queue", "guest", None, 403, "forbidden"),
        ("POST", "api/sessions/x/revoke", "ada", "", 403, "forbidden"),
        ("POST", "api/sessions/x/revoke", "operator", "", 404, "no_session"),
        ("PUT", "api/quotas/acme", "operator", {"devices": 1}, 400, "invalid"),
        ("PUT", "api/quotas/acme", "operator", {"devices_milli": -1}, 400, "invalid"),
        ("PUT", "api/quotas/acme", "operator", {"device_seconds": 5}, 400, "invalid"),
        ("PUT", "api/quotas/acme", "operator", {"weight": 0}, 400, "invalid"),
        ("PUT", "api/quotas/acme", "operator", {"priority_max": 100}, 400, "invalid"),
        ("PUT", "api/quotas/" + "x" * 256, "operator", {}, 400, "invalid"),
    ],
)
def test_the_wrong_person_and_the_wrong_body_get_one_clear_error(
    pool: Make, method: str, path: str, who: str | None, body: Any, status: int, code: str
) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            response = await running.call(method, path, who, body)
            assert (response.code, json.loads(response.body)["error"]["code"]) == (status, code)
            assert await running.get("api/quotas") == []

    asyncio.run(scenario())


def test_who_waits_is_listed_to_operators_and_to_its_own_user(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            holder, waiter, other = [await running.client(who) for who in ("ada", "ben", "other-ada")]
            for client in (holder, waiter, other):
                await client.hello()
            await holder.acquire()
            for client in (waiter, other):
                await client.ask()
                assert (await client.hears(wire.Queued)).code == "shortage"
            requests = [running.machine.sessions[client.session].request for client in (waiter, other)]
            await running.until(lambda: {request.told.position for request in requests} == {1, 2})
            rows = await running.get("api/queue")
            assert {row["position"] for row in rows} == {1, 2}
            assert {(row["tenant"], row["user"]) for row in rows} == {("acme", "ben"), ("globex", "ada")}
            assert [row["session"] for row in await running.get("api/queue", "ben")] == [waiter.session]
            assert await running.get("api/queue", "ada") == []
            page = (await running.call("GET", "metrics")).body.decode()
            for tenant in ("acme", "globex"):
                assert f'forebay_pool_waiting_requests{{flavor="dev.1gb",reason="shortage",tenant="{tenant}"}} 1.0' in page
            (oldest,) = re.findall(r'forebay_pool_oldest_request_seconds\{flavor="dev.1gb",reason="shortage"\} ([\d.]+)', page)
            assert 0 < float(oldest) < 60
            assert 'forebay_pool_lease_wait_seconds_count{flavor="dev.1gb"} 1.0' in page

    asyncio.run(scenario())


def test_an_operator_takes_a_lease_back_and_it_waits_again(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(revoke_grace_seconds=0.1) as running:
            holder, waiter = await running.client("ada"), await running.client("ben")
            await holder.hello()
            assert (await running.call("POST", f"api/sessions/{holder.session}/revoke", body="")).code == 409
            await holder.acquire()
            await waiter.hello()
            await waiter.ask()
            response = await running.call("POST", f"api/sessions/{holder.session}/revoke", body="")
            assert (response.code, json.loads(response.body)["seconds"]) == (202, 0.1)
            revoking = await holder.hears(wire.Revoking)
            assert (revoking.epoch, revoking.reason) == (1, "An operator (operator) takes the lease back.")
            assert (await holder.hears(wire.LeaseClosed)).reason == "revoked"
            await waiter.hears(wire.Granted)
            assert (await holder.hears(wire.Queued)).request == 0
            await waiter.say(wire.Release(epoch=1))
            assert (await holder.hears(wire.Granted)).epoch == 2

    asyncio.run(scenario())


def test_a_change_is_on_the_event_stream_within_100_ms(pool: Make) -> None:
    """Beside what this machine makes a sleeping task wait, which is measured meanwhile."""

    async def scenario() -> None:
        lags: list[float] = []

        async def measure_lag() -> None:
            while True:
                began = time.monotonic()
                await asyncio.sleep(0.001)
                lags.append(time.monotonic() - began - 0.001)

        async with pool() as running:
            holder, waiter = await running.client("ada"), await running.client("ben")
            await holder.hello()
            await waiter.hello()
            board = running.service.shell.board
            watcher = board.watch(("acme", "ben"))
            await holder.acquire()
            probe = asyncio.create_task(measure_lag())
            took: list[float] = []
            for number in range(1, 21):
                began = time.monotonic()
                await waiter.ask(number)
                await _shows(watcher, "queued")
                took.append(time.monotonic() - began)
                await asyncio.sleep(0.013 * (number % 5))
                began = time.monotonic()
                await waiter.say(wire.Cancel(request=number))
                await _shows(watcher, "idle")
                took.append(time.monotonic() - began)
            probe.cancel()
            board.leave(watcher)
            assert max(took) <= EVENT_SECONDS_MAX + 3 * max(lags), (max(took), max(lags))

    asyncio.run(scenario())


async def _shows(watcher: Any, state: str) -> None:
    while True:
        text = await asyncio.wait_for(watcher.events.get(), 20)
        if f'"state": "{state}"' in text:
            return


@pytest.mark.skipif(importlib.util.find_spec("forebay_worker._executor") is None, reason="the worker's extension is not built")
@pytest.mark.skipif(importlib.util.find_spec("forebay._C") is None, reason="the device's extension is not built")
def test_a_training_loop_gives_the_same_bits_however_often_its_lease_is_revoked(pool: Make, tmp_path: Path) -> None:
    enough = tmp_path / "enough"

    async def train(running: Any, revocations: int, steps: int) -> list[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREBAY_")}
        environment |= {"FOREBAY_URL": running.service.url, "FOREBAY_TOKEN": "ada"}
        pipes: dict[str, Any] = {"stdout": asyncio.subprocess.PIPE, "stderr": asyncio.subprocess.PIPE}
        command = (fork_server.programs(), "-c", TRAINING, str(enough), str(steps))
        process = await asyncio.create_subprocess_exec(*command, env=environment, **pipes)
        told = asyncio.create_task(process.communicate())
        for count in range(revocations):
            await running.until(lambda: running.leases, 60)
            session = next(s for s in running.machine.sessions.values() if s.lease is not None)
            epoch = session.epoch
            assert (await running.call("POST", f"api/sessions/{session.id}/revoke", body="")).code == 202, count
            await running.until(lambda was=epoch, of=session: of.epoch > was and of.lease is not None, 60)
        if revocations:
            enough.touch()
        out, err = await told
        assert process.returncode == 0, err.decode()
        assert err.decode().count("the lease is taken back in 0.05 s") == revocations
        return out.decode().splitlines()

    async def scenario() -> None:
        async with pool(**REAL) as running:
            revoked = await train(running, 4, STEPS_MAX)
            enough.unlink()
            steps = len(revoked) - 1
            assert 4 < steps < STEPS_MAX
            assert await train(running, 0, steps) == revoked
            await running.until(lambda: not running.leases)
            await running.until(lambda: len(running.records()) >= 6)
            reasons = [record["close_reason"] for record in running.records()]
            assert reasons.count("revoked") == 4

    asyncio.run(scenario())
