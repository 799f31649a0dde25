"""What ``If-Match`` and ``If-None-Match`` ask for, by RFC 9110."""

from __future__ import annotations

import pytest
from forebay_service.preconditions import InvalidPrecondition, precondition_in, tag_of


@pytest.mark.parametrize(
    ("headers", "tag", "holds"),
    [
        ({}, None, True),
        ({}, '"a"', True),
        ({"If-Match": '"a"'}, '"a"', True),
        ({"If-Match": '"b", "a"'}, '"a"', True),
        ({"If-Match": '"b"'}, '"a"', False),
        ({"If-Match": '"a"'}, None, False),
        ({"If-Match": 'W/"a"'}, '"a"', False),
        ({"If-Match": "*"}, '"a"', True),
        ({"If-Match": "*"}, None, False),
        ({"If-None-Match": "*"}, None, True),
        ({"If-None-Match": "*"}, '"a"', False),
        ({"If-None-Match": 'W/"a"'}, '"a"', False),
        ({"If-None-Match": '"b,c"'}, '"b"', True),
        ({"If-Match": '"a"', "If-None-Match": "*"}, '"a"', False),
    ],
)
def test_a_change_is_done_only_while_what_stands_is_as_expected(headers: dict[str, str], tag: str | None, holds: bool) -> None:
    assert precondition_in(headers).holds(tag) is holds


@pytest.mark.parametrize("text", ["", "a", '"a', 'a"', '"a" "b"', 'w/"a"', '"a b"', '*, "a"', '"' + "a" * 5000 + '"'])
def test_what_is_no_list_of_tags_is_refused_by_the_header_s_name(text: str) -> None:
    with pytest.raises(InvalidPrecondition, match="If-Match: send"):
        precondition_in({"If-Match": text})


def test_equal_content_has_an_equal_tag_in_whatever_order_and_other_content_another() -> None:
    assert tag_of({"a": 1, "b": None}) == tag_of({"b": None, "a": 1}) != tag_of({"a": 1, "b": 0})
    assert precondition_in({"If-Match": tag_of({"a": 1})}).holds(tag_of({"a": 1}))
