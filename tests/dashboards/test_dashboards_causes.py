"""What pool and billing say of refusals and devices is in the reader's language; what is new, or was typed, is shown as sent."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import get_args

import pytest
from forebay_billing import errors as billing
from forebay_dashboards.rows import Cause, Fault, Session
from forebay_dashboards.text.causes import _CAUSES, _REFUSED, cause, refusal
from forebay_dashboards.text.codes import why
from forebay_dashboards.text.waits import _DETAILS, waiting
from forebay_pool import errors as pool
from forebay_pool import http
from forebay_pool.model import health
from forebay_pool.model.causes import CauseCode, WaitDetail
from forebay_pool.model.health import Reading, judge
from forebay_pool.views.rows import cause_row


def as_read(*sentences: str) -> list[Cause]:
    """Causes as the pool's rows have them, and the dashboards read them from JSON."""
    return [Cause.model_validate_json(json.dumps(cause_row(sentence))) for sentence in sentences]


READINGS = [
    *(Reading("d", temperature_celsius=celsius) for celsius in (health.WARN_CELSIUS, health.CORDON_CELSIUS, health.DRAIN_CELSIUS)),
    *(Reading("d", xid=number) for number in (79, 13)),
    Reading("d", uncorrectable_errors=3),
    Reading("d", lost="GPU is lost"),
]


@pytest.mark.parametrize("reading", READINGS)
def test_what_the_pool_judges_of_a_device_is_told_in_the_readers_language_with_its_figures(reading: Reading) -> None:
    sentence = judge(reading, 0).cause
    assert sentence is not None
    told = cause(as_read(sentence))
    assert told == sentence == told.said("en")
    korean = told.said("ko")
    assert re.search("[가-힣]", korean) and re.findall(r"\d+", korean) == re.findall(r"\d+", sentence)


def test_every_cause_that_the_pool_has_a_code_for_has_a_text_and_no_other() -> None:
    assert set(_CAUSES) == set(get_args(CauseCode))
    for make in _CAUSES.values():
        assert re.search("[가-힣]", make(defaultdict(lambda: "7")).said("ko"))


def test_what_an_operator_typed_stays_as_it_was_typed_also_where_it_reads_like_the_pools() -> None:
    for typed in ("fan is broken", "it is at 90 °C", "; "):
        assert cause(as_read(typed)).said("ko") == typed


def test_of_two_causes_each_is_told_as_it_came() -> None:
    hot = judge(READINGS[1], 0).cause
    assert hot is not None
    told = cause(as_read("fan is loud", hot))
    assert told == "fan is loud; it is at 94 °C" and told.said("ko") == f"fan is loud; {cause(as_read(hot)).said('ko')}"


def test_a_cause_that_is_new_or_lacks_a_value_is_told_as_it_was_sent() -> None:
    for code in ("made_up", "hot"):
        assert cause([Cause(message="It is new.", code=code)]).said("ko") == "It is new."


def test_a_fault_that_is_new_or_lacks_a_value_leaves_the_refusal_to_its_code_or_as_it_was_sent() -> None:
    for fault in (Fault(code="made_up", field="weight"), Fault(code="greater_than_equal", field="weight"), Fault(code="no_currency")):
        assert refusal("invalid", "A new sentence.", fault).said("ko") == "A new sentence."
        assert re.search("[가-힣]", refusal("no_lease", "A new sentence.", fault).said("ko"))


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


def test_every_detail_of_a_wait_has_a_text_but_a_budget_whose_sentence_is_billings() -> None:
    assert set(_DETAILS) == set(get_args(WaitDetail)) - {"budget"}
    for detail in _DETAILS:
        told = waiting(detail, defaultdict(lambda: 7))
        assert told is not None and re.search("[가-힣]", told.said("ko")), detail
        assert waiting(detail, {}) is None or not re.search(r"\d", told), detail


def waits(detail: str | None, **values: object) -> Session:
    row = {"session": "s", "tenant": "acme", "user": "ada", "flavor": "dev.1gb", "state": "queued", "since_ns": 0}
    return Session.model_validate({**row, "reason": "It waits.", "code": "shortage", "detail": detail, "values": values})


def test_a_wait_is_told_by_its_detail_with_its_values_and_else_by_its_code() -> None:
    told = why(waits("all_held", count=4, flavor="dev.1gb", devices="main/cpu:0")).said("ko")
    assert "4" in told and "dev.1gb" in told and re.search("[가-힣]", told)
    of_the_code = why(waits(None)).said("ko")
    assert re.search("[가-힣]", of_the_code) and of_the_code != told
    assert of_the_code == why(waits("made_up")).said("ko") == why(waits("all_held")).said("ko")
    assert why(waits("all_held", count=4, flavor="dev.1gb")) == "It waits."
