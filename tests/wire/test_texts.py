"""What people and programs may call things: one definition for the links, the pool and billing."""

from __future__ import annotations

import pytest
from forebay_wire import messages as wire
from forebay_wire.texts import LABEL_CHARS_MAX, NAME_CHARS_MAX, Label, Name, label_of, name_of
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

ANY = st.text(st.characters(codec=None, exclude_categories=()), max_size=300) | st.text(max_size=3).map(lambda text: text * 1500)
_NAME: TypeAdapter[str] = TypeAdapter(Name)
_LABEL: TypeAdapter[str] = TypeAdapter(Label)


@given(ANY, ANY)
def test_whatever_comes_a_name_and_a_label_are_made_of_it_that_are_what_they_say(one: str, other: str) -> None:
    for text in (one, other):
        assert _NAME.validate_python(name_of(text)) == name_of(text) == name_of(name_of(text))
        assert _LABEL.validate_python(label_of(text)) == label_of(text) == label_of(label_of(text))
    assert one == other or name_of(one) != name_of(other), "two things keep two names"


@pytest.mark.parametrize("text", ["a", "π/<b>\"n's\"</b> \U0001f98a.ipynb", "मेरी नोटबुक.ipynb", "👩‍🔬.ipynb", "n" * NAME_CHARS_MAX])
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert name_of(text) == label_of(text) == text


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
