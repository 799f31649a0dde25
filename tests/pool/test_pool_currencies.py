"""Two tenants that are billed in two currencies: what each is told, lent and billed, with a real billing service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forebay_wire import messages as wire
from price_books import POOL, Books, billing

Make = Callable[..., Any]
DOLLARS, WON = 1_000, 1_400_000
NULLS = [{"kind": "null", "model": model, "memory": "4 GiB"} for model in ("gpu", "tpu")]
EITHER = {"memory_bytes": 2**28, "equivalents": [{"model": "gpu", "count": 1}, {"model": "tpu", "count": 1}]}
PEOPLE = {"ada": ("acme", "USD", DOLLARS), "other-ada": ("globex", "KRW", WON)}


def beside(opened: Books) -> dict[str, Any]:
    return {"billing_url": opened.url, "hub_token": POOL, "price_poll_seconds": 0.1, "devices": NULLS}


async def offered(running: Any, who: str, flavor: str = "either") -> tuple[int | None, str | None]:
    row = next(row for row in await running.get("api/flavors", who) if row["name"] == flavor)
    return row["price_nano_per_hour"], row["currency"]


async def leased(running: Any, who: str) -> tuple[wire.SessionOpened, wire.Granted, dict[str, Any], wire.LeaseClosed]:
    client = await running.client(who)
    opened = await client.hello("either")
    granted = await client.acquire()
    (row,) = await running.get("api/leases")
    client.work("mark")
    return opened, granted, row, await client.hears(wire.LeaseClosed)


def test_each_tenant_sees_and_pays_the_price_in_its_own_currency(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with billing(tmp_path, {"either": DOLLARS}, tenant_currencies={"globex": "KRW"}) as books, pool(**beside(books)) as running:
            assert (await running.call("PUT", "api/flavors/either", body=EITHER)).code == 200
            await books.ask("PUT", "api/prices/either", {"price_nano_per_hour": WON, "currency": "KRW", "valid_from_ns": 0})
            told = {}
            for who, (tenant, currency, nano) in PEOPLE.items():
                assert await offered(running, who) == (nano, currency)
                opened, granted, row, told[tenant] = await leased(running, who)
                for flavor in (opened.flavor, granted.flavor):
                    assert (flavor.price_nano_per_hour, flavor.currency) == (nano, currency)
                assert (row["price_nano_per_hour"], row["currency"]) == (nano, currency)
            assert await offered(running, "operator") == (DOLLARS, "USD")
            for record in await books.records(2):
                nano, closed = PEOPLE["ada" if record["tenant"] == "acme" else "other-ada"][2], told[record["tenant"]]
                assert (record["price_nano_per_hour"], record["cost_nano"]) == (nano, closed.cost_nano)

    asyncio.run(scenario())


def test_where_the_price_is_missing_in_a_tenants_currency_it_is_told_so_until_there_is_one(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with billing(tmp_path, {"either": DOLLARS}, tenant_currencies={"globex": "KRW"}) as books, pool(**beside(books)) as running:
            assert (await running.call("PUT", "api/flavors/either", body=EITHER)).code == 200
            assert [await offered(running, who) for who in PEOPLE] == [(DOLLARS, "USD"), (None, "KRW")]
            opened, granted, row, closed = await leased(running, "other-ada")
            for flavor in (opened.flavor, granted.flavor):
                assert (flavor.price_nano_per_hour, flavor.currency) == (None, "KRW")
            assert (row["price_nano_per_hour"], row["currency"], closed.cost_nano) == (None, "KRW", None)
            price = {"price_nano_per_hour": WON, "currency": "KRW", "valid_from_ns": 0}
            await books.ask("PUT", "api/prices/either", price)
            assert await offered(running, "other-ada") == (WON, "KRW")

    asyncio.run(scenario())


def test_a_profile_that_names_another_currency_changes_what_is_told(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with billing(tmp_path, {"either": DOLLARS}, currency="EUR") as books, pool(**beside(books)) as running:
            assert (await running.call("PUT", "api/flavors/either", body=EITHER)).code == 200
            assert await offered(running, "ada") == (None, "EUR")
            await books.ask("PUT", "api/profiles/acme", {"legal_name": "Acme", "currency": "USD"})
            assert [await offered(running, who) for who in PEOPLE] == [(DOLLARS, "USD"), (None, "EUR")]
            await books.ask("PUT", "api/profiles/acme", {"currency": None})
            assert await offered(running, "ada") == (None, "EUR")

    asyncio.run(scenario())


def test_the_least_surcharge_is_looked_for_in_the_currency_of_who_asks(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with billing(tmp_path, {"either": DOLLARS}, tenant_currencies={"globex": "KRW"}) as books, pool(**beside(books)) as running:
            assert (await running.call("PUT", "api/flavors/either", body=EITHER)).code == 200
            await books.ask("PUT", "api/prices/either", {"price_nano_per_hour": WON, "currency": "KRW", "valid_from_ns": 0})
            dearer = {("gpu", "USD"): 2, ("tpu", "USD"): 1, ("gpu", "KRW"): 1, ("tpu", "KRW"): 2}
            for (model, currency), nano in dearer.items():
                await books.ask("PUT", f"api/surcharges/{model}", {"surcharge_nano_per_hour": nano, "currency": currency})
            await running.until(lambda: running.machine.fleet.tariff.surcharges == dearer)
            for who, model in (("ada", "tpu"), ("other-ada", "gpu")):
                _, granted, _, closed = await leased(running, who)
                assert granted.device.model == model
                assert granted.flavor.price_nano_per_hour == PEOPLE[who][2] + 1
                assert closed.cost_nano is not None

    asyncio.run(scenario())


def test_flavors_tell_what_a_gib_costs_in_an_hour_in_which_it_is_parked_or_in_an_image(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with billing(tmp_path, {"either": DOLLARS}, tenant_currencies={"globex": "KRW"}) as books, pool(**beside(books)) as running:
            assert (await running.call("PUT", "api/flavors/either", body=EITHER)).code == 200

            async def told(who: str) -> Any:
                rows = await running.get("api/flavors", who)
                return next(row["parked_nano_per_gib_hour"] for row in rows if row["name"] == "either")

            assert await told("ada") == 0, "it was never set"
            await books.ask("PUT", "api/parked-prices/USD", {"price_nano_per_gib_hour": 50_000})
            await books.ask("PUT", "api/parked-prices/USD", {"price_nano_per_gib_hour": 90_000, "valid_from_ns": time.time_ns() + 10**12})
            await running.until(lambda: running.machine.fleet.tariff.parked)
            assert (await told("ada"), await told("other-ada")) == (50_000, 0)

    asyncio.run(scenario())
