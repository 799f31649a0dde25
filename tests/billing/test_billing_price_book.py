"""The price book: which version is in force, and which new ones are refused."""

from __future__ import annotations

from fractions import Fraction

import pytest
from forebay_billing.errors import BillingError, ClosedToPrices, InvalidPrice, KnownFlavor, UnknownFlavor
from forebay_billing.model.money import GRAINS_PER_LAST, GRAINS_PER_NANO
from forebay_billing.model.months import Month
from forebay_billing.model.types import ParkedPrice, PriceVersion, SurchargeVersion
from forebay_billing.rules.parked import ParkedBook, parked_grains
from forebay_billing.rules.prices import PRICE_NANO_PER_HOUR_MAX, Past, PriceBook, SurchargeBook, seed_prices
from hypothesis import given
from hypothesis import strategies as st


def version(number: int, valid_from_ns: int, price: int = 1, flavor: str = "small.64gb", currency: str = "USD") -> PriceVersion:
    return PriceVersion(flavor, currency, number, price, valid_from_ns, 0, "operator")


def test_the_seeds_hold_fifteen_flavors_that_cost_in_proportion_to_their_size() -> None:
    prices = {price.flavor: price.price_nano_per_hour for price in seed_prices(7)}
    assert len(prices) == 15
    assert {"dev.1gb", "dev.4gb", "small.64gb", "1.5xlarge.768gb", "48xlarge.24576gb"} < set(prices)
    size = {flavor: int(flavor.rpartition(".")[2].removesuffix("gb")) for flavor in prices}
    assert prices["dev.4gb"] == 4 * prices["dev.1gb"]
    assert all(prices[flavor] * 64 == prices["small.64gb"] * size[flavor] for flavor in prices if not flavor.startswith("dev."))
    assert all(price.version == 1 and price.currency == "USD" and price.valid_from_ns == 0 for price in seed_prices(7))


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 60))
def test_in_force_is_the_latest_start_and_of_equal_starts_the_later_version(starts: list[int], time_ns: int) -> None:
    versions = [version(number, start) for number, start in enumerate(starts, 1)]
    begun = [candidate for candidate in versions if candidate.valid_from_ns <= time_ns]
    expected = max(begun, key=lambda candidate: (candidate.valid_from_ns, candidate.version), default=None)
    assert PriceBook(reversed(versions)).at("small.64gb", "USD", time_ns) == expected


@given(st.lists(st.integers(0, 50), max_size=8), st.integers(0, 60), st.integers(0, 60))
def test_changes_are_the_moments_within_at_which_another_version_begins(starts: list[int], after_ns: int, before_ns: int) -> None:
    book = PriceBook(version(number, start) for number, start in enumerate(starts, 1))
    assert book.changes("small.64gb", "USD", after_ns, before_ns) == sorted({start for start in starts if after_ns < start < before_ns})
    assert book.changes("small.64gb", "EUR", after_ns, before_ns) == []


def test_versions_count_per_flavor_and_currency() -> None:
    book = PriceBook([version(1, 0), version(2, 5)])
    assert book.next_version("small.64gb", "USD", 9, None, 100, "ann") == PriceVersion("small.64gb", "USD", 3, 9, 100, 100, "ann")
    assert book.next_version("small.64gb", "EUR", 0, 200, 100, "ann") == PriceVersion("small.64gb", "EUR", 1, 0, 200, 100, "ann")


