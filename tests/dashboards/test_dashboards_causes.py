"""What pool and billing say of refusals and devices is in the reader's language; what is new, or was typed, is shown as sent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from forebay_billing import errors as billing
from forebay_dashboards.text.causes import _REFUSED, cause, refusal
from forebay_pool import errors as pool
from forebay_pool import http
from forebay_pool.model import health
from forebay_pool.model.health import Reading, judge

READINGS = [
    *(Reading("d", temperature_celsius=celsius) for celsius in (health.WARN_CELSIUS, health.CORDON_CELSIUS, health.DRAIN_CELSIUS)),
    *(Reading("d", xid=number) for number in (79, 13)),
    Reading("d", uncorrectable_errors=3),
    Reading("d", lost="GPU is lost"),
]


@pytest.mark.parametrize("reading", READINGS)
def test_what_the_pool_judges_of_a_device_is_told_in_the_readers_language_with_its_figures(reading: Reading) -> None:
    sentence = judge(reading, 0).cause
    told = cause(sentence)
    assert told == sentence == told.said("en")
    korean = told.said("ko")
    assert re.search("[가-힣]", korean) and re.findall(r"\d+", korean) == re.findall(r"\d+", sentence)


def test_what_an_operator_typed_stays_as_it_was_typed() -> None:
    for typed in ("fan is broken", "it is at 90 °C, I think", ""):
        assert cause(typed).said("ko") == typed


def test_a_refusal_is_told_by_its_code_and_one_that_is_new_as_it_was_sent() -> None:
    told = refusal("no_lease", "This session holds no open lease.")
    assert told == "This session holds no open lease." and re.search("[가-힣]", told.said("ko"))
    assert refusal("made_up", "A new sentence.").said("ko") == "A new sentence."


def test_every_code_that_has_a_text_is_one_that_pool_or_billing_sends() -> None:
    sent = {kind.code for kind in vars(billing).values() if isinstance(kind, type) and issubclass(kind, billing.BillingError)}
    for path in (Path(str(pool.__file__)), *Path(str(http.__file__)).parent.glob("*.py")):
        sent |= set(re.findall(r'RequestRefused\(\d+, "(\w+)"', path.read_text(encoding="utf-8")))
    assert _REFUSED.keys() <= sent
    for code in _REFUSED:
        assert re.search("[가-힣]", refusal(code, "x").said("ko")), code
