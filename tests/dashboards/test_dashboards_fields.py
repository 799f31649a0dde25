"""What services say of fields that they refuse, and what the audit calls what was done, is in the reader's language."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import forebay_billing
import forebay_hub
import forebay_pool
import pytest
from forebay_billing.http.bodies import BudgetBody, CreditBody
from forebay_billing.model.money import decimals_of
from forebay_billing.model.months import Month
from forebay_billing.model.types import ParkedPrice, PriceVersion, SurchargeVersion
from forebay_billing.rules.budgets import Budget, Subject, check_new
from forebay_billing.rules.invoices import Profile, check_profile
from forebay_billing.rules.plans import Terms, Tier, check
from forebay_billing.rules.price_list import price_list_of
from forebay_billing.rules.prices import NOTHING_RATED, PRICE_NANO_PER_HOUR_MAX, Book
from forebay_dashboards.rows.pool import Fault
from forebay_dashboards.text.audit import _ACTIONS, REFUSED, action, column
from forebay_dashboards.text.causes import refusal
from forebay_dashboards.text.fields import _PROBLEMS, _SENTENCES
from forebay_pool.http.queue import QuotaBody
from forebay_pool.model.types import Quota
from forebay_service.bodies import body_of, invalid
from forebay_service.errors import RequestError
from pydantic import ValidationError
from pydantic_core.core_schema import ErrorType

AN_OWNERS = Budget(1, Subject("acme", None, None), "USD", "month", "owner", 2 * 10**18, (50,), "refuse", 60, 0, "ada")
PLAN = Terms("USD")
PYDANTICS = set(get_args(ErrorType))


def bounded_quota(**given: int) -> None:
    try:
        QuotaBody.model_validate(given)
    except ValidationError as error:
        raise invalid(error, "body") from None


WRONG: tuple[Callable[[], object], ...] = (
    lambda: bounded_quota(weight=0),
    lambda: bounded_quota(priority_max=1000),
    lambda: bounded_quota(parked_bytes=2**63),
    lambda: body_of(BudgetBody, b'{"limit_nano": -1}'),
    lambda: body_of(BudgetBody, b'{"limit_nano": 1, "grace_seconds": 999999999}'),
    lambda: body_of(BudgetBody, b'{"limit_nano": 1, "on_limit": "burn"}'),
    lambda: body_of(CreditBody, b'{"tenant": "acme", "kind": "prepaid", "name": "", "amount_minor": 1}'),
    lambda: check(replace(PLAN, discount_bps=10_001)),
    lambda: check(replace(PLAN, commitment_nano=10**19)),
    lambda: check(replace(PLAN, free_seconds=(("dev.1gb", 10**13),))),
    lambda: check(replace(PLAN, free_seconds=(("dev.1gb", 1), ("dev.1gb", 2)))),
    lambda: check(replace(PLAN, tiers=(Tier(5, 1), Tier(5, 2)))),
    lambda: check(replace(PLAN, tiers=(Tier(5, 1),) * 21)),
    lambda: check_new(replace(AN_OWNERS, thresholds=(90, 50)), ()),
    lambda: check_new(replace(AN_OWNERS, subject=Subject("acme", None, "a.ipynb")), ()),
    lambda: check_new(AN_OWNERS, (replace(AN_OWNERS, origin="operator", limit_grains=10**18),)),
    lambda: check_profile(Profile("acme", "Acme", tax_bps=10_001)),
    lambda: check_profile(Profile("acme", "Acme", tax_bps=5)),
    lambda: decimals_of("XYZ"),
    lambda: Month.parse("soon"),
    lambda: Book([]).next_start("dev.1gb", "USD", -1, None, 0, NOTHING_RATED),
    lambda: Book([]).next_start("dev.1gb", "USD", PRICE_NANO_PER_HOUR_MAX + 1, None, 0, NOTHING_RATED),
    lambda: price_list_of("prices: {x: 1}"),
)


@pytest.mark.parametrize("judge", WRONG)
def test_what_a_service_says_is_wrong_in_a_field_is_told_in_the_readers_language(judge: Callable[[], object]) -> None:
    with pytest.raises(RequestError) as refused:
        judge()
    sentence, fault = str(refused.value), refused.value.fault
    assert fault is not None
    told = refusal("invalid", sentence, Fault.model_validate_json(json.dumps(fault.row)))
    assert told == sentence == told.said("en")
    korean = told.said("ko")
    assert re.search("[가-힣]", korean), sentence
    given = {number for number in re.findall(r"\d{2,}", korean) if number not in ("100", "2026", "11", "600", "000")}
    assert given <= set(re.findall(r"\d{2,}", sentence)), korean


def test_every_fault_that_a_service_tells_has_a_text_and_every_text_of_ours_is_of_such_a_fault() -> None:
    told = set()
    for package in (forebay_pool, forebay_billing, forebay_hub):
        for path in Path(str(package.__file__)).parent.rglob("*.py"):
            told |= set(re.findall(r'\bFault\(\s*"(\w+)"', path.read_text(encoding="utf-8")))
    ours = {code for code in {**_PROBLEMS, **_SENTENCES} if code not in PYDANTICS}
    assert len(told) > 15 and told == ours
    assert all(re.search("[가-힣]", make(defaultdict(lambda: "7")).said("ko")) for make in (*_PROBLEMS.values(), *_SENTENCES.values()))


def test_each_thing_that_the_services_write_down_has_a_word() -> None:
    written = set()
    for package in (forebay_pool, forebay_billing, forebay_hub):
        for path in Path(str(package.__file__)).parent.rglob("*.py"):
            source = path.read_text(encoding="utf-8")
            calls = re.findall(r'(?:append_audit|Attempt|AuditEntry)\([^"()]*(?:\([^()]*\)[^"()]*)*"([a-z_.-]+)"', source)
            written |= {name for name in calls if "." in name}
    assert len(written) > 20
    assert written - set(_ACTIONS) == set()
    assert all(re.search("[가-힣]", action(code + end).said("ko")) for code in written for end in ("", REFUSED))
    assert action("made.up") == "made.up"


def test_each_value_of_prices_and_quotas_has_a_word_and_keeps_its_name_in_english() -> None:
    told = {"changed_at_ns", "changed_by"}
    names = {one.name for kind in (PriceVersion, SurchargeVersion, ParkedPrice, Quota) for one in fields(kind)} - told
    assert [name for name in sorted(names) if not re.search("[가-힣]", column(name).said("ko"))] == []
    assert (column("weight"), column("valid_from_ns"), column("made_up")) == ("weight", "valid_from", "made_up")
