"""Lines and magics of notebooks: their words, times and amounts."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
from forebay import waiting
from forebay.errors import ForebayError, PoolRefused
from forebay.gang_work import OF_NO_OPERATOR, GangWork, LoneWork, Work
from forebay.journal import Entry, Journal
from forebay.notebook import amounts, notice, status
from forebay.notebook.bounds import Bound
from forebay.notebook.magics import wish
from forebay.texts import LANGUAGES, Texts, catalogue, language_here, language_of
from forebay.waiting import Left, in_words
from forebay_service.languages import wait_of
from forebay_wire import messages
from forebay_wire.gang_work import Alone

ROOT = Path(__file__).parents[2]
ENGLISH = Texts("en")
SECOND = 10**9
CAUSES = set(OF_NO_OPERATOR.values())


def places(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


def catalogues() -> dict[str, dict[str, dict[str, str]]]:
    """Of the kernel's package and of the extension, by language."""
    extension = ROOT / "lab" / "src" / "text" / "catalogues"
    return {
        "kernel": {language: catalogue(language) for language in LANGUAGES},
        "extension": {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in extension.glob("*.json")},
    }


@pytest.mark.parametrize("part", ["kernel", "extension"])
def test_each_language_has_every_text_with_the_same_places(part: str) -> None:
    found = catalogues()[part]
    assert set(found) == set(LANGUAGES)
    for language, texts in found.items():
        assert {key: places(text) for key, text in texts.items()} == {key: places(text) for key, text in found["en"].items()}, language


@pytest.mark.parametrize(("part", "folder", "kinds"), [("kernel", "device/forebay/notebook", "*.py"), ("extension", "lab/src", "*.ts*")])
def test_no_text_is_left_that_nothing_says(part: str, folder: str, kinds: str) -> None:
    files = [*(ROOT / folder).rglob(kinds), *([ROOT / "device/forebay/waiting.py"] if part == "kernel" else [])]
    source = "\n".join(path.read_text(encoding="utf-8") for path in files)
    built = {"kernel": {"granted", "not granted", "stopped waiting", *CAUSES}, "extension": {f"alone_{cause}" for cause in CAUSES}}[part]
    states = {"idle", "queued", "starting", "restoring", "computing", "resident", "moving"}
    built |= {f"wait_{kind}" for kind in ("few", "seconds", "minute", "minutes", "hour", "hours")}
    unsaid = {key for key in catalogues()[part]["en"] if not re.search(rf"[\"']{key}[\"']", source)} - built - states
    assert {key for key in unsaid if not key.startswith(("code_", "notice_", "state_", "refused_"))} == set()


def test_every_reason_of_the_pool_has_a_short_word() -> None:
    codes = messages.Queued.model_fields["code"].annotation
    assert {f"code_{code}" for code in codes.__args__} <= set(catalogues()["extension"]["en"])  # type: ignore[union-attr]


def test_every_cause_that_is_no_operator_has_its_words() -> None:
    assert catalogues()["kernel"]["en"].keys() >= CAUSES
    assert catalogues()["extension"]["en"].keys() >= {f"alone_{cause}" for cause in CAUSES}


def test_the_language_is_that_of_the_locale_and_english_where_we_have_none() -> None:
    assert [language_of(locale) for locale in ("ko_KR.UTF-8", "ko-KR", "en", "fr_FR", "C", "")] == ["ko", "ko", "en", "en", "en", "en"]
    assert language_here({"LANG": "ko_KR.UTF-8"}) == "ko"
    assert language_here({"LANG": "ko_KR.UTF-8", "LC_ALL": "C"}) == "en"


@pytest.mark.parametrize(
    ("ns", "text"),
    [(0, "0.000 s"), (1_500_000, "0.002 s"), (12_340_000_000, "12.3 s"), (303 * SECOND, "5 min 03 s"), (3_700 * SECOND, "1 h 01 min")],
)
def test_times_are_as_exact_as_one_can_feel(ns: int, text: str) -> None:
    assert amounts.seconds(ns) == text


@pytest.mark.parametrize(
    ("nano", "text"),
    [
        (0, "0.00 USD"),
        (999, "< 0.000001 USD"),
        (1_000, "0.000001 USD"),
        (1_500, "0.000002 USD"),
        (1_388_000, "0.001388 USD"),
        (2 * SECOND, "2.00 USD"),
    ],
)
def test_money_is_rounded_for_eyes_and_never_to_nothing(nano: int, text: str) -> None:
    assert amounts.money(nano, "USD") == text


def test_a_line_says_device_time_wait_cost_and_flavor() -> None:
    cost = {"USD": 1_388_400}
    entry = Entry("c1", 1, "a.ipynb", flavor="dev.1gb", device_ns=2_314_000_000, waited_ns=400_000_000, cost=cost, leases=1)
    assert notice.used(entry, ENGLISH)["text/plain"] == "forebay: device 2.314 s · waited 0.400 s · 0.001388 USD · dev.1gb"
    entry.open = 1
    assert "still computes" in notice.used(entry, ENGLISH)["text/plain"]
    assert "장치" in notice.used(entry, Texts("ko"))["text/plain"]