@pytest.mark.parametrize(
    ("flavor", "currency", "price", "valid_from_ns", "error", "sentence"),
    [
        ("small.64gb", "USD", -1, None, InvalidPrice, "cannot be below zero; -1"),
        ("small.64gb", "USD", PRICE_NANO_PER_HOUR_MAX + 1, None, InvalidPrice, "is at most"),
        ("small.64gb", "usd", 1, None, InvalidPrice, "'usd' is not a currency"),
        ("small.64gb", "XYZ", 1, None, InvalidPrice, "'XYZ' is not a currency"),
        ("small.64gb", "USD", 1, 69, ClosedToPrices, "up to 1970-01-01T00:00:00.000000070Z: a price from 1970-01-01T00:00:00.000000069Z"),
        ("small.64gb", "USD", 1, -1, InvalidPrice, "is not from 0"),
        ("small.64gb", "USD", 1, 2**63, InvalidPrice, "is not from 0"),
        ("tiny.1gb", "USD", 1, None, UnknownFlavor, "no flavor 'tiny.1gb'; the price book holds small.64gb"),
    ],
)
def test_a_price_that_cannot_be_is_refused_with_one_sentence(
    flavor: str, currency: str, price: int, valid_from_ns: int | None, error: type[BillingError], sentence: str
) -> None:
    book = PriceBook([version(1, 0)])
    with pytest.raises(error, match=sentence) as refusal:
        book.next_version(flavor, currency, price, valid_from_ns, 100, "ann", past=Past(70))
    assert str(refusal.value).endswith(".")
    assert book.next_version("small.64gb", "USD", 1, 100, 100, "ann").version == 2


def test_a_new_flavor_gets_its_first_price_only_when_it_is_called_new() -> None:
    book = PriceBook([version(1, 0)])
    first = PriceVersion("tiny.1gb", "USD", 1, 7, 100, 100, "ann")
    assert book.next_version("tiny.1gb", "USD", 7, None, 100, "ann", new=True) == first
    with pytest.raises(KnownFlavor, match=r"holds the flavor 'small.64gb' already"):
        book.next_version("small.64gb", "USD", 7, None, 100, "ann", new=True)
    for name in ("Tiny", "", "a b", "x" * 65):
        with pytest.raises(InvalidPrice, match="is no name of a flavor"):
            book.next_version(name, "USD", 7, None, 100, "ann", new=True)


def test_a_first_price_may_be_valid_from_the_past_and_prices_what_came_before() -> None:
    book = PriceBook([version(1, 0)])
    in_yen = book.next_version("small.64gb", "JPY", 7, 20, 100, "ann")
    assert in_yen.valid_from_ns == 20
    assert PriceBook([version(1, 0), in_yen]).at("small.64gb", "JPY", 20) == in_yen
    assert book.next_version("small.64gb", "JPY", 7, 20, 100, "ann", past=Past(70)) == in_yen
    with pytest.raises(ClosedToPrices, match=r"rated up to 1970-01-01T00:00:00.000000070Z"):
        PriceBook([version(1, 0), in_yen]).next_version("small.64gb", "JPY", 8, 69, 100, "ann", past=Past(70))


def test_a_later_price_may_begin_in_the_past_where_nothing_was_rated_and_no_month_is_finalised() -> None:
    book, past = PriceBook([version(1, 0)]), Past(70)
    assert book.next_version("small.64gb", "USD", 8, 70, 100, "ann", past=past).valid_from_ns == 70
    october = Month(2026, 10)
    closed, now_ns = Past(70, october), october.end_ns + 100
    with pytest.raises(ClosedToPrices, match="The month 2026-10 is finalised"):
        book.next_version("small.64gb", "USD", 8, october.end_ns - 1, now_ns, "ann", past=closed)
    assert book.next_version("small.64gb", "USD", 8, october.end_ns, now_ns, "ann", past=closed).valid_from_ns == october.end_ns


def test_a_price_that_is_valid_at_once_begins_where_rating_ended_if_the_clock_of_the_pool_is_ahead() -> None:
    assert PriceBook([version(1, 0)]).next_version("small.64gb", "USD", 8, None, 100, "ann", past=Past(105)).valid_from_ns == 105


