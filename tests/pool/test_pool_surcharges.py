"""What the devices of a lease cost beside its flavor: from the price book, over the pool, to the user and the statement."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from forebay_pool.model.metering import rate
from forebay_pool.model.prices import Tariff
from forebay_pool.model.types import Device, Place, Price
from forebay_wire import messages as wire
from price_books import POOL, Books, billing

Make = Callable[..., Any]
GPU = Device("main/null:0", "main", "null", 0, "gpu", 2**30)
SIZES = {
    "whole": [{"model": "gpu", "count": 1}],
    "quarter": [{"model": "gpu", "count": 1, "share_milli": 250}],
    "pair": [{"model": "gpu", "count": 2}],
    "plain": [{"model": "cpu-dev", "count": 1}],
}
PRICES = {"whole": 1_000, "quarter": 77, "pair": 3, "plain": 5}
SURCHARGE = 1_002
"""A quarter of it is 250.5, which is rounded to the even 250."""
PARTS = {"whole": 1_002, "quarter": 250, "pair": 2_004, "plain": 0}


def on_gpus(opened: Books) -> dict[str, Any]:
    devices = [
        {"kind": "cpu", "model": "cpu-dev", "memory": "4 GiB"},
        {"kind": "null", "model": "gpu", "memory": "4 GiB", "count": 2},
    ]
    return {"billing_url": opened.url, "hub_token": POOL, "price_poll_seconds": 0.1, "devices": devices}


async def set_up(running: Any, opened: Books) -> None:
    for flavor, equivalents in SIZES.items():
        answer = await running.call("PUT", f"api/flavors/{flavor}", body={"memory_bytes": 2**28, "equivalents": equivalents})
        assert answer.code == 200, answer.body
    await opened.surcharge(SURCHARGE, 0)
    await running.until(lambda: len(tariff(running).prices) >= len(PRICES) and bool(tariff(running).surcharges))


def tariff(running: Any) -> Tariff:
    """What billing told the pool last."""
    told: Tariff = running.machine.fleet.tariff
    return told


async def one_lease(running: Any, flavor: str, then: Callable[[], Any] | None = None) -> tuple[wire.Granted, wire.LeaseClosed]:
    client = await running.client()
    await client.hello(flavor)
    granted = await client.acquire()
    if then is not None:
        await then()
    client.work("mark")
    return granted, await client.hears(wire.LeaseClosed)


def test_a_gang_pays_the_surcharge_for_each_device_and_a_share_for_its_thousandths(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with billing(tmp_path, PRICES) as opened, pool(**on_gpus(opened)) as running:
            await set_up(running, opened)
            closed = {}
            for flavor in SIZES:
                granted, closed[flavor] = await one_lease(running, flavor)
                assert granted.flavor.price_nano_per_hour == PRICES[flavor] + PARTS[flavor]
            records = {record["flavor"]: record for record in await opened.records(len(SIZES))}
            for flavor, record in records.items():
                told = (record["devices"], record["share_milli"], record["rates"][0]["surcharge_nano_per_hour"])
                assert told == (2 if flavor == "pair" else 1, 250 if flavor == "quarter" else 1000, PARTS[flavor])
                assert record["price_nano_per_hour"] == PRICES[flavor]
                assert record["cost_nano"] == closed[flavor].cost_nano
            month = time.strftime("%Y-%m", time.gmtime())
            lines = {line["flavor"]: line for line in (await opened.ask("GET", f"api/statement?tenant=acme&month={month}"))["lines"]}
            for flavor, line in lines.items():
                assert line["surcharge_nano_per_hour"] == PARTS[flavor]
                exact = closed[flavor].duration_ns * (PRICES[flavor] + PARTS[flavor])
                assert int(line["cost_exact"].replace(".", "")) == round(Fraction(exact, 3600))
            assert set(lines) == set(records) == set(SIZES)

    asyncio.run(scenario())


def test_a_surcharge_that_changes_in_the_middle_of_a_lease_is_paid_from_then_on_and_told_to_the_next(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with billing(tmp_path, PRICES) as opened, pool(**on_gpus(opened)) as running:
            await set_up(running, opened)
            changed_ns = 0

            async def raise_it() -> None:
                nonlocal changed_ns
                await asyncio.sleep(0.05)
                changed_ns = await opened.surcharge(9)
                await running.until(lambda: tariff(running).surcharges == {("gpu", "USD"): 9})

            _, first = await one_lease(running, "whole", raise_it)
            granted, second = await one_lease(running, "whole")
            assert granted.flavor.price_nano_per_hour == PRICES["whole"] + 9
            records = {record["lease"]: record for record in await opened.records(2)}
            cut, after = records[first.lease], records[second.lease]
            assert after["cost_nano"] == second.cost_nano
            assert [rate["surcharge_nano_per_hour"] for rate in cut["rates"]] == [SURCHARGE, 9]
            before_ns = changed_ns - cut["started_at_ns"]
            assert [rate["duration_ns"] for rate in cut["rates"]] == [before_ns, cut["duration_ns"] - before_ns]
            month = time.strftime("%Y-%m", time.gmtime())
            lines = (await opened.ask("GET", f"api/statement?tenant=acme&month={month}"))["lines"]
            assert [(line["surcharge_nano_per_hour"], line["leases"]) for line in lines] == [(9, 2), (SURCHARGE, 1)]

    asyncio.run(scenario())


def test_of_equivalents_the_one_with_the_least_surcharge_in_the_price_book_is_lent(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        devices = [{"kind": "null", "model": model, "memory": "4 GiB"} for model in ("gpu", "tpu")]
        async with billing(tmp_path, PRICES) as opened, pool(**on_gpus(opened) | {"devices": devices}) as running:
            either = [{"model": "gpu", "count": 1}, {"model": "tpu", "count": 1}]
            assert (await running.call("PUT", "api/flavors/plain", body={"memory_bytes": 2**28, "equivalents": either})).code == 200
            await opened.surcharge(SURCHARGE)
            await running.until(lambda: bool(tariff(running).surcharges))
            granted, _ = await one_lease(running, "plain")
            assert granted.device.model == "tpu"
            await opened.ask("PUT", "api/surcharges/tpu", {"surcharge_nano_per_hour": SURCHARGE + 1, "currency": "USD"})
            await running.until(lambda: len(tariff(running).surcharges) == 2)
            granted, _ = await one_lease(running, "plain")
            assert granted.device.model == "gpu"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("surcharge", "devices", "share_milli", "per_second"),
    [(1, 1, 1000, 1), (1, 4, 1000, 4), (1, 1, 499, 0), (1, 1, 500, 0), (3, 1, 500, 2), (10**12, 100_000, 1000, 10**17), (7, 1, 1, 0)],
)
def test_a_rate_is_whole_nano_units_with_halves_to_the_even_one(surcharge: int, devices: int, share_milli: int, per_second: int) -> None:
    place = Place((GPU,) * devices, share_milli)
    surcharges = {("gpu", "EUR"): surcharge, ("gpu", "USD"): 5, ("other", "EUR"): 5}
    assert rate(Price(10, "EUR"), surcharges, place) == Price(10 + per_second, "EUR")
    assert rate(None, surcharges, place) is None
