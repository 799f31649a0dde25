"""What people and programs may call things: one definition for the links, the pool and billing."""

from __future__ import annotations

import time
import unicodedata
from typing import Annotated

import pytest
from forebay_wire import messages as wire
from forebay_wire.texts import LABEL_CHARS_MAX, LINES, NAME_CHARS_MAX, Label, Name, label_of, name_of
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

ANY = st.text(st.characters(codec=None, exclude_categories=()), max_size=300) | st.text(max_size=3).map(lambda text: text * 1500)
_NAME: TypeAdapter[str] = TypeAdapter(Name)
_LABEL: TypeAdapter[str] = TypeAdapter(Label)
_LINES: TypeAdapter[str] = TypeAdapter(Annotated[str, LINES])


@given(ANY, ANY)
def test_whatever_comes_a_name_and_a_label_are_made_of_it_that_are_what_they_say(one: str, other: str) -> None:
    for text in (one, other):
        assert _NAME.validate_python(name_of(text)) == name_of(text) == name_of(name_of(text))
        assert _LABEL.validate_python(label_of(text)) == label_of(text) == label_of(label_of(text))
    assert one == other or name_of(one) != name_of(other), "two things keep two names"


@pytest.mark.parametrize("text", ["a", "π/<b>\"n's\"</b> \U0001f98a.ipynb", "मेरी नोटबुक.ipynb", "👩‍🔬.ipynb", "n" * NAME_CHARS_MAX])
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert name_of(text) == label_of(text) == text


KEPT = [
    "می\u200cنشیند.ipynb",  # Persian
    "क्\u200dष, क्\u200cष",  # Hindi
    "ක්\u200dරි.ipynb",  # Sinhala
    "👩\u200d🔬👩🏽\u200d💻❤\ufe0f\u200d🔥",
    "1\ufe0f\u20e3 ©\ufe0f ▶\ufe0e",
    "葛\U000e0100城",
    "ᠠ\u180b",
    "한국어 ｶﾞ 日本　語 a\u00a0b",
]


@pytest.mark.parametrize("text", KEPT)
def test_joiners_and_selectors_stay_where_a_script_needs_them(text: str) -> None:
    assert name_of(text) == label_of(text) == text
    assert _NAME.validate_python(text) == text
    assert _LINES.validate_python(f"{text}\n\t{text}") == f"{text}\n\t{text}"


UNSEEN = "\u00ad\u034f\u061c\u115f\u1160\u17b4\u180b\u180e\u200b\u200c\u200d\u200e\u200f\u2060\u2064\u206a\u2800"
UNSEEN += "\u3164\ufe00\ufe0f\ufeff\uffa0\ufff9\U0001d173\U000e0001\U000e0041\U000e0100\u202e\u2066"


@pytest.mark.parametrize("around", ["a{}b", "{}", "{}می", "می{}", "한{}글", "1{}2", "m{}\u200cm", "😀{}"], ids=ascii)
@pytest.mark.parametrize("unseen", UNSEEN, ids=ascii)
def test_what_nobody_sees_is_refused_and_shown_where_it_is_mended(unseen: str, around: str) -> None:
    text = around.format(unseen)
    if text == "😀\ufe0f":
        return  # an emoji's own selector
    for adapter in (_NAME, _LABEL, _LINES):
        with pytest.raises(ValidationError):
            adapter.validate_python(text)
    assert name_of(text).startswith("unreadable-") and "\N{REPLACEMENT CHARACTER}" in label_of(text)


def test_every_character_that_unicode_shows_as_nothing_is_unfit_alone() -> None:
    shown = {0x600, 0x601, 0x602, 0x603, 0x604, 0x605, 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD, *range(0x13430, 0x13456)}
    formats = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cf", "Zl", "Zp", "Cc") and code not in shown]
    assert [ascii(one) for one in formats if not name_of(one).startswith("unreadable-")] == []


def test_a_long_text_is_checked_in_no_time_however_it_is_made() -> None:
    begun = time.perf_counter()
    for text in ("می\u200c" * 700, "👩\u200d" * 1000, "1\ufe0f" * 1000, "\u0915" * 2048, "\u0915\u200d" * 1000 + "\u200d"):
        label_of(text)
        name_of(text[:NAME_CHARS_MAX])
    assert time.perf_counter() - begun < 1


@pytest.mark.parametrize("bad", ["\0", "\n", "\r", "\t", "\x1b[31m", "\x7f", "\x85", "\u2028", "\u202e", "\u2066", "\ud800"])
def test_what_no_line_can_show_is_shown_as_something_else(bad: str) -> None:
    assert label_of(f"a{bad}b") == f"a\N{REPLACEMENT CHARACTER}{bad[1:]}b"
    assert name_of(f"a{bad}b").startswith("unreadable-")


def test_a_message_is_mended_where_it_is_read_and_where_it_is_written() -> None:
    acquire = b'{"type":"acquire","request":1,"span":{"id":"\\u0000","kind":"cell","label":"\\u0000n.ipynb","cell":1}}'
    heard = wire.from_client(acquire)
    assert isinstance(heard, wire.Acquire)
    assert (heard.span.id, heard.span.label) == (name_of("\0"), "\N{REPLACEMENT CHARACTER}n.ipynb")
    hello = wire.Hello(process="python -c 'a\nb' " + "x" * 5000, pid=1, torch="2")
    assert len(hello.process) == LABEL_CHARS_MAX and "\n" not in hello.process
    assert wire.from_client(hello.encode()) == hello