def test_parked_bytes_cost_nothing_until_they_have_a_price_which_never_begins_before_what_was_rated() -> None:
    book = ParkedBook(())
    assert book.nano_per_gib_hour("USD", 10**18) == 0
    first = book.next_version("USD", 50_000, 200, 100, "ann", Past(150))
    assert first == ParkedPrice("USD", 1, 50_000, 200, 100, "ann")
    with pytest.raises(ClosedToPrices, match=r"@parked in USD is rated up to 1970-01-01T00:00:00.000000150Z"):
        book.next_version("USD", 50_000, 149, 100, "ann", Past(150))
    assert book.next_version("USD", 50_000, None, 100, "ann", Past(150)).valid_from_ns == 150
    with pytest.raises(InvalidPrice, match="below zero"):
        book.next_version("USD", -1, None, 100, "ann")
    after = ParkedBook([first, ParkedPrice("USD", 2, 70_000, 300, 100, "ann")])
    assert [after.nano_per_gib_hour("USD", ns) for ns in (199, 200, 299, 300)] == [0, 50_000, 50_000, 70_000]
    assert after.moments("USD", 0, 1000) == [200, 300] and after.nano_per_gib_hour("EUR", 500) == 0


@given(st.integers(0, 2**50), st.integers(0, 3600 * 10**9), st.integers(0, 10**9))
def test_parked_bytes_cost_the_exact_product_rounded_once(count: int, duration_ns: int, price: int) -> None:
    exact = Fraction(count * duration_ns, 2**30 * 3600 * 10**9) * price * 10**9
    assert parked_grains(count * duration_ns, price) == round(exact) * GRAINS_PER_LAST


def test_a_gib_that_is_parked_for_an_hour_costs_its_price() -> None:
    assert parked_grains(2**30 * 3600 * 10**9, 50_000) == 50_000 * GRAINS_PER_NANO


def test_history_is_complete_and_current_is_what_is_in_force() -> None:
    versions = [version(1, 0), version(2, 50), version(1, 0, flavor="dev.1gb"), version(3, 20)]
    book = PriceBook(versions)
    assert [found.version for found in book.history("small.64gb")] == [1, 2, 3]
    assert len(book.history(None)) == 4
    assert [(found.flavor, found.version) for found in book.current(30)] == [("dev.1gb", 1), ("small.64gb", 3)]


def test_a_model_costs_nothing_beside_its_flavor_until_that_is_said_which_never_begins_before_what_was_rated() -> None:
    book = PriceBook([version(1, 0)]).surcharges
    assert book.nano_per_hour("gpu", "USD", 10**18) == 0
    first = book.next_version("gpu", "USD", 7, 200, 100, "ann", Past(150))
    assert first == SurchargeVersion("gpu", "USD", 1, 7, 200, 100, "ann")
    with pytest.raises(ClosedToPrices, match=r"Usage of gpu in USD is rated up to 1970-01-01T00:00:00.000000150Z"):
        book.next_version("gpu", "USD", 7, 149, 100, "ann", Past(150))
    assert book.next_version("gpu", "USD", 7, None, 100, "ann", Past(150)).valid_from_ns == 150
    with pytest.raises(InvalidPrice, match="below zero; -1 nano-units was given for gpu"):
        book.next_version("gpu", "USD", -1, None, 100, "ann")
    for name in ("", "g" * 129, "g\n"):
        with pytest.raises(InvalidPrice, match="is no name of a model"):
            book.next_version(name, "USD", 1, None, 100, "ann")
    second = SurchargeBook([first]).next_version("gpu", "USD", 9, 300, 250, "bob", Past(299))
    assert (second.version, second.valid_from_ns) == (2, 300)
    both = SurchargeBook([first, second, SurchargeVersion("gpu", "JPY", 1, 5, 0, 0, "ann")])
    assert [both.nano_per_hour("gpu", "USD", at_ns) for at_ns in (199, 200, 299, 300)] == [0, 7, 7, 9]
    assert (both.nano_per_hour("gpu", "JPY", 250), both.nano_per_hour("cpu", "JPY", 250)) == (5, 0)
