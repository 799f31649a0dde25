"""Who sends little is served at once, however much others send; all together take a share of a service's time."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from forebay_service.peers.rate_limit import LOOP_SECONDS, WAITING_MAX, Crowded, RateLimit

SHARE = 0.5


def test_nobody_waits_while_little_is_wanted() -> None:
    async def scenario() -> None:
        now = [0.0]
        rate_limit = RateLimit(SHARE, lambda: now[0])
        for _ in range(200):
            turn = rate_limit.turn(rate_limit.peer("acme", "ada"), 0.001)
            with pytest.raises(StopIteration):
                turn.send(None)
            now[0] += 0.01
            await asyncio.sleep(0)

    asyncio.run(scenario())


def test_a_peer_that_wants_much_takes_a_share_and_one_that_wants_little_goes_first() -> None:
    async def scenario() -> None:
        rate_limit, loop = RateLimit(SHARE), asyncio.get_running_loop()
        counts: Counter[str] = Counter()

        async def flood(name: str) -> None:
            while True:
                await rate_limit.turn(rate_limit.peer("evil", name), 0.002)
                counts[name] += 1

        floods = [asyncio.create_task(flood(f"flooder-{number}")) for number in range(50)]
        await asyncio.sleep(0.1)
        begin, waits = loop.time(), []
        counts.clear()
        for _ in range(20):
            asked = loop.time()
            await rate_limit.turn(rate_limit.peer("acme", "ada"), 0.0005)
            waits.append(loop.time() - asked)
            await asyncio.sleep(0.03)
        seconds = loop.time() - begin
        for flood_task in floods:
            flood_task.cancel()
        assert sum(counts.values()) * 0.002 < 1.3 * SHARE * seconds, "all together"
        assert sorted(waits)[10] < 0.03, "fifty that wait each for 2 ms of half the time would make 200 ms"
        assert min(counts.values()) > 0.3 * max(counts.values()), "those who want the same get the same"

    asyncio.run(scenario())


def test_many_members_of_a_tenant_do_not_get_more_than_one_member_of_another() -> None:
    async def scenario() -> None:
        rate_limit, counts = RateLimit(SHARE), Counter[str]()

        async def flood(tenant: str, name: str) -> None:
            while True:
                await rate_limit.turn(rate_limit.peer(tenant, name), 0.002)
                counts[tenant] += 1

        tasks = [asyncio.create_task(flood("many", f"m{number}")) for number in range(20)]
        tasks.append(asyncio.create_task(flood("one", "ada")))
        await asyncio.sleep(1)
        for task in tasks:
            task.cancel()
        assert counts["one"] > 0.3 * counts["many"]

    asyncio.run(scenario())


def test_the_loop_hands_out_a_bounded_time_in_each_of_its_turns() -> None:
    async def scenario() -> None:
        rate_limit = RateLimit(SHARE)
        done: list[int] = []

        async def ask(number: int) -> None:
            await rate_limit.turn(rate_limit.peer("acme", f"m{number}"), LOOP_SECONDS / 4)
            done.append(number)

        tasks = [asyncio.create_task(ask(number)) for number in range(16)]
        await asyncio.sleep(0)
        assert len(done) <= 4, "of 16 that want a quarter of it each"
        await asyncio.gather(*tasks)
        assert len(done) == 16

    asyncio.run(scenario())


def test_who_waits_for_too_many_turns_is_refused_and_nobody_else() -> None:
    async def scenario() -> None:
        rate_limit = RateLimit(0.001)
        flooder, ada = rate_limit.peer("evil", "mallory"), rate_limit.peer("acme", "ada")
        await rate_limit.turn(flooder, 0.011)
        waiting = [asyncio.create_task(rate_limit.turn(flooder, 0.001)) for _ in range(WAITING_MAX)]
        await asyncio.sleep(0)
        with pytest.raises(Crowded):
            await rate_limit.turn(flooder, 0.001)
        of_ada = asyncio.create_task(rate_limit.turn(ada, 0.001))
        await asyncio.wait_for(of_ada, 10)
        assert not any(one.done() for one in waiting)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert flooder.waiting == 0, "who is gone waits no more"

    asyncio.run(scenario())
