"""The arithmetic of an invoice: order, rounding, plan, credits, tax."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from forebay_billing.errors import InvalidProfile
from forebay_billing.model.money import GRAINS_PER_NANO, GRAINS_PER_UNIT
from forebay_billing.model.months import Month
from forebay_billing.model.types import PriceVersion
from forebay_billing.rules.credits import Balance, Grant, GrantKind
from forebay_billing.rules.invoices import Basis, Draft, Profile, UsageTotal, check_profile, draft, tax_part
from forebay_billing.rules.plans import Terms
from hypothesis import given
from hypothesis import strategies as st

NOVEMBER = Month(2026, 11)
HOUR_NS = 3600 * 10**9
ACME = Profile("acme", "Acme Ltd", tax_label="VAT", tax_bps=1000)
UNTAXED = Profile("acme", "Acme Ltd")


def total(user: str = "ada", rate: int = 10**9, seconds: int = 1, version: int = 1, **changes: Any) -> UsageTotal:
    """At a ``rate`` of 10^9 nano-units a second, a second costs a unit."""
    price = PriceVersion("small.64gb", changes.pop("currency", "USD"), version, 3600 * rate, 0, 0, "seed")
    return replace(
        UsageTotal(user, price, 0, False, False, 1, seconds * 10**9, NOVEMBER.start_ns, NOVEMBER.start_ns + HOUR_NS), **changes
    )


def basis(*usage: UsageTotal, profile: Profile = ACME, **changes: Any) -> Basis:
    hours = {NOVEMBER.start_ns: sum(one.cost_grains for one in usage)}
    currency = usage[0].price.currency if usage else "USD"
    return Basis(**{"profile": profile, "month": NOVEMBER, "currency": currency, "usage": usage, "hours_grains": hours} | changes)


def credit(id: int, amount: int, kind: GrantKind = "prepaid", priority: int = 0) -> Balance:
    return Balance(Grant(id, kind, "USD", amount, priority, 0, None), amount)


def amounts(made: Draft) -> list[tuple[str, int]]:
    return [(line.kind, line.amount_minor) for line in made.lines]


def test_tax_is_taken_of_what_promotional_credits_leave_and_prepaid_ones_pay_it_too() -> None:
    made = draft(basis(total(seconds=100), balances=[credit(1, 2000, "promotional"), credit(2, 8500, "prepaid", 1)]))
    assert amounts(made) == [("usage", 10000), ("promotional", -2000), ("tax", 800), ("prepaid", -8500)]
    assert (made.net_minor, made.credit_minor, made.tax_minor, made.total_minor) == (10000, -10500, 800, 300)


def test_a_prepaid_credit_that_comes_first_pays_the_usage_and_then_the_tax() -> None:
    made = draft(basis(total(seconds=100), balances=[credit(1, 20000), credit(2, 500, "promotional", 1)]))
    assert amounts(made) == [("usage", 10000), ("tax", 1000), ("prepaid", -11000)]


def test_the_plan_changes_what_is_taxed() -> None:
    terms = Terms("USD", discount_bps=1000, free_nano=10 * 10**9, commitment_nano=200 * 10**9)
    made = draft(basis(total(seconds=100), terms=terms))
    assert amounts(made) == [("usage", 10000), ("free_money", -1000), ("discount", -900), ("commitment", 11900), ("tax", 2000)]


def test_a_commitment_is_asked_for_without_any_usage() -> None:
    assert amounts(draft(basis(terms=Terms("USD", commitment_nano=10**9)))) == [("commitment", 100), ("tax", 10)]


def test_a_line_of_a_plan_that_is_no_coin_is_left_out() -> None:
    made = draft(basis(total(), terms=Terms("USD", discount_bps=1, commitment_nano=1_000_000_000), profile=UNTAXED))
    assert amounts(made) == [("usage", 100)]


def test_a_plan_in_another_currency_changes_nothing() -> None:
    assert amounts(draft(basis(total(), terms=Terms("EUR", commitment_nano=10**9), profile=UNTAXED))) == [("usage", 100)]


def test_corrections_that_outweigh_usage_are_carried_over_with_their_tax() -> None:
    made = draft(basis(total(), total(correction=True, duration_ns=-5 * 10**9), balances=[credit(1, 100)]))
    assert amounts(made) == [("usage", 100), ("correction", -500), ("tax", -40), ("carried", 440)]
    assert made.total_minor == 0


@pytest.mark.parametrize(
    ("currency", "nano", "minor"),
    [("USD", 5_000_000, 0), ("USD", 15_000_000, 2), ("USD", 15_000_001, 2), ("USD", 14_999_999, 1), ("JPY", 500_000_000, 0),
     ("JPY", 1_500_000_000, 2), ("KWD", 500_000, 0), ("KWD", 1_500_000, 2)],
)  # fmt: skip
def test_a_line_is_rounded_half_even_to_the_minor_unit_and_its_correction_to_the_same(currency: str, nano: int, minor: int) -> None:
    made = draft(basis(total(rate=nano, currency=currency), total(rate=nano, currency=currency, correction=True, duration_ns=-(10**9))))
    assert amounts(replace(made, lines=made.lines[:2])) == [("usage", minor), ("correction", -minor)]
    assert made.lines[0].cost_grains == nano * GRAINS_PER_NANO


def test_lines_are_rounded_and_sums_are_not() -> None:
    users = [total(user=f"user-{n}", rate=4_000_000) for n in range(10)]
    made = draft(basis(*users, profile=UNTAXED))
    assert made.total_minor == 0 and sum(line.cost_grains for line in made.lines) == 4 * GRAINS_PER_UNIT // 100
    assert draft(basis(total(rate=4_000_000, seconds=10), profile=UNTAXED)).total_minor == 4


def test_a_tax_of_zero_is_shown_where_it_has_a_name() -> None:
    exempt = replace(ACME, tax_label="Reverse charge", tax_bps=0)
    assert amounts(draft(basis(total(), profile=exempt))) == [("usage", 100), ("tax", 0)]
    assert amounts(draft(basis(total(), profile=UNTAXED))) == [("usage", 100)]


usages = st.lists(
    st.builds(
        total, user=st.sampled_from("abc"), rate=st.integers(0, 10**10), seconds=st.integers(0, 10**5), version=st.integers(1, 9),
        late=st.booleans(),
    ),
    max_size=6, unique_by=lambda one: one.key,
)  # fmt: skip
kinds = st.sampled_from(["prepaid", "promotional"])
grants = st.lists(st.tuples(st.integers(0, 10**6), kinds, st.integers(0, 3)), max_size=5)


@given(usages, grants, st.integers(0, 10_000), st.randoms(use_true_random=False))
def test_the_order_of_what_is_given_does_not_matter_and_nothing_falls_below_zero(
    found: list[UsageTotal], given_: list[tuple[int, GrantKind, int]], tax_bps: int, chance: random.Random
) -> None:
    balances = [credit(id, *one) for id, one in enumerate(given_, 1)]
    profile = replace(ACME, tax_bps=tax_bps)
    made = draft(basis(*found, profile=profile, balances=balances))
    chance.shuffle(found)
    chance.shuffle(balances)
    again = draft(basis(*found, profile=profile, balances=balances))
    assert replace(again, lines=()) == replace(made, lines=()) and again.lines == made.lines
    assert made.total_minor >= 0 and made.total_minor == made.net_minor + made.credit_minor + made.tax_minor
    used = {line.grant_id: -line.amount_minor for line in made.lines if line.grant_id is not None}
    assert all(0 < used.get(one.grant.id, 1) <= max(one.left_minor, 1) for one in balances)
    assert len({line.key for line in made.lines}) == len(made.lines)


@given(usages, grants, st.integers(0, 10_000), st.data())
def test_what_is_taken_back_has_the_tax_that_is_in_as_much_of_the_gross_amount(
    found: list[UsageTotal], given_: list[tuple[int, GrantKind, int]], tax_bps: int, data: st.DataObject
) -> None:
    balances = [credit(id, *one) for id, one in enumerate(given_, 1)]
    made = draft(basis(*found, profile=replace(ACME, tax_bps=tax_bps), balances=balances))
    promotional = sum(line.amount_minor for line in made.lines if line.kind == "promotional")
    assert made.gross_minor == made.net_minor + promotional + made.tax_minor
    if made.gross_minor <= 0:
        assert made.total_minor == 0
        return
    cuts = sorted(data.draw(st.lists(st.integers(0, made.gross_minor), max_size=5)))
    parts = [(after - before, tax_part(after, made) - tax_part(before, made)) for before, after in pairwise([0, *cuts, made.gross_minor])]
    assert sum(tax for _, tax in parts) == made.tax_minor
    for amount, tax in parts:
        assert 0 <= tax <= amount
        assert abs(tax * made.gross_minor - amount * made.tax_minor) <= made.gross_minor


@pytest.mark.parametrize("changes", [{"legal_name": " "}, {"tax_bps": -1}, {"tax_bps": 10_001}, {"tax_label": ""}])
def test_a_profile_that_no_invoice_can_be_made_out_to_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidProfile):
        check_profile(replace(ACME, **changes))
