"""Prices per hour in nano-units, and amounts as text: integers all the way."""

from __future__ import annotations

from fractions import Fraction

import pytest
from forebay_dashboards.errors import MoneyError
from forebay_dashboards.text.money import (
    NANO,
    PRICE_PER_HOUR_MAX,
    format_amount,
    format_exact,
    format_price_per_hour,
    format_total,
    parse_price_per_hour,
    running_cost_nano,
)
from hypothesis import given
from hypothesis import strategies as st

PRICES = st.integers(0, 3600 * 10**15)
AMOUNTS = st.integers(-(10**24), 10**24)


@given(PRICES)
def test_every_price_in_the_book_is_shown_so_that_typing_it_gives_the_same_price(nano_per_hour: int) -> None:
    price = parse_price_per_hour(format_price_per_hour(nano_per_hour))
    assert (price.nano_per_hour, price.exact) == (nano_per_hour, True)


@given(st.integers(0, PRICE_PER_HOUR_MAX - 1), st.text("0123456789", max_size=12))
def test_a_typed_price_becomes_the_nearest_whole_one_and_says_whether_it_is_the_same(whole: int, decimals: str) -> None:
    text = f"{whole}.{decimals}" if decimals else str(whole)
    wanted = Fraction(text) * NANO
    price = parse_price_per_hour(text)
    assert price.exact == (wanted.denominator == 1)
    assert abs(price.nano_per_hour - wanted) <= Fraction(1, 2) or (price.nano_per_hour == 1 and 0 < wanted < 1)
    assert (price.nano_per_hour == 0) == (wanted == 0)


@given(st.integers(0, PRICE_PER_HOUR_MAX - 1), st.text("0123456789", min_size=1, max_size=12))
def test_the_price_that_is_offered_instead_is_exact(whole: int, decimals: str) -> None:
    offered = format_price_per_hour(parse_price_per_hour(f"{whole}.{decimals}").nano_per_hour)
    assert parse_price_per_hour(offered).exact


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Enter a price"),
        ("-1", "cannot be below zero; -1 was entered"),
        ("\N{MINUS SIGN}0.5", "cannot be below zero"),
        ("2,99", "point as the decimal mark"),
        ("1e3", "not a price"),
        ("NaN", "not a price"),
        (".5", "not a price"),
        ("\N{ARABIC-INDIC DIGIT THREE}", "not a price"),
        ("1_000", "not a price"),
        ("3600000000.01", "at most 3,600,000,000 per hour"),
        ("0." + "1" * 40, "at most 32 characters"),
    ],
)
def test_what_is_no_price_is_refused_with_a_sentence_that_says_why(text: str, says: str) -> None:
    with pytest.raises(MoneyError, match=says):
        parse_price_per_hour(text)


def test_round_prices_are_exact_and_one_of_ten_decimals_is_offered_as_the_nearest_that_can_be_billed_exactly() -> None:
    for text, nano in (("2.00", 2_000_000_000), ("2.99", 2_990_000_000), ("0.03", 30_000_000)):
        price = parse_price_per_hour(text)
        assert (price.nano_per_hour, price.exact, format_price_per_hour(nano)) == (nano, True, text)
    price = parse_price_per_hour("2.9900000006")
    assert (price.nano_per_hour, price.exact) == (2_990_000_001, False)
    assert format_price_per_hour(price.nano_per_hour) == "2.990000001"


@given(AMOUNTS)
def test_an_exact_amount_is_exact(nano: int) -> None:
    text = format_exact(nano, "USD").removesuffix(" USD").replace(",", "").replace("\N{MINUS SIGN}", "-")
    assert Fraction(text) * NANO == nano


@given(AMOUNTS)
def test_a_shown_amount_is_within_half_a_millionth_and_never_turns_something_into_nothing(nano: int) -> None:
    text = format_amount(nano, "USD")
    if text.startswith("<"):
        assert 0 < abs(nano) <= 500
        return
    shown = Fraction(text.replace("$", "").replace(",", "").replace("\N{MINUS SIGN}", "-"))
    assert abs(shown * NANO - nano) <= 500
    assert (shown == 0) == (nano == 0)


def test_amounts_carry_their_currency() -> None:
    assert format_amount(1_234_567_890_123, "USD") == "$1,234.567890"
    assert format_amount(1_500_000_000, "KRW") == "1.500000 KRW"
    assert format_total(4_170_000_000, "EUR") == "€4.17"
    assert format_total(417_000, "EUR") == "€0.000417"


@given(st.integers(0, 10**18), PRICES)
def test_a_running_lease_costs_its_time_times_its_price(duration_ns: int, price: int) -> None:
    assert abs(Fraction(duration_ns * price, 3600 * NANO) - running_cost_nano(duration_ns, price)) <= Fraction(1, 2)
