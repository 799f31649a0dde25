"""Which flavors there are to choose from, what they cost, and which choices are refused."""

from __future__ import annotations

import json
import re

import pytest
from forebay_spawner.errors import FlavorRefused, PoolUnavailable
from forebay_spawner.flavors import Equivalent, Offer, admit, preferred, read_choice, read_offers, requested
from forebay_spawner.form import render_notice, render_offers


def offer(name: str, *, servable: bool = True, price: int | None = None, reason: str | None = None) -> Offer:
    return Offer(name=name, memory_bytes=2**30, servable=servable, reason=reason, price_nano_per_hour=price, currency="USD")


SMALL, LARGE, ABSENT = offer("small"), offer("large"), offer("absent", servable=False, reason="needs 8 MI300X, of which there are none")


@pytest.mark.parametrize(
    ("price", "rate"),
    [
        (360_000_000, "0.36 USD"),
        (2_990_000_000, "2.99 USD"),
        (1, "0.000000001 USD"),
        (3600 * 10**9, "3600.00 USD"),
        (0, "0.00 USD"),
        (None, "no price in USD"),
    ],
)
def test_the_rate_is_exact_per_hour(price: int | None, rate: str) -> None:
    assert offer("any", price=price).rate == rate


def test_it_is_free_where_nobody_bills() -> None:
    assert Offer(name="any", memory_bytes=1, servable=True).rate == "free"


def test_the_last_choice_is_preselected() -> None:
    assert preferred([SMALL, LARGE], "large") == "large"


def test_a_last_choice_that_cannot_be_served_gives_way_to_the_first_that_can() -> None:
    assert preferred([ABSENT, LARGE, SMALL], "absent") == "large"


def test_nothing_is_preselected_where_nothing_can_be_served() -> None:
    assert preferred([ABSENT], "absent") is None


def test_no_choice_is_no_error() -> None:
    assert requested({}) is None
    assert requested({"flavor": "small"}) == "small"


@pytest.mark.parametrize("body", [b"", b"[]", b'{"flavor": 7}'])
def test_an_answer_that_is_no_choice_is_the_pools_fault(body: bytes) -> None:
    with pytest.raises(PoolUnavailable, match="not the choice of a flavor"):
        read_choice(body)


@pytest.mark.parametrize(
    ("waiting", "seconds", "text"),
    [
        (0, 0.0, "no wait"),
        (0, 0.2, "a wait of a few seconds"),
        (1, 42.4, "a wait of about 50 s (1 is waiting)"),
        (7, 150.0, "a wait of about 3 min (7 are waiting)"),
        (7, 9000.0, "a wait of about 3 h (7 are waiting)"),
        (2, None, "all are held (2 are waiting)"),
        (0, None, "all are held"),
    ],
)
def test_the_wait_is_told_in_words(waiting: int, seconds: float | None, text: str) -> None:
    assert SMALL.model_copy(update={"waiting": waiting, "wait_seconds": seconds}).wait == text


@pytest.mark.parametrize("raw", [["small"], {"name": "small"}, 7, True, ""])
def test_a_choice_that_is_no_name_is_refused(raw: object) -> None:
    with pytest.raises(FlavorRefused, match="A flavor is chosen by its name"):
        requested({"flavor": raw})


def test_an_unknown_flavor_is_refused_with_those_that_can_be_served() -> None:
    with pytest.raises(FlavorRefused, match=r"There is no flavor 'huge'. This installation can serve: small, large."):
        admit([SMALL, ABSENT, LARGE], "huge")


def test_a_flavor_that_cannot_be_served_is_refused_with_the_reason() -> None:
    with pytest.raises(FlavorRefused, match=r"cannot be served here: needs 8 MI300X, of which there are none. Choose one of: small."):
        admit([SMALL, ABSENT], "absent")


def test_a_very_long_name_does_not_flood_the_log() -> None:
    with pytest.raises(FlavorRefused) as refusal:
        admit([SMALL], "x" * 10_000)
    assert len(str(refusal.value)) < 300


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'[{"name": "small"}]', b'[{"name": 1, "memory_bytes": 1, "servable": true}]'])
def test_an_answer_that_is_no_list_of_flavors_is_the_pools_fault(body: bytes) -> None:
    with pytest.raises(PoolUnavailable, match="its answer is not a list of flavors"):
        read_offers(body)


def test_fields_of_a_newer_pool_are_no_error() -> None:
    body = json.dumps([{"name": "small", "memory_bytes": 1, "servable": True, "reason": None, "colour": "blue"}]).encode()
    assert [each.name for each in read_offers(body)] == ["small"]


def test_the_form_preselects_the_choice_and_disables_what_cannot_be_served() -> None:
    form = render_offers([SMALL, ABSENT], "small")
    assert re.search('value="small" [^>]* checked>', form)
    assert re.search('value="absent" [^>]* disabled>', form)
    assert form.index("<details") < form.index("needs 8 MI300X, of which there are none")


def test_the_form_says_what_several_devices_compute_together_and_that_all_are_billed() -> None:
    sentence = (
        "Of several devices each computes its part of a batch that comes again and again; "
        "what cannot be divided runs on the first. All are billed."
    )
    several = Offer(name="pair", memory_bytes=2**30, servable=True, equivalents=(Equivalent(model="T4", count=2, devices=2),))
    absent = Offer(name="pair", memory_bytes=2**30, servable=True, equivalents=(Equivalent(model="T4", count=2, devices=0),))
    assert sentence in render_offers([SMALL, several], "small") and sentence not in render_offers([SMALL, absent], "small")


def test_the_form_says_when_nothing_can_be_served() -> None:
    assert "tell an operator" in render_offers([ABSENT], None)
    assert 'role="alert"' in render_offers([], None)


def test_names_and_reasons_cannot_carry_markup() -> None:
    form = render_offers([offer('"><script>', servable=False, reason="<b>")], None) + render_notice("<i>")
    assert "<script>" not in form and "<b>" not in form and "<i>" not in form
