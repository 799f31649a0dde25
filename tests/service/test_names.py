"""What people and tenants may be called: no two logins look the same, and each has a folder of its own."""

from __future__ import annotations

import re

import pytest
from forebay_admin.host import answers
from forebay_service.people.names import (
    LOGIN_PATTERN,
    RESERVED,
    TENANT_PATTERN,
    is_login,
    is_tenant,
    login_of,
    slug_of,
)
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("typed", "login"),
    [
        ("ada", "ada"),
        ("Ada.Lovelace@Example.org", "ada.lovelace@example.org"),
        ("\uff21\uff24\uff21", "ada"),
        ("a+b_c-d.e@f", "a+b_c-d.e@f"),
        ("7", "7"),
        ("x" * 128, "x" * 128),
    ],
)
def test_a_login_is_in_small_letters(typed: str, login: str) -> None:
    assert login_of(typed) == login and is_login(login)


NO_LOGINS = (
    "", " ", "ada ", " ada", "ada lovelace", "a\0", "a\u202eb", "a\u200bb", "a\u00adb", "\u0430da", "\u00fc", "\u0130", "a/b", "..",
    ".", "-a", "@a", "_a", "+a", "a:b", "a!b", "a=b", "a%b", "a\\b", "a'b", 'a"b', "a<b", "a\n", "x" * 129, "\U0001f600", *RESERVED,
)  # fmt: skip


@pytest.mark.parametrize("typed", NO_LOGINS)
def test_what_could_be_taken_for_another_or_is_a_services_is_no_login(typed: str) -> None:
    assert login_of(typed) is None and not is_login(typed) and login_of(typed.title()) is None


@pytest.mark.parametrize("name", ["ACME", "tenant-acme", "a.b", "a_b", "-a", "", "x" * 64, "acm\u0435", "a@b", *RESERVED])
def test_what_is_no_name_of_a_tenant(name: str) -> None:
    assert not is_tenant(name)


def test_names_of_tenants() -> None:
    assert all(map(is_tenant, ("acme", "a", "7-of-9", "x" * 63, "a-tenant-b", "tenant")))


@given(st.text())
def test_what_is_a_login_stays_one_and_is_plain(typed: str) -> None:
    login = login_of(typed)
    if login is not None:
        assert login_of(login) == login and re.fullmatch(LOGIN_PATTERN, login) and login.isascii() and login == login.lower()


LOGINS = st.from_regex(re.compile(LOGIN_PATTERN), fullmatch=True).filter(is_login)


@given(LOGINS, LOGINS)
def test_each_login_has_a_slug_of_its_own_of_letters_digits_and_dashes(one: str, other: str) -> None:
    assert re.fullmatch(r"[a-z0-9][a-z0-9-]*", slug_of(one)) and len(slug_of(one)) <= 128
    assert (slug_of(one) == slug_of(other)) is (one == other)


def test_a_login_that_spells_anothers_slug_gets_another() -> None:
    slug = slug_of("ada@example.org")
    assert is_login(slug) and slug_of(slug) != slug and slug_of("acme-member") == "acme-member" and slug_of("a--b-") == "a--b-"


def test_who_sets_a_host_up_is_asked_for_names_by_the_same_rule() -> None:
    """The command is installed without the services' package, and has the patterns itself."""
    assert answers.LOGIN.pattern == LOGIN_PATTERN and answers.TENANT.pattern == rf"(?!tenant-){TENANT_PATTERN}"
