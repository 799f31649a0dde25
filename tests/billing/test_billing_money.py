"""Money is exact until it is shown."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from forebay_billing.errors import InvalidPrice
from forebay_billing.model.currencies import DECIMALS
from forebay_billing.model.money import (
    GRAINS_PER_MILLI,
    GRAINS_PER_UNIT,
    cost_grains,
    decimal_text,
    divided,
    exact_text,
    grains_of_minor,
    halves,
    minor_of,
    minor_text,
    nano_of,
    nano_text,
    round_half_even,
    whole,
)
from forebay_billing.model.types import PriceVersion
from forebay_billing.rules.statements import line_of
from hypothesis import given
from hypothesis import strategies as st

AMOUNTS = st.integers(-(10**36), 10**36)


@given(AMOUNTS, st.integers(1, 10**18))
def test_rounding_half_even_agrees_with_fractions(numerator: int, denominator: int) -> None:
    assert round_half_even(numerator, denominator) == round(Fraction(numerator, denominator))


@given(AMOUNTS)
def test_an_amount_survives_its_two_columns(grains: int) -> None:
    milli, rest = halves(grains)
    assert whole(milli, rest) == grains
    assert halves(-grains) == (-milli, -rest)


@given(AMOUNTS, st.integers(0, 18))
def test_decimal_text_is_the_number(amount: int, decimals: int) -> None:
    assert Fraction(decimal_text(amount, decimals)) == Fraction(amount, 10**decimals)


def test_ties_go_to_the_even_cent() -> None:
    assert [minor_of(grains_of_minor(2 * cents + 1, "USD") // 2, "USD") for cents in (0, 1, 2, -1)] == [0, 2, 2, 0]


def test_minor_units_are_those_of_the_currency() -> None:
    grains = 1_234_567 * GRAINS_PER_MILLI
    assert minor_text(minor_of(grains, "USD"), "USD") == "1234.57"
    assert minor_text(minor_of(grains, "JPY"), "JPY") == "1235"
    assert minor_text(minor_of(grains, "KWD"), "KWD") == "1234.567"


def test_what_is_not_a_currency_is_refused_by_name() -> None:
    with pytest.raises(InvalidPrice, match="'BTC' is not a currency of ISO 4217"):
        minor_of(1, "BTC")


def test_every_currency_code_has_three_capital_letters() -> None:
    assert all(len(code) == 3 and code.isascii() and code.isupper() for code in DECIMALS)


def test_an_hour_at_two_dollars_is_two_dollars_and_a_nanosecond_more_is_told_to_the_last_decimal() -> None:
    assert exact_text(cost_grains(3600 * 10**9, 2 * 10**9)) == "2.000000000000000000"
    cost = cost_grains(3600 * 10**9 + 1, 2 * 10**9)
    assert nano_of(cost) == 2_000_000_000
    assert nano_text(cost) == "2.000000000"
    assert exact_text(cost) == "2.000000000000555556"


@given(AMOUNTS, st.integers(1, 10**18))
def test_what_is_divided_is_rounded_to_the_last_decimal_that_is_shown(grains: int, denominator: int) -> None:
    found = divided(grains, denominator)
    assert Fraction(found, GRAINS_PER_UNIT) == Fraction(round(Fraction(grains * 10**18, denominator * GRAINS_PER_UNIT)), 10**18)
    assert Fraction(exact_text(found)) == Fraction(found, GRAINS_PER_UNIT)


def test_ten_thousand_short_cells_cost_what_they_used_and_are_rounded_once() -> None:
    chance = random.Random(20261121)
    durations = [chance.randrange(5_000_000, 200_000_001) for _ in range(10_000)]
    price = PriceVersion("small.64gb", "USD", 2, 2_990_000_000, 0, 0, "operator")
    line = line_of("usage", "ann", price, 0, len(durations), sum(durations))
    exact = sum((Fraction(duration, 3600 * 10**9) * Fraction(299, 100) for duration in durations), Fraction())
    assert Fraction(line.cost_grains, GRAINS_PER_UNIT) == exact
    assert Fraction(84, 100) < exact < Fraction(86, 100)
    assert minor_text(line.amount_minor, "USD") == f"{round(exact * 100) / 100:.2f}"
    by_the_second = cost_grains(sum(-(-duration // 10**9) for duration in durations) * 10**9, 2_990_000_000)
    assert minor_text(minor_of(by_the_second, "USD"), "USD") == "8.31"
