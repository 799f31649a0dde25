"""What pool and billing say of refusals and devices is in the reader's language; what is new, or was typed, is shown as sent."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any, get_args

import pytest
from forebay_billing import errors as billing
from forebay_dashboards.rows.billing import BudgetRow
from forebay_dashboards.rows.pool import Fault, Flavor, Session
from forebay_dashboards.text.causes import _CAUSES, _REFUSED, cause, refusal
from forebay_dashboards.text.codes import budget_name, consequence, unserved, why
from forebay_dashboards.text.waits import _DETAILS, waiting
from forebay_pool import errors as pool
from forebay_pool import http
from forebay_pool.model import health
from forebay_pool.model.causes import Cause as Sentence
from forebay_pool.model.causes import CauseCode, FlavorCode, WaitDetail
from forebay_pool.model.health import Reading, judge
from forebay_pool.views.rows import cause_row
from forebay_service.causes import _TEXTS, Cause, told, why_budget_stops


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


def test_every_detail_of_a_wait_has_a_text() -> None:
    assert set(_DETAILS) | set(_TEXTS) >= set(get_args(WaitDetail)) and not set(_DETAILS) & set(_TEXTS)
    for detail in _DETAILS:
        told = waiting(detail, defaultdict(lambda: 7))
        assert told is not None and re.search("[가-힣]", told.said("ko")), detail
        assert waiting(detail, {}) is None or not re.search(r"\d", told), detail


def waits(detail: str | None, *parts: object, **values: object) -> Session:
    row = {"session": "s", "tenant": "acme", "user": "ada", "flavor": "dev.1gb", "state": "queued", "since_ns": 0}
    why = {"reason": "It waits.", "code": "shortage", "detail": detail, "values": values, "parts": parts}
    return Session.model_validate({**row, **why})


def test_a_wait_is_told_by_its_detail_with_its_values_and_else_by_its_code() -> None:
    told = why(waits("all_held", count=4, flavor="dev.1gb", devices="main/cpu:0")).said("ko")
    assert "4" in told and "dev.1gb" in told and re.search("[가-힣]", told)
    of_the_code = why(waits(None)).said("ko")
    assert re.search("[가-힣]", of_the_code) and of_the_code != told
    assert of_the_code == why(waits("made_up")).said("ko") == why(waits("all_held")).said("ko")
    assert why(waits("all_held", count=4, flavor="dev.1gb")) == "It waits."


def pools(sentence: Sentence) -> Cause:
    """As the pool's row has it."""
    return as_read(sentence)[0]


WHY_NOT = [
    Sentence("flavor_absent", Sentence("way", count=2, model="T4"), flavor="f", found="1 cpu-dev"),
    Sentence("flavor_absent", Sentence("way_share", percent="25", model="L4"), Sentence("way_unnamed"), flavor="f", found="1 cpu-dev"),
    Sentence("flavor_absent", Sentence("way_unnamed"), Sentence("ways_more", more=4), flavor="f", found="1 cpu-dev"),
    Sentence("flavor_no_devices", Sentence("way", count=2, model="T4"), flavor="f"),
    *(
        Sentence("flavor_unfit", part, Sentence("none_here", "T4", "L4", Sentence("models_more", more=2)), flavor="f")
        for part in (
            Sentence("kept_for_others", model="L40S"),
            *(Sentence(code, takes=2, model="L40S", found=1) for code in ("too_few", "too_few_in_node", "too_few_under_switch")),
            Sentence("too_small", model="L40S", device_bytes=2**30, flavor_bytes=2**31),
            Sentence("too_small_together", takes=2, model="L40S", devices_bytes=2**20, flavor_bytes=2**31),
        )
    ),
]


@pytest.mark.parametrize("sentence", WHY_NOT)
def test_why_a_flavor_is_not_served_is_told_in_the_readers_language_with_its_figures(sentence: Sentence) -> None:
    row = {"name": "f", "memory_bytes": 2**31, "servable": False, "reason": sentence, "cause": json.loads(json.dumps(cause_row(sentence)))}
    text = unserved(Flavor.model_validate(row))
    assert text == sentence
    korean = text.said("ko")
    assert re.search("[가-힣]", korean) and not re.search("[a-z]{2,} [a-z]{2,}", korean), korean
    assert sorted(re.findall(r"\d+(?:\.\d+)?", korean)) == sorted(re.findall(r"\d+(?:\.\d+)?", sentence))
    old = {**row, "cause": None, "equivalents": [{"model": "T4", "count": 2}]}
    assert unserved(Flavor.model_validate(old)).said("ko") == "2 T4 필요, 이 환경에는 없음"


def test_every_reason_for_which_a_flavor_is_not_served_is_tried_here() -> None:
    assert {sentence.code for sentence in WHY_NOT} == set(get_args(FlavorCode))


BUDGET = {"id": 1, "tenant": "acme", "user": "ada", "notebook": "a.ipynb", "currency": "USD", "period": "2026-11", "on_limit": "drain"}
AMOUNTS = dict.fromkeys(("limit_nano", "spent_nano", "running_nano", "left_nano", "forecast_nano"))


@pytest.mark.parametrize("code", ["used_up", "nearly_used_up"])
@pytest.mark.parametrize("who", [{}, {"notebook": None}, {"notebook": None, "user": None}])
@pytest.mark.parametrize("window", [{}, {"window": "total", "period": "total"}])
def test_why_a_budget_stops_somebody_is_told_by_its_code_and_an_older_billings_by_its_state(code: str, who: Any, window: Any) -> None:
    row = {**BUDGET, **AMOUNTS, **who, **window, "state": "drain", "origin": "owner", "code": code, "sentence": "As billing says it."}
    text = consequence(BudgetRow.model_validate(row))
    assert text == "As billing says it."
    korean = text.said("ko")
    assert ("거의" in korean) == (code == "nearly_used_up") and ("2026-11" in korean) == (not window)
    assert "테넌트 소유자" in korean and all(str(value) in korean for value in who.values() if value) and "acme" in korean
    assert consequence(BudgetRow.model_validate({**row, "code": None})).said("ko").startswith("예산을 모두 썼습니다.")
    assert why_budget_stops("made_up", "acme", None, None, "2026-11", "owner") is None


def test_a_budget_that_its_user_set_says_so_and_that_its_user_can_raise_it() -> None:
    total = {"window": "total", "period": "total", "origin": "user"}
    row = {**BUDGET, **AMOUNTS, **total, "state": "drain", "code": "used_up", "sentence": "As billing says it."}
    budget = BudgetRow.model_validate(row)
    assert budget_name(budget) == "Budget of ada for a.ipynb, for all time, set by the user"
    korean = consequence(budget).said("ko")
    assert "ada" in korean and "acme" in korean and "테넌트 소유자" not in korean


def test_who_waits_for_a_budget_is_told_which() -> None:
    whom, raiser = Sentence("whom_user", user="ada", tenant="acme"), Sentence("raised_by_owner")
    used = Sentence("budget_month_used", whom, raiser, period="2026-11")
    row = json.loads(json.dumps(cause_row(used)))
    korean = why(waits("budget_month_used", *row["parts"], **row["values"])).said("ko")
    assert "2026-11" in korean and "ada" in korean and "테넌트 소유자" in korean
    assert told("no_budget", {}, (pools(Sentence("account_notebook", notebook="a.ipynb", user="ada")),)) is not None
    assert told("no_budget", {}, ()) is None and told(None, {}, ()) is None
