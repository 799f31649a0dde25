"""Which language a visitor gets, and texts that are English for programs and the reader's language for readers."""

from __future__ import annotations

from datetime import date

import pytest
from forebay_service.languages import NAMES, Text, as_sent, in_context, language_of, listed, month_name, plural, reading
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup


@pytest.mark.parametrize(
    ("chosen", "accepted", "language"),
    [
        (None, "", "en"),
        (None, "ko", "ko"),
        (None, "ko-KR,ko;q=0.9,en-US;q=0.8", "ko"),
        (None, "en-GB,en;q=0.9,ko;q=0.8", "en"),
        (None, "de-DE,de;q=0.9,ko;q=0.5,en;q=0.4", "ko"),
        (None, "ko;q=0.2, EN;q=0.7", "en"),
        (None, "ko;q=0", "en"),
        (None, "de, fr", "en"),
        (None, "*", "en"),
        (None, "ko;q=much", "ko"),
        ("ko", "en", "ko"),
        ("en", "ko", "en"),
        ("tlh", "ko", "ko"),
        ("../../etc", "", "en"),
    ],
)
def test_the_choice_comes_first_then_what_the_browser_would_rather_read(chosen: str | None, accepted: str, language: str) -> None:
    assert language_of(chosen, accepted) == language


@given(st.text(), st.text())
def test_whatever_a_browser_sends_there_is_a_language(chosen: str, accepted: str) -> None:
    assert language_of(chosen, accepted) in NAMES


def test_each_language_is_called_as_it_calls_itself() -> None:
    assert NAMES == {"en": "English", "ko": "한국어"}


def test_a_text_is_english_as_a_string_and_the_readers_language_on_a_page() -> None:
    text = Text("%(user)s of %(tenant)s", user="ann", tenant=Text("Today"))
    assert text == "ann of Today"
    assert f"{text}" == "ann of Today"
    assert text.__html__() == "ann of Today"
    with reading("ko"):
        assert text.__html__() == "오늘의 ann"
        assert f"{text}" == "ann of Today", "logs stay English whoever reads"
    assert text.__html__() == "ann of Today"


def test_what_stands_in_a_text_can_build_no_markup() -> None:
    text = Text("Nothing was changed in %(name)s.", name="<b>&")
    for language in NAMES:
        with reading(language):
            assert "&lt;b&gt;&amp;" in Markup("<p>{}</p>").format(text)


def test_counts_have_their_own_texts_in_each_language() -> None:
    texts = [plural("%(count)s node", "%(count)s nodes", count) for count in (0, 1, 2, 1000)]
    assert texts == ["0 nodes", "1 node", "2 nodes", "1,000 nodes"]
    assert [text.said("ko") for text in texts] == ["노드 0개", "노드 1개", "노드 2개", "노드 1,000개"]


def test_a_word_that_means_two_things_has_two_translations() -> None:
    assert (in_context("price", "free"), in_context("state", "free")) == ("free", "free")
    assert in_context("price", "free").said("ko") != in_context("state", "free").said("ko")


def test_what_a_service_says_is_told_by_its_code_or_as_it_is() -> None:
    assert as_sent("100 % of it is %(gone)s.").said("ko") == "100 % of it is %(gone)s."
    coded = as_sent("Your quota of 2 is used up.", Text("Its quota is used up."))
    assert (coded, coded.said("ko")) == ("Your quota of 2 is used up.", "할당량을 모두 썼습니다.")


def test_months_and_lists_are_written_as_each_language_does() -> None:
    months = listed([month_name(date(2026, 11, 1)), month_name(date(2026, 1, 1))])
    assert (months, months.said("ko")) == ("November 2026, January 2026", "2026년 11월, 2026년 1월")
