"""What the pool says over real links: causes to clients that have the catalogue, and sentences as ever to those that have none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from forebay_pool.billing.client import _BudgetRow
from forebay_pool.http.links import causes_in
from forebay_pool.model.causes import Cause, heard, told
from forebay_pool.model.types import Equivalent, Flavor
from forebay_wire import messages as wire
from tornado.httputil import HTTPHeaders

Make = Callable[..., Any]
BEFORE = {"type", "request", "position", "reason", "code", "ahead", "ahead_tenant", "estimate", "since_ns"}
"""All fields of a Queued before there were causes: a client of then refuses what has others."""


async def next_raw(client: Any, kind: str) -> dict[str, Any]:
    """The next message of this type, as it came."""
    while True:
        row: dict[str, Any] = json.loads(await asyncio.wait_for(client.link.recv(), 40))
        if row["type"] == kind:
            return row


KNOWN, LATER, BEFORE_THIS = (str(wire.CAUSES + step) for step in (0, 1, -1))


@pytest.mark.parametrize("offered", ["1", BEFORE_THIS, KNOWN, LATER, None, "", "-1", "one", "1" * 40])
def test_who_waits_is_told_a_cause_where_the_client_knows_them_and_else_a_sentence(pool: Make, offered: str | None) -> None:
    async def scenario() -> None:
        async with pool() as running:
            holder = await running.client("ada")
            await holder.hello()
            await holder.acquire()
            client = await running.client("ben", **({} if offered is None else {wire.CAUSES_HEADER: offered}))
            await client.hello()
            await client.ask()
            row = await next_raw(client, "queued")
            english = "The one device that serves dev.1gb is held."
            if offered in (KNOWN, LATER):
                assert row.keys() == BEFORE - {"reason"} | {"cause"}
                assert row["cause"] == {"code": "one_held", "values": {"device": "main/cpu:0", "flavor": "dev.1gb"}, "parts": []}
                assert wire.to_client(json.dumps(row)).said() == english
            elif offered in ("1", BEFORE_THIS):
                assert row.keys() == BEFORE | {"cause"} and row["reason"] == english, "its catalogue may lack the code"
            else:
                assert row.keys() == BEFORE and row["reason"] == english
            await client.say("nonsense")
            refused = await next_raw(client, "refused")
            assert ("cause" in refused, "message" in refused) == (
                offered in ("1", BEFORE_THIS, KNOWN, LATER),
                offered not in (KNOWN, LATER),
            )

    asyncio.run(scenario())


def test_a_link_that_is_made_again_says_itself_whether_it_knows_causes(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            first = await running.client("ada", **{wire.CAUSES_HEADER: "1"})
            opened = await first.hello()
            again = await running.client("ada")
            await again.say(wire.ResumeSession(session=opened.session, key="0" * 64))
            assert "message" in await next_raw(again, "refused")
            later = await running.client("ada", **{wire.CAUSES_HEADER: "1"})
            await later.say(wire.ResumeSession(session=opened.session, key="0" * 64))
            assert (await next_raw(later, "refused"))["cause"]["code"] == "session_gone"

    asyncio.run(scenario())


def test_a_version_is_a_number_of_few_digits() -> None:
    cases = {"1": 1, "12": 12, "": 0, "x": 0, "²": 0, "-1": 0, "1.0": 0, "9" * 10: 0}
    assert {text: causes_in(HTTPHeaders({wire.CAUSES_HEADER: text})) for text in cases} == cases
    assert causes_in(HTTPHeaders()) == 0


def test_a_flavor_that_cannot_be_served_has_its_cause_beside_the_english(pool: Make) -> None:
    async def scenario() -> None:
        async with pool() as running:
            body = {"memory_bytes": 2**40, "equivalents": [{"model": "cpu-dev", "count": 1}, {"model": "T4", "count": 2}]}
            row = json.loads((await running.call("PUT", "api/flavors/huge", "operator", body)).body)
            assert row["servable"] is False and row["cause"]["code"] == "flavor_unfit" and row["cause"]["message"] == row["reason"]
            assert [part["code"] for part in row["cause"]["parts"]] == ["too_small", "none_here"]
            others = await running.get("api/flavors", "operator")
            assert next(one for one in others if one["name"] == "dev.1gb")["cause"] is None

    asyncio.run(scenario())


def test_a_cause_of_another_service_is_said_here_where_the_catalogue_has_it() -> None:
    closed = Cause("device_closed", Cause("hot", celsius=99), "a fan is loud", device="a/cpu:0")
    assert heard(told(closed)) == closed
    assert heard(wire.Cause(code="made_up")) is None
    assert heard(wire.Cause(code="device_closed", values={"device": "d"}, parts=(wire.Cause(code="made_up"),))) is None


def test_a_budget_is_told_by_billings_code_and_values_and_by_an_older_billings_sentence() -> None:
    row = {"tenant": "acme", "user": "ada", "span": None, "state": "refuse", "sentence": "As sent."}
    assert _BudgetRow.model_validate(row).budget.cause == "As sent."
    assert _BudgetRow.model_validate({**row, "code": "made_up", "origin": "owner", "period": "2026-11"}).budget.cause == "As sent."
    cause = _BudgetRow.model_validate({**row, "code": "used_up", "origin": "owner", "period": "2026-11"}).budget.cause
    assert isinstance(cause, Cause) and cause.code == "budget_month_used"
    assert cause == "The budget of 2026-11 for ada of acme is used up; the tenant's owner can raise it."


def test_a_refusal_of_a_flavor_fits_a_message_however_many_there_are(world: Make) -> None:
    many = [Flavor(f"{number:03}.{'x' * 60}", 2**30, (Equivalent("cpu-dev"),)) for number in range(200)]
    w = world(flavors=many)
    w.join("s", "y" * 128)
    assert isinstance(w.last("s"), wire.Refused) and w.last("s").code == "unknown_flavor"
    assert w.last("s").message.endswith("019." + "x" * 60 + ", ….")