def gang(divided_ns: int, *alone: tuple[str, Alone, int]) -> GangWork:
    return GangWork(0, 4, Work(1, divided_ns), Work(0, 0), tuple(LoneWork(operator, reason, Work(1, ns)) for operator, reason, ns in alone))


def test_a_line_says_what_one_of_several_devices_did_alone_where_that_was_most_of_a_second_or_more() -> None:
    norm = ("aten::native_batch_norm", Alone.NO_RULE, SECOND)
    first = [("aten::mm", Alone.NO_BATCH, SECOND // 2), ("aten::eq.Scalar", Alone.NO_BATCH, SECOND // 4)]
    few = ("aten::nonzero", Alone.SIZES, SECOND // 4)
    entry = Entry("c1", 1, "a.ipynb", gangs=(gang(SECOND, norm, *first, few, ("aten::add.Tensor", Alone.VIEWS, SECOND // 8)),), leases=1)
    used, alone = notice.used(entry, ENGLISH)["text/plain"].split("\n")
    assert alone == "forebay: 68 % of the time on 1 of the 4 devices of cuda:0: native_batch_norm, no batch of rows came again, nonzero"
    assert notice.used(entry, ENGLISH)["text/html"].count("<div") == 2
    korean = notice.used(entry, Texts("ko"))["text/plain"]
    assert korean.endswith("cuda:0의 장치 4개 중 1개에서 시간의 68 %: native_batch_norm, 반복되는 배치가 없음, nonzero")
    for quiet in (gang(SECOND, norm), gang(0, ("aten::mm", Alone.NO_BATCH, SECOND - 1))):
        entry.gangs = (quiet,)
        assert notice.used(entry, ENGLISH)["text/plain"] == used


def test_a_stretch_of_several_devices_is_what_came_since_the_look_before() -> None:
    before, after = gang(5, ("aten::mm", Alone.NO_BATCH, 7)), gang(6, ("aten::mm", Alone.NO_BATCH, 9), ("aten::mm", Alone.NO_RULE, 1))
    more = GangWork(0, 4, Work(3, 8), Work(0, 0), (LoneWork("aten::mm", Alone.NO_BATCH, Work(4, 9)), after.alone[1]))
    assert more.since(before).alone == (LoneWork("aten::mm", Alone.NO_BATCH, Work(3, 2)), LoneWork("aten::mm", Alone.NO_RULE, Work(1, 1)))
    assert more.since(before).divided == Work(2, 3)
    assert before.since(more) is before, "a session that began anew"


def test_the_reason_of_a_wait_and_of_a_refusal_is_in_the_readers_language() -> None:
    held = messages.Cause(code="one_held", values={"device": "a/cpu:0", "flavor": "dev.1gb"})
    queued, korean = messages.Queued(request=1, position=1, cause=held), Texts("ko")
    english = notice.waiting("dev.1gb", queued, None, ENGLISH)["text/plain"]
    assert english.endswith("next in line: The one device that serves dev.1gb is held.")
    assert notice.waiting("dev.1gb", queued, None, korean)["text/plain"].endswith(f"다음 차례: {held.said('ko')}")
    refused = PoolRefused("The pool is shutting down; try again in a minute.", "shutting_down", messages.Cause(code="shutting_down"))
    assert korean.error(refused) == "풀이 종료되는 중입니다. 잠시 뒤에 다시 시도하십시오." and ENGLISH.error(refused) == str(refused)
    assert korean.error(ForebayError("Of our own.")) == "Of our own."
    gone = PoolRefused("There is no such session among those you may end.", "no_session")
    assert korean.error(gone) == "그런 세션이 더 이상 없습니다." and ENGLISH.error(gone) == str(gone)
    assert korean.error(PoolRefused("It is new.", "made_up")) == "It is new."
    old = messages.Queued(request=1, position=1, reason="It waits.")
    assert notice.waiting("dev.1gb", old, None, korean)["text/plain"].endswith("다음 차례: It waits.")


def test_a_front_end_gets_causes_beside_what_the_kernel_says_of_them() -> None:
    journal = Journal()
    page = journal.page(0)
    held = messages.Cause(code="one_held", values={"device": "a/cpu:0", "flavor": "dev.1gb"})
    page.told(messages.Queued(request=1, position=1, cause=held), None)
    budget = {"tenant": "acme", "user": "ada", "notebook": None, "period": "2026-11", "origin": "owner", "code": "used_up", "left_nano": 0}
    korean = status.snapshot(journal, None, budget, False, Texts("ko"))
    queued = korean["devices"][0]["queued"]
    assert queued["reason"] == held.said("ko") and queued["cause"]["code"] == "one_held" and queued["cause"]["values"] == held.values
    assert korean["budget"]["sentence"] == "acme의 ada의 2026-11 예산을 모두 썼습니다. 테넌트 소유자가 늘릴 수 있습니다."
    assert korean["budget"]["cause"]["code"] == "budget_month_used"
    old = status.snapshot(journal, None, {"sentence": "The budget is used up.", "left_nano": 0}, False, Texts("ko"))
    assert (old["budget"]["sentence"], old["budget"]["cause"]) == ("The budget is used up.", None)


def test_what_the_pool_says_cannot_bring_markup_into_a_page() -> None:
    queued = messages.Queued(request=1, position=3, reason="<script>alert(1)</script> & more")
    told = notice.waiting("dev.1gb", queued, Left(130.0, 0, 0.0), ENGLISH)
    assert told["text/plain"] == "forebay: waiting for dev.1gb, number 3 in line: <script>alert(1)</script> & more About 2 min."
    assert "<script" not in told["text/html"] and "&lt;script&gt;" in told["text/html"]


def test_a_wait_whose_lease_is_being_opened_has_no_place() -> None:
    queued = messages.Queued(request=1, position=1, reason="A worker is starting.", code="starting")
    assert notice.waiting("dev.1gb", queued, None, ENGLISH)["text/plain"] == "forebay: waiting for dev.1gb: A worker is starting."


@pytest.mark.parametrize(
    ("left", "english", "korean"),
    [
        (Left(0.1, 1, 0.0), "A few seconds.", "몇 초."),
        (Left(9.4, 1, 0.0), "About 10 s.", "약 10초."),
        (Left(52.0, 1, 0.0), "About a minute.", "약 1분."),
        (Left(521.0, 1, 0.0), "About 9 min.", "약 9분."),
        (Left(3_500.0, 1, 0.0), "About an hour.", "약 1시간."),
        (Left(0.0, 0, 0.0), "This is longer than usual.", "평소보다 오래 걸리고 있습니다."),
        (Left(0.0, 1, 80.0), "longer than usual: the one before you has run for 1 min 20 s.", "1 min 20 s 동안"),
        (Left(0.0, 2, 80.0), "longer than usual: the 2 before you have run for up to 1 min 20 s.", "2개가 최대 1 min 20 s 동안"),
    ],
)
def test_what_is_left_of_an_estimate_is_said_in_words(left: Left, english: str, korean: str) -> None:
    queued = messages.Queued(request=1, position=1, reason="Held.")
    assert english in notice.waiting("dev.1gb", queued, left, ENGLISH)["text/plain"]
    assert english in in_words(left, ENGLISH)
    assert korean in notice.waiting("dev.1gb", queued, left, Texts("ko"))["text/plain"]


@pytest.mark.parametrize("language", ["en", "ko"])
def test_notebooks_commands_and_pages_have_the_same_words_for_a_wait(language: str) -> None:
    """Each second of the first two hours, and what lies between and far beyond."""
    texts = Texts(language)
    for seconds in (1e-9, 0.5, 5.001, 50.001, 89.999, 3449.999, 86_400.0, 1e9, *range(1, 7_300)):
        assert waiting.about(seconds, texts) == wait_of(seconds).said(language), seconds
    said = [waiting.rough(seconds) for seconds in range(1, 7_300)]
    assert len(set(said)) == len(list(itertools.groupby(said))), "what counts down never says the same again after something else"
    units = {"seconds": 1, "minute": 60, "minutes": 60, "hour": 3600, "hours": 3600}
    for seconds, (kind, count) in enumerate(said, 1):
        assert kind == "few" or abs(count * units[kind] - seconds) <= max(10, seconds * 0.34), seconds


def test_how_a_wait_ended_is_said_whatever_it_was() -> None:
    assert notice.outcome("stopped waiting", 2.04, ENGLISH)["text/plain"] == "forebay: stopped waiting after 2.0 s"
    assert "{odd}" in notice.outcome("gone: {odd}", 1, ENGLISH)["text/plain"]


def test_a_cells_wish_is_a_flavor_a_profile_or_both() -> None:
    assert wish("flavor=dev.4gb").flavor == "dev.4gb" and wish("flavor=dev.4gb").profile is None
    both = wish("flavor=dev.4gb profile --top 3")
    assert both.flavor == "dev.4gb" and both.profile is not None and both.profile.top == 3
    assert wish("profile").flavor is None
    for wrong in ("", "flavor=", "flavor", "flaver=x", "profile --tip 3"):
        with pytest.raises(ValueError, match="usage: %%gpu"):
            wish(wrong)


def test_a_cells_bounds_are_an_amount_and_a_time_of_the_device() -> None:
    assert wish("max_cost=0.50").bound == Bound(500_000_000, None) and wish("flavor=x max_time=1.5h").bound == Bound(None, 5400 * SECOND)
    both = wish("max_time=10m max_cost=2 flavor=x profile")
    assert (both.flavor, both.bound) == ("x", Bound(2 * SECOND, 600 * SECOND)) and both.profile is not None
    assert [wish(f"max_time={word}").bound.time_ns for word in ("90", "90s", "2min")] == [90 * SECOND, 90 * SECOND, 120 * SECOND]
    assert not wish("profile").bound
    for wrong in (*(f"max_cost={word}" for word in ("0", "-1", "much", "nan", "1e9")), *(f"max_time={word}" for word in ("0s", "5d"))):
        with pytest.raises(ValueError, match=r"^%%gpu: max_.*above 0.*usage: %%gpu"):
            wish(wrong)
