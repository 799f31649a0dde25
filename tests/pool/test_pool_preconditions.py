"""Two operators who change one quota from the same point: one change is done, and whoever comes second is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

Make = Callable[..., Any]
WRITERS = 6


@pytest.mark.parametrize("path", ["api/quotas/acme", "api/quotas/acme/ada"])
def test_of_writers_with_one_tag_one_wins_and_the_others_change_nothing(pool: Make, database_url: str, path: str) -> None:
    async def scenario() -> None:
        async with pool(database_url=database_url, warm_workers=0) as running:
            for _ in range(2):
                seen = await running.call("GET", path)
                tag = seen.headers["ETag"]
                assert json.loads(seen.body)["etag"] == tag
                weights = [json.loads(seen.body)["weight"] + number for number in range(1, 1 + WRITERS)]
                calls = [running.call("PUT", path, body={"weight": weight}, If_Match=tag) for weight in weights]
                answers = await asyncio.gather(*calls)
                assert sorted(answer.code for answer in answers) == [200] + [412] * (WRITERS - 1)
                won = next(number for number, answer in enumerate(answers) if answer.code == 200)
                now = await running.call("GET", path)
                assert json.loads(now.body)["weight"] == weights[won]
                assert now.headers["ETag"] == answers[won].headers["ETag"] != tag
                lost = json.loads(answers[won - 1].body)["error"]
                assert lost["code"] == "precondition_failed" and "Somebody else" in lost["message"]
            entries = (await running.get("api/audit?action=quota.set"))["entries"]
            assert len(entries) == 2 and entries[0]["before"] == entries[1]["after"] and entries[1]["before"] is None
        async with pool(database_url=database_url, warm_workers=0) as again:
            assert (await again.call("GET", path)).headers["ETag"] == now.headers["ETag"], "a tag outlives the pool"

    asyncio.run(scenario())


FLAVOR = {"memory_bytes": 2**30, "equivalents": [{"model": "cpu-dev", "count": 1, "share_milli": 1000}], "residents_max": None}
LISTED: dict[str, tuple[str, str, Callable[[int], dict[str, Any]]]] = {
    "flavor": ("api/flavors", "dev.1gb", lambda number: {**FLAVOR, "residents_max": number}),
    "model": ("api/models", "cpu-dev", lambda number: {"tenants": [f"tenant-{number}"]}),
}


@pytest.mark.parametrize("kind", LISTED)
def test_of_writers_of_a_flavor_or_a_model_with_one_tag_one_wins(pool: Make, database_url: str, kind: str) -> None:
    path, name, body = LISTED[kind]

    async def row(running: Any) -> dict[str, Any]:
        found: list[dict[str, Any]] = await running.get(path)
        return next(one for one in found if name in (one.get("name"), one.get("model")))

    async def scenario() -> None:
        async with pool(database_url=database_url, warm_workers=0) as running:
            for turn in range(2):
                tag = (await row(running))["etag"]
                wanted = [body(1 + turn * WRITERS + number) for number in range(WRITERS)]
                calls = [running.call("PUT", f"{path}/{name}", body=one, If_Match=tag) for one in wanted]
                answers = await asyncio.gather(*calls)
                assert sorted(answer.code for answer in answers) == [200] + [412] * (WRITERS - 1)
                won = next(number for number, answer in enumerate(answers) if answer.code == 200)
                now = await row(running)
                assert now.items() >= wanted[won].items() or (kind == "flavor" and now["residents_max"] == wanted[won]["residents_max"])
                assert now["etag"] == answers[won].headers["ETag"] != tag
            entries = (await running.get(f"api/audit?action={kind}.set"))["entries"]
            assert len(entries) == 2 and entries[0]["before"] == entries[1]["after"]
        async with pool(database_url=database_url, warm_workers=0) as again:
            assert (await row(again))["etag"] == now["etag"], "a tag outlives the pool"

    asyncio.run(scenario())


def test_a_new_flavor_is_made_where_none_stands(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            made = await running.call("PUT", "api/flavors/made.1gb", body=FLAVOR, If_None_Match="*")
            assert made.code == 200
            assert (await running.call("PUT", "api/flavors/made.1gb", body=FLAVOR, If_None_Match="*")).code == 412
            assert (await running.call("PUT", "api/flavors/other.1gb", body=FLAVOR, If_Match=made.headers["ETag"])).code == 412
            assert (await running.call("PUT", "api/models/cpu-dev", body={}, If_None_Match="*")).code == 412, "everybody may have it"

    asyncio.run(scenario())


def test_a_tag_that_is_none_is_refused_and_who_reads_is_always_answered(pool: Make) -> None:
    async def scenario() -> None:
        async with pool(warm_workers=0) as running:
            refused = await running.call("PUT", "api/quotas/acme", body={"weight": 2}, If_Match="untagged")
            assert refused.code == 400 and "If-Match" in json.loads(refused.body)["error"]["message"]
            exists = await running.call("PUT", "api/quotas/acme", body={"weight": 2}, If_None_Match="*")
            assert exists.code == 412, "a quota without bounds stands for everybody"
            tag = (await running.call("GET", "api/quotas/acme")).headers["ETag"]
            assert (await running.call("GET", "api/quotas/acme", If_None_Match=tag)).code == 200
            assert (await running.call("PUT", "api/quotas/acme", body={"weight": 2})).code == 200

    asyncio.run(scenario())
