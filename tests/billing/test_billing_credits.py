"""Which grant pays for which hour: exactly, and whatever the order in which usage arrived."""

from __future__ import annotations

import random

import pytest
from forebay_billing.rules.credits import Balance, Due, Grant, GrantKind, Use, after, allocate, dues, expired
from forebay_billing.rules.rating import HOUR_NS
from hypothesis import given
from hypothesis import strategies as st


def grant(
    id: int, amount: int, priority: int = 0, since: int = 0, until: int | None = None, kind: GrantKind = "prepaid"
) -> Grant:
    """``since`` and ``until`` in hours."""
    return Grant(id, kind, "USD", amount, priority, since * HOUR_NS, None if until is None else until * HOUR_NS)


def full(*grants: Grant) -> list[Balance]:
    return [Balance(one, one.amount_minor) for one in grants]


def paid(uses: tuple[Use, ...]) -> list[tuple[int, int]]:
    return [(use.grant.id, use.amount_minor) for use in uses]


def test_priority_comes_before_expiry_and_expiry_before_age() -> None:
    by_age, by_expiry, by_priority = grant(1, 10), grant(2, 10, until=9), grant(3, 10, priority=-1)
    owed = [Due(HOUR_NS, 25)]
    assert paid(allocate(owed, full(by_age, by_expiry, by_priority))) == [(3, 10), (2, 10), (1, 5)]
    assert paid(allocate(owed, full(grant(5, 20), grant(4, 20)))) == [(4, 20), (5, 5)]


def test_a_grant_pays_only_for_hours_in_which_it_is_valid() -> None:
    owed = [Due(hour * HOUR_NS, 10) for hour in (3, 0, 1, 2)]
    assert paid(allocate(owed, full(grant(1, 100, since=1, until=3)))) == [(1, 20)]
    half_past = Grant(1, "prepaid", "USD", 100, 0, HOUR_NS + HOUR_NS // 2, 2 * HOUR_NS + 1)
    assert paid(allocate(owed, full(half_past))) == [(1, 20)]


def test_early_hours_are_paid_first_so_that_a_grant_that_ends_is_not_spent_on_what_another_could_not_pay() -> None:
    owed = [Due(0, 10), Due(5 * HOUR_NS, 10)]
    assert paid(allocate(owed, full(grant(1, 15), grant(2, 10, until=2)))) == [(2, 10), (1, 10)]


def test_what_is_due_is_spread_in_proportion_and_sums_exactly() -> None:
    assert dues({0: 1, HOUR_NS: 1, 2 * HOUR_NS: 1}, 100, 0) == (Due(0, 33), Due(HOUR_NS, 33), Due(2 * HOUR_NS, 34))
    assert dues({0: 5, HOUR_NS: -3}, 2, 0) == (Due(0, 2),)
    assert dues({}, 7, 9 * HOUR_NS) == (Due(9 * HOUR_NS, 7),)
    assert dues({0: 5}, 0, 0) == dues({0: 5}, -1, 0) == ()


def test_what_is_left_when_a_grant_expires_is_told() -> None:
    balances = full(grant(1, 10, until=5), grant(2, 10), grant(3, 10, until=6))
    assert [balance.grant.id for balance in expired(balances, 5 * HOUR_NS)] == [1]
    assert expired(after(balances, [Use(balances[0].grant, 10)]), 5 * HOUR_NS) == ()


GRANTS = st.lists(
    st.builds(
        lambda amount, priority, since, length: (amount, priority, since, None if length is None else since + length),
        st.integers(1, 50),
        st.integers(0, 2),
        st.integers(0, 10),
        st.one_of(st.none(), st.integers(1, 10)),
    ),
    max_size=6,
)
HOURS = st.dictionaries(st.integers(0, 15).map(lambda hour: hour * HOUR_NS), st.integers(-(10**18), 10**18), max_size=12)


@given(GRANTS, HOURS, st.integers(0, 200), st.randoms(use_true_random=False))
def test_allocation_is_exact_bounded_and_blind_to_order(
    terms: list[tuple[int, int, int, int | None]], hours: dict[int, int], net: int, chance: random.Random
) -> None:
    balances = full(*(grant(id, *term) for id, term in enumerate(terms, 1)))
    owed = list(dues(hours, net, 15 * HOUR_NS))
    assert sum(due.amount_minor for due in owed) == net
    uses = allocate(owed, balances)
    assert all(0 < use.amount_minor <= use.grant.amount_minor for use in uses)
    for use in uses:
        assert use.amount_minor <= sum(due.amount_minor for due in owed if use.grant.covers(due.hour_ns))
    unpaid = sum(due.amount_minor for due in owed) - sum(use.amount_minor for use in uses)
    left = {balance.grant: balance.left_minor for balance in after(balances, uses)}
    if unpaid:
        for_ever = [one for one, rest in left.items() if rest and all(one.covers(due.hour_ns) for due in owed)]
        assert for_ever == [], "a grant that covers every hour has money left while an hour is unpaid"
    shuffled = list(hours.items())
    chance.shuffle(shuffled)
    chance.shuffle(balances)
    again = list(dues(dict(shuffled), net, 15 * HOUR_NS))
    chance.shuffle(again)
    assert allocate(again, balances) == uses


@pytest.mark.parametrize("left", [0, 7])
def test_a_grant_pays_no_more_than_is_left_of_it(left: int) -> None:
    assert sum(use.amount_minor for use in allocate([Due(0, 100)], [Balance(grant(1, 50), left)])) == left
