"""What a month would have cost: nothing proposed is what was billed, and what is proposed is what would have been."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from forebay_billing.model.months import Month
from forebay_billing.model.types import UsageRecord
from forebay_billing.rules.plans import Terms, Usage, adjustments, list_grains
from forebay_billing.rules.previews import Rated, RatedBytes, preview
from hypothesis import given
from hypothesis import strategies as st
from running_billing import Running

pytestmark = pytest.mark.databases("postgresql")

HOUR_NS = 3600 * 10**9
OCTOBER = Month(2026, 10)
PRICE = 2_000_000_000

rated = st.lists(
    st.builds(
        Rated,
        st.sampled_from(["acme", "globex"]),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["USD", "JPY"]),
        st.integers(0, 10**6),
        st.integers(0, 10),
        st.integers(-(10**14), 10**15),
        st.sampled_from(["cpu-dev", "gpu"]),
        st.integers(1, 3),
        st.sampled_from([333, 1000]),
    ),
    max_size=8,
)
parked = st.lists(
    st.builds(
        RatedBytes,
        st.sampled_from(["acme", "globex"]),
        st.sampled_from(["USD", "JPY"]),
        st.integers(-(10**20), 10**27),
        st.integers(-(10**14), 10**20),
    ),
    max_size=4,
)
terms = st.builds(Terms, st.just("USD"), st.integers(0, 10_000), st.integers(0, 10**12))


@given(rated, parked, st.dictionaries(st.sampled_from(["acme", "umbrella"]), terms))
def test_nothing_proposed_comes_to_what_was_billed(month: list[Rated], kept: list[RatedBytes], plans: dict[str, Terms]) -> None:
    rows = preview(month, kept, {}, plans, plans)
    assert all(row.present == row.proposed for row in rows)
    for row in rows:
        own = [one for one in month if (one.tenant, one.currency) == (row.tenant, row.currency)]
        leased = sum(o.duration_ns * (o.price_nano_per_hour + o.surcharge_nano_per_hour) for o in own)
        assert row.present.list_grains == leased + sum(o.cost_grains for o in kept if (o.tenant, o.currency) == (row.tenant, row.currency))
    used = {(one.tenant, one.currency) for one in (*month, *kept)}
    assert {(row.tenant, row.currency) for row in rows} == used | {(t, "USD") for t in plans}


@given(rated, st.integers(0, 10**6), st.integers(0, 10**6), terms)
def test_what_is_proposed_comes_to_what_the_same_usage_costs_at_that_price_surcharge_and_plan(
    month: list[Rated], price: int, surcharge: int, plan: Terms
) -> None:
    proposed = {("a", "USD"): price, ("@model/gpu", "USD"): surcharge}
    rows = {(row.tenant, row.currency): row for row in preview(month, [], proposed, {}, {"acme": plan})}

    def of_devices(one: Rated) -> int:
        gpu = round(Fraction(surcharge * one.devices * one.share_milli, 1000))
        return gpu if one.model == "gpu" else one.surcharge_nano_per_hour

    own = [
        Usage(
            one.flavor,
            "USD",
            of_devices(one) + (price if one.flavor == "a" else one.price_nano_per_hour),
            one.duration_ns,
        )
        for one in month
        if (one.tenant, one.currency) == ("acme", "USD")
    ]
    assert rows["acme", "USD"].proposed.total_grains == list_grains(own, "USD") + sum(x.amount_grains for x in adjustments(plan, own))
    assert rows["acme", "USD"].present.adjustments == ()
    assert preview(month[::-1], [], proposed, {}, {"acme": plan}) == list(rows.values())


@pytest.fixture
def run(running_anywhere: Running, usage: Callable[..., UsageRecord]) -> Any:
    """Two hours of acme, one of them corrected in the same month, and an hour of globex with a surcharge, all in October."""
    running_anywhere.clock.now_ns = OCTOBER.end_ns - HOUR_NS
    hour = {"started_at_ns": OCTOBER.start_ns + 5 * HOUR_NS, "duration_ns": HOUR_NS}
    records = (
        usage("a/1", **hour),
        usage("a/2", **hour),
        usage("b/1", tenant="globex", user="globex-owner", flavor="dev.1gb", device_model="gpu", **hour),
    )
    assert running_anywhere.set_surcharge("gpu", 3_600_000, valid_from_ns=0).status_code == 200
    assert running_anywhere.post_usage(*records).status_code == 200
    body = {"source": "pool", "id": "a/2", "reason": "test"}
    assert running_anywhere.request("operator", "POST", "/api/corrections", json=body).status_code == 200
    running_anywhere.clock.now_ns = OCTOBER.end_ns + HOUR_NS
    return running_anywhere


def ask(run: Any, **body: Any) -> Any:
    return run.request("operator", "POST", "/api/preview", json=body)


def test_the_last_month_is_rated_again_at_other_prices_and_plans_and_nothing_is_posted(run: Any) -> None:
    run.request("operator", "PUT", "/api/plans/acme", json={"currency": "USD", "valid_from": "2026-10", "discount_bps": 5000})
    statement = run.get("operator", "/api/statement", tenant="acme", month="2026-10").json()
    as_it_is = ask(run).json()
    assert as_it_is["month"] == "2026-10"
    acme, globex = as_it_is["rows"]
    assert acme["present"] == acme["proposed"] and acme["difference_nano"] == 0
    assert acme["present"]["list_nano"] == statement["totals"][0]["cost_nano"] == PRICE
    assert acme["present"]["total_nano"] == PRICE // 2
    assert acme["present"]["adjustments"] == [{"kind": "discount", "label": "Discount of 50.00 %", "amount_nano": -PRICE // 2}]
    assert globex["present"]["total_exact"] == "0.033600000000000000"

    then = ask(
        run,
        month="2026-10",
        prices=[{"flavor": "dev.1gb", "currency": "USD", "price_nano_per_hour": 32_400_000}],
        plans={"globex": {"currency": "USD", "commitment_nano": 10**9}},
        surcharges=[{"model": "gpu", "currency": "USD", "surcharge_nano_per_hour": 5_400_000}],
    ).json()
    acme, globex = then["rows"]
    assert acme["difference_nano"] == 0
    assert globex["present"]["total_nano"] == 33_600_000
    assert globex["proposed"]["list_nano"] == 37_800_000 and globex["proposed"]["total_nano"] == 10**9
    assert then["totals"] == [
        {
            "currency": "USD",
            "present_nano": PRICE // 2 + 33_600_000,
            "proposed_nano": PRICE // 2 + 10**9,
            "difference_nano": 10**9 - 33_600_000,
        }
    ]
    assert run.get("operator", "/api/statement", tenant="acme", month="2026-10").json() == statement
    assert run.get("operator", "/api/plans", month="2026-10").json()[0]["tenant"] == "acme"


def test_a_price_list_is_previewed_with_what_holds_once_all_of_it_is_in_force(run: Any) -> None:
    text = 'prices: {small.64gb: {USD: [{nano_per_hour: 1}, {from: "2027-01-01T00:00:00Z", per_hour: 2.16}]}}'
    rows = ask(run, price_list=text, tenant="acme").json()["rows"]
    assert [(row["tenant"], row["proposed"]["total_nano"]) for row in rows] == [("acme", 2_160_000_000)]
    assert ask(run, month="2026-11").json()["rows"] == []


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"month": "2026-13"}, 400, "invalid"),
        ({"prices": [{"flavor": "tiny", "currency": "USD", "price_nano_per_hour": 1}]}, 404, "unknown_flavor"),
        ({"prices": [{"flavor": "dev.1gb", "currency": "USD", "price_nano_per_hour": -1}]}, 400, "invalid_price"),
        ({"prices": [{"flavor": "dev.1gb", "currency": "XYZ", "price_nano_per_hour": 1}]}, 400, "invalid_price"),
        ({"price_list": "x"}, 400, "invalid_price_list"),
        ({"plans": {"acme": {"currency": "JPY"}}}, 400, "invalid_plan"),
        ({"plans": {"acme": {"currency": "USD", "discount_bps": -1}}}, 400, "invalid_plan"),
        ({"plan": {}}, 400, "invalid"),
        ({"surcharges": [{"model": "gpu", "currency": "USD", "surcharge_nano_per_hour": -1}]}, 400, "invalid_price"),
    ],
)
def test_what_cannot_be_is_not_previewed(run: Any, body: dict[str, Any], status: int, code: str) -> None:
    refused = ask(run, **body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
