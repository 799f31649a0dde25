"""Receipts: what a client is given of its leases and their prices, and that the pool alone can have signed it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from forebay_wire import messages as wire
from forebay_wire.message_parts import RECEIPT_CONTEXT, RECEIPTS_HEADER, Receipts
from price_books import POOL, Books, billing

Make = Callable[..., Any]
PRICES = {"whole": 1_000, "quarter": 77}
SIZES = {
    "whole": [{"model": "gpu", "count": 2}],
    "quarter": [{"model": "gpu", "count": 1, "share_milli": 250}],
}
KEEPS = {RECEIPTS_HEADER: "1"}


def on_gpus(opened: Books) -> dict[str, Any]:
    devices = [{"kind": "null", "model": "gpu", "memory": "4 GiB", "count": 2}]
    return {"billing_url": opened.url, "hub_token": POOL, "price_poll_seconds": 0.05, "devices": devices}


async def set_up(running: Any, opened: Books) -> None:
    for flavor, equivalents in SIZES.items():
        assert (await running.call("PUT", f"api/flavors/{flavor}", body={"memory_bytes": 2**28, "equivalents": equivalents})).code == 200
    await opened.surcharge(1_002, 0)
    await running.until(lambda: versions(running) == len(PRICES) + 1)


def versions(running: Any) -> int:
    """How many versions of these prices the pool knows."""
    return len(running.service.shell.receipts.prices("USD", PRICES, ["gpu"]))


def read(message: Receipts) -> list[dict[str, Any]]:
    """What the receipts say; raises InvalidSignature."""
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(message.key))
    for one in message.receipts:
        key.verify(bytes.fromhex(one.signature), RECEIPT_CONTEXT + one.text.encode())
    return [json.loads(one.text) for one in message.receipts]


async def one_lease(client: Any, number: int = 1) -> tuple[list[dict[str, Any]], list[dict[str, Any]], wire.LeaseClosed]:
    await client.acquire(number)
    opened = read(await client.hears(Receipts))
    client.work("mark")
    closed = read(await client.hears(Receipts))
    return opened, closed, await client.hears(wire.LeaseClosed)


def test_a_lease_has_two_receipts_and_each_price_one_for_the_link(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with billing(tmp_path, PRICES) as books, pool(**on_gpus(books)) as running:
            await set_up(running, books)
            client = await running.client("ada", **KEEPS)
            await client.hello("whole")
            (price, surcharge, opened), (closed,), told = await one_lease(client)
            at_start = {"currency": "USD", "version": 1, "valid_from_ns": 0}
            assert price == at_start | {"kind": "price", "flavor": "whole", "nano_per_hour": 1_000}
            assert (surcharge["kind"], surcharge["model"], surcharge["nano_per_hour"]) == ("surcharge", "gpu", 1_002)
            facts = ("tenant", "user", "number", "flavor", "model", "devices", "share_milli", "currency")
            assert [opened[fact] for fact in facts] == ["acme", "ada", 1, "whole", "gpu", 2, 1000, "USD"]
            assert (opened["price_version"], opened["surcharge_version"]) == (1, 1)
            (record,) = await books.records(1)
            assert (closed["lease"], closed["duration_ns"]) == (record["lease"], record["duration_ns"]) == (told.lease, told.duration_ns)
            assert closed["started_at_ns"] == record["started_at_ns"] == opened["started_at_ns"]
            again, _, _ = await one_lease(client, 2)
            assert [(one["kind"], one["number"]) for one in again] == [("opened", 2)]

    asyncio.run(scenario())


def test_a_price_that_comes_into_force_during_a_lease_is_told_at_its_end(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with billing(tmp_path, PRICES) as books, pool(**on_gpus(books)) as running:
            await set_up(running, books)
            client = await running.client("ada", **KEEPS)
            await client.hello("quarter")
            await client.acquire()
            await client.hears(Receipts)
            await books.surcharge(9)
            soon = {"price_nano_per_hour": 5, "currency": "USD", "valid_from_ns": time.time_ns() + 3600 * 10**9}
            await books.ask("PUT", "api/prices/quarter", soon)
            await running.until(lambda: versions(running) == len(PRICES) + 3)
            client.work("mark")
            told = read(await client.hears(Receipts))
            assert [(one["kind"], one.get("version")) for one in told] == [("surcharge", 2), ("closed", None)]

    asyncio.run(scenario())


def test_who_did_not_ask_gets_no_receipts_and_nobody_does_where_nobody_bills(pool: Make, tmp_path: Path) -> None:
    async def heard(client: Any) -> list[str]:
        kinds = []
        await client.ask()
        while kinds[-1:] != ["closed"]:
            message = wire.to_client(await asyncio.wait_for(client.link.recv(), 20))
            kinds.append(message.type)
            if isinstance(message, wire.Granted):
                await client.say(wire.Release(epoch=message.epoch))
        return kinds

    async def scenario() -> None:
        async with billing(tmp_path, PRICES) as books, pool(**on_gpus(books)) as running:
            await set_up(running, books)
            plain = await running.client()
            await plain.hello("whole")
            assert "receipts" not in await heard(plain)
        async with pool(state_dir=tmp_path / "unbilled") as running:
            asking = await running.client("ada", **KEEPS)
            await asking.hello()
            assert "receipts" not in await heard(asking)
            assert (await running.get("api/receipts?month=2026-11", "ada"))["receipts"] == []

    asyncio.run(scenario())


def test_what_a_client_missed_is_answered_over_http_with_the_same_signatures_to_its_user_alone(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        month = time.strftime("%Y-%m", time.gmtime())
        async with billing(tmp_path, PRICES) as books, pool(**on_gpus(books)) as running:
            await set_up(running, books)
            client = await running.client("ada", **KEEPS)
            await client.hello("whole")
            await client.acquire()
            first = await client.hears(Receipts)
            client.work("mark")
            over = await client.hears(Receipts)
            await running.until(lambda: running.records())
            page = await running.get(f"api/receipts?month={month}", "ada")
            assert page["key"] == first.key == (await running.get("api/receipts/key", None))["key"]
            kinds = [json.loads(one["text"])["kind"] for one in page["receipts"]]
            assert kinds == ["price", "surcharge", "closed"] and page["next"] is None
            signed = {(one["text"], one["signature"]) for one in page["receipts"]}
            given = {(one.text, one.signature) for one in (*first.receipts, *over.receipts)}
            assert {one for one in given if '"opened"' not in one[0]} <= signed
            after = json.loads(page["receipts"][-1]["text"])["lease"]
            assert (await running.get(f"api/receipts?month={month}&after={after}", "ada"))["receipts"] == []
            for other in ("ben", "other-ada"):
                theirs = (await running.get(f"api/receipts?month={month}", other))["receipts"]
                assert "closed" not in [json.loads(one["text"])["kind"] for one in theirs]
            assert (await running.call("GET", "api/receipts?month=2026-13", "ada")).code == 400
            assert (await running.call("GET", f"api/receipts?month={month}", "guest")).code == 403

    asyncio.run(scenario())


def test_a_successor_signs_with_the_same_key_and_a_receipt_that_was_changed_is_found(pool: Make, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with billing(tmp_path, PRICES) as books:
            async with pool(**on_gpus(books)) as running:
                await set_up(running, books)
                key = running.service.shell.receipts.key
            async with pool(**on_gpus(books)) as running:
                await set_up(running, books)
                client = await running.client("ada", **KEEPS)
                await client.hello("whole")
                await client.acquire()
                message = await client.hears(Receipts)
                assert message.key == key and read(message)
                changed = message.receipts[0].model_copy(update={"text": message.receipts[0].text.replace("1000", "1001")})
                with pytest.raises(InvalidSignature):
                    read(message.model_copy(update={"receipts": (changed,)}))

    asyncio.run(scenario())
