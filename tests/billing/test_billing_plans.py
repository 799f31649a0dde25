"""Price plans: exact, the same in whatever order usage came, never below zero, and never cheaper for using more."""

from __future__ import annotations

from dataclasses import replace

import pytest
from forebay_billing.errors import BillingError
from forebay_billing.model.money import GRAINS_PER_LAST, GRAINS_PER_NANO, GRAINS_PER_UNIT
from forebay_billing.model.months import Month
from forebay_billing.rules.plans import NANO_MAX, Adjustment, Plan, Terms, Tier, Usage, adjustments, check, list_grains, plan_in
from hypothesis import given
from hypothesis import strategies as st

HOUR_NS = 3600 * 10**9
UNIT_NANO = 10**9
FLAVORS = ("small", "large")

usages = st.lists(
    st.builds(Usage, st.sampled_from(FLAVORS), st.just("USD"), st.integers(0, 10**7), st.integers(0, 10**15)), max_size=6
)
corrected = st.lists(
    st.builds(Usage, st.sampled_from(FLAVORS), st.just("USD"), st.integers(0, 10**7), st.integers(-(10**15), 10**15)), max_size=6
)
tiers = st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10_000)), max_size=4, unique_by=lambda tier: tier[0]).map(
    lambda found: tuple(Tier(*tier) for tier in sorted(found))
)
terms = st.builds(
    Terms,
    st.just("USD"),
    st.integers(0, 10_000),
    st.integers(0, 10**13),
    st.dictionaries(st.sampled_from(FLAVORS), st.integers(0, 10**6)).map(lambda found: tuple(found.items())),
    tiers,
    st.one_of(st.just(0), st.integers(0, 10**13)),
)


def owed(plan: Terms, month: list[Usage]) -> int:
    """What the month costs under the plan."""
    return list_grains(month, "USD") + sum(adjustment.amount_grains for adjustment in adjustments(plan, month))


def amounts(plan: Terms, *month: Usage) -> dict[str, int]:
    return {adjustment.kind: adjustment.amount_grains for adjustment in adjustments(plan, month)}


def hours(count: int, rate: int = 1_800_000_000, flavor: str = "small") -> Usage:
    """At the usual rate an hour costs 1.80."""
    return Usage(flavor, "USD", rate, count * HOUR_NS)


@given(terms, usages)
def test_what_is_owed_is_never_below_zero_nor_below_the_commitment(plan: Terms, month: list[Usage]) -> None:
    assert owed(plan, month) >= plan.commitment_nano * GRAINS_PER_NANO >= 0


@given(terms, usages, usages)
def test_more_usage_never_costs_less(plan: Terms, month: list[Usage], more: list[Usage]) -> None:
    assert owed(plan, month) <= owed(plan, month + more)


@given(terms, corrected, st.randoms(use_true_random=False))
def test_order_and_cuts_of_usage_do_not_matter(plan: Terms, month: list[Usage], random: object) -> None:
    shuffled = [part for usage in month for part in halves(usage)]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert adjustments(plan, shuffled) == adjustments(plan, month)


def halves(usage: Usage) -> list[Usage]:
    """The same usage in two pieces."""
    first = usage.duration_ns // 3
    return [replace(usage, duration_ns=first), replace(usage, duration_ns=usage.duration_ns - first)]


@given(terms, usages)
def test_a_month_and_its_full_correction_cost_the_commitment_alone(plan: Terms, month: list[Usage]) -> None:
    back = [replace(usage, duration_ns=-usage.duration_ns) for usage in month]
    assert owed(plan, month + back) == plan.commitment_nano * GRAINS_PER_NANO


@given(terms, usages)
def test_every_reduction_makes_it_cheaper_and_a_larger_one_not_dearer(plan: Terms, month: list[Usage]) -> None:
    assert all((adjustment.amount_grains > 0) == (adjustment.kind == "commitment") for adjustment in adjustments(plan, month))
    larger = replace(plan, discount_bps=min(10_000, plan.discount_bps + 100), free_nano=plan.free_nano + UNIT_NANO)
    assert owed(larger, month) <= owed(plan, month)


@given(usages)
def test_terms_of_nothing_change_nothing(month: list[Usage]) -> None:
    assert adjustments(Terms("USD"), month) == ()


@given(terms, usages)
def test_usage_in_another_currency_has_list_prices(plan: Terms, month: list[Usage]) -> None:
    assert adjustments(replace(plan, currency="EUR", commitment_nano=0), month) == ()


