"""Operators close and drain over HTTP; others are refused; what was closed stays closed over a restart."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import pytest
from forebay_pool.hosts.ray_nodes import MODEL_LABEL, RELEASE_LABEL, RayNode
from forebay_pool.placement.forecast import Arrivals, Load, erlang_c, forecast

Make = Callable[..., Any]

CHANGES = [
    ("api/nodes/main", {"drain": True}),
    ("api/devices/main/cpu:0", {"cordoned": True, "cause": "a fan is loud"}),
    ("api/models/cpu-dev", {"tenants": ["globex"]}),
]


@pytest.mark.parametrize(("path", "body"), CHANGES)
def test_only_operators_change_nodes_devices_and_models(pool: Make, path: str, body: dict[str, Any]) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            for who, status in ((None, 401), ("nobody", 401), ("ada", 403), ("guest", 403), ("dashboards", 403)):
                answer = await running.call("PUT", path, who, body)
                assert answer.code == status, who
                assert set(json.loads(answer.body)["error"]) == {"code", "message"}
            seat = running.machine.fleet.seats["main/cpu:0"]
            assert seat.is_open
            assert not running.machine.fleet.policy.models
            assert (await running.call("PUT", path, "operator", body)).code == 200

    asyncio.run(scenario())


@pytest.mark.skipif(os.getuid() != 0, reason="folders are given to the workers' group")
@pytest.mark.parametrize("account", [("60520-60523", 60702), None])
def test_a_host_of_another_release_is_not_lent_until_it_has_the_pool_s(pool: Make, account: tuple[str, int] | None) -> None:
    """Where workers have accounts, which `forebay node join` prepares; a cluster of somebody's own has no label of ours."""

    def of(release: str | None, number: int) -> RayNode:
        labels = {MODEL_LABEL: "cpu-dev"} | ({} if release is None else {RELEASE_LABEL: release})
        return RayNode(f"id-{number}", "gpu-1", "10.0.0.2", labels)

    async def scenario() -> None:
        async with pool(warm_workers=0, worker_account=account) as running:

            async def standing() -> tuple[str, list[str]]:
                (row,) = [row for row in await running.get("api/nodes", "operator") if row["node"] == "gpu-1"]
                return row["state"], [cause["message"] for cause in row["causes"]]

            ours = version("forebay-pool")
            for number, release in enumerate(("0.0.1", None)):
                running.service._nodes_changed([of(release, number)])
                told = f"another release of Forebay than the pool's {ours} is installed there"
                assert await standing() == (("lost", [told]) if account else ("up", []))
            running.service._nodes_changed([of(ours, 2)])
            assert await standing() == ("up", []), "it was upgraded, and joined again"

    asyncio.run(scenario())


@pytest.mark.parametrize("path", ["api/nodes", "api/models", "api/forecast"])
def test_operators_and_services_alone_read_them(pool: Make, path: str) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            assert (await running.call("GET", path, "ada")).code == 403
            assert (await running.call("GET", path, None)).code == 401
            assert await running.get(path, "dashboards")

    asyncio.run(scenario())


def test_what_an_operator_closed_and_kept_for_a_tenant_is_so_after_a_restart(pool: Make) -> None:
    async def scenario() -> None:
        devices = [
            {"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB", "count": 2},
            {"kind": "null", "model": "null", "memory": "4 GiB", "node": "b"},
        ]
        async with pool(warm_workers=0, devices=devices) as running:
            for path, body in (*CHANGES[1:], ("api/nodes/b", {"drain": True, "grace_seconds": 0.0})):
                assert (await running.call("PUT", path, "operator", body)).code == 200
        async with pool(warm_workers=0, devices=devices) as running:
            rows = {row["device"]: row for row in await running.get("api/devices")}
            assert (rows["main/cpu:0"]["cordoned"], rows["main/cpu:0"]["cause"]) == (True, "a fan is loud")
            assert rows["main/cpu:1"]["state"] == "free"
            assert {row["node"]: row["state"] for row in await running.get("api/nodes")} == {"main": "up", "b": "draining"}
            model = next(row for row in await running.get("api/models") if row["model"] == "cpu-dev")
            assert (model["tenants"], model["closed"]) == (["globex"], 1)
            assert (await running.call("PUT", "api/devices/main%2Fcpu:0", "operator", {"cordoned": False})).code == 200
        async with pool(warm_workers=0, devices=devices) as running:
            assert running.machine.fleet.seats["main/cpu:0"].is_open

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("api/nodes/none", {"drain": True}, 404),
        ("api/devices/main/cpu:9", {"cordoned": True}, 404),
        ("api/models/none", {"tenants": None}, 404),
        ("api/nodes/main", {"drain": "yes"}, 400),
        ("api/nodes/main", {"drain": True, "grace_seconds": -1.0}, 400),
        ("api/devices/main/cpu:0", {"cordoned": True, "why": "x"}, 400),
        ("api/models/cpu-dev", {"surcharge_nano_per_hour": 1}, 400),
    ],
)
def test_a_wrong_request_changes_nothing(pool: Make, path: str, body: dict[str, Any], status: int) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            answer = await running.call("PUT", path, "operator", body)
            told = json.loads(answer.body)["error"]
            assert (answer.code, set(told)) == (status, {"code", "message", "fault"} if status == 400 else {"code", "message"})
            assert status != 400 or (told["fault"]["field"] in body and told["message"].startswith(told["fault"]["field"]))
            assert running.machine.fleet.seats["main/cpu:0"].is_open

    asyncio.run(scenario())


# The forecast


def test_the_rate_of_arrivals_is_found_and_forgotten() -> None:
    arrivals = Arrivals()
    for second in range(600):
        arrivals.add("small", second * 10**9)
    assert arrivals.per_second("small", 600 * 10**9) == pytest.approx(1.0, rel=0.01)
    assert arrivals.per_second("small", (600 + 9000) * 10**9) < 0.001
    assert arrivals.per_second("other", 600 * 10**9) == 0.0


def test_erlangs_formula_gives_the_textbooks_values() -> None:
    assert erlang_c(1, 0.5) == pytest.approx(0.5)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert erlang_c(10, 5.0) == pytest.approx(0.0361, abs=1e-4)
    assert (erlang_c(4, 0.0), erlang_c(4, 4.0), erlang_c(0, 1.0)) == (0.0, 1.0, 1.0)


def test_flavors_on_the_same_devices_are_short_together() -> None:
    both = ("half", "whole")
    half, whole = forecast([Load("half", 2.0, 3.0, 0.5, 8.0, both), Load("whole", 1.0, 6.0, 1.0, 8.0, both)])
    assert (half.offered_devices, whole.offered_devices, half.rival_devices) == (3.0, 6.0, 9.0)
    assert (whole.missing_devices, whole.utilisation, whole.wait_probability) == (1.0, 9 / 8, 1.0)
    (alone,) = forecast([Load("half", 2.0, 3.0, 0.5, 0.0, ("half",))])
    assert (alone.utilisation, alone.missing_devices, alone.wait_probability) == (None, 3.0, 1.0)