def test_a_discount_is_exact_and_rounded_half_even_to_the_last_decimal() -> None:
    assert adjustments(Terms("USD", discount_bps=1250), [hours(10)]) == (
        Adjustment("discount", "Discount of 12.50 %", "USD", -18 * GRAINS_PER_UNIT // 8),
    )
    found = [amounts(Terms("USD", discount_bps=5000), Usage("small", "USD", GRAINS_PER_LAST, ns)).get("discount") for ns in (1, 2, 3)]
    assert found == [None, -GRAINS_PER_LAST, -2 * GRAINS_PER_LAST]


def test_free_time_takes_the_dearest_seconds_of_its_flavor() -> None:
    plan = Terms("USD", free_seconds=(("small", 2 * 3600),))
    month = (hours(1), hours(1, 2_520_000_000), hours(5, 3_240_000_000, "large"))
    assert amounts(plan, *month) == {"free_time": -(2_520_000_000 + 1_800_000_000) * HOUR_NS}
    assert amounts(plan, hours(1)) == {"free_time": -1_800_000_000 * HOUR_NS}
    assert amounts(plan, hours(3), hours(2, 2_520_000_000)) == {"free_time": -2 * 2_520_000_000 * HOUR_NS}


def test_tiers_are_graduated_over_what_the_allowance_leaves() -> None:
    plan = Terms("USD", free_nano=8 * UNIT_NANO, tiers=(Tier(0, 0), Tier(10 * UNIT_NANO, 1000), Tier(100 * UNIT_NANO, 2000)))
    assert amounts(plan, hours(100)) == {
        "free_money": -8 * GRAINS_PER_UNIT,
        "tiers": -(90 * GRAINS_PER_UNIT // 10 + 72 * GRAINS_PER_UNIT // 5),
    }
    assert amounts(plan, hours(10)) == {"free_money": -8 * GRAINS_PER_UNIT}


def test_the_whole_order_of_a_plan() -> None:
    plan = Terms("USD", 1000, 10 * UNIT_NANO, (("small", 3600),), (Tier(50 * UNIT_NANO, 5000),), 200 * UNIT_NANO)
    month = [hours(101)]  # 181.80; free time 1.80; free money 10; 170 left; tiers half of 120; 110 left; a tenth of it; 99 left
    assert [(made.kind, made.amount_grains // GRAINS_PER_UNIT) for made in adjustments(plan, month)[1:]] == [
        ("free_money", -10), ("tiers", -60), ("discount", -11), ("commitment", 101),
    ]  # fmt: skip
    assert owed(plan, month) == 200 * GRAINS_PER_UNIT
    assert [made.label for made in adjustments(plan, month)] == [
        "Free time of small, up to 3600 s", "Free of charge, up to 10.00 USD", "Volume discount", "Discount of 10.00 %",
        "Missing to the commitment of 200.00 USD",
    ]  # fmt: skip


def test_what_corrections_give_back_has_the_discount_it_was_sold_with() -> None:
    plan = Terms("USD", discount_bps=2500, free_nano=UNIT_NANO, tiers=(Tier(0, 5000),), commitment_nano=UNIT_NANO)
    assert amounts(plan, hours(-10)) == {"discount": 18 * GRAINS_PER_UNIT // 4, "commitment": GRAINS_PER_UNIT}


def test_in_force_is_the_latest_start_and_of_equal_starts_the_later_version() -> None:
    may, june = Month(2026, 5), Month(2026, 6)
    versions = [Plan("acme", number, month, Terms("USD"), 0, "ann") for number, month in enumerate((may, june, may), 1)]
    assert plan_in(Month(2026, 4), versions) is None
    assert [found.version for month in (may, june, june.next) if (found := plan_in(month, versions))] == [3, 2, 2]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (Terms("usd"), "'usd' is not a currency"),
        (Terms("USD", discount_bps=10_001), "discount_bps: a discount is from 0 to 10000"),
        (Terms("USD", discount_bps=-1), "-1 was given"),
        (Terms("USD", free_nano=-1), "free_nano: -1"),
        (Terms("USD", commitment_nano=NANO_MAX + 1), "commitment_nano"),
        (Terms("USD", free_seconds=(("small", 1), ("small", 2))), "each flavor once"),
        (Terms("USD", free_seconds=(("small", -1),)), "-1 of 'small'"),
        (Terms("USD", tiers=(Tier(5, 1), Tier(5, 2))), "each begins above the one before"),
        (Terms("USD", tiers=(Tier(-5, 1),)), "tiers: -5"),
        (Terms("USD", tiers=(Tier(0, 10_001),)), "tiers: a discount"),
        (Terms("USD", tiers=tuple(Tier(n, 1) for n in range(21))), "at most 20"),
    ],
)
def test_terms_that_cannot_be_are_refused_with_one_sentence(wrong: Terms, sentence: str) -> None:
    with pytest.raises(BillingError, match=sentence) as refusal:
        check(wrong)
    assert refusal.value.status == 400
