"""A real JupyterHub whose owners invite and remove people: who may, what a link is worth, and what outlives a restart."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from forebay_hub.logins import hashed, matches
from forebay_hub.people.decisions import read_decisions
from forebay_hub.people.invitations import HOURLY_MAX
from forebay_hub.people.rate_limit import RateLimit
from forebay_hub.tenants import Decision, Directory, Tenant, directory_of
from forebay_service.identity import TENANT
from people_pages import PASSWORD, Caller, begin, open_link, press, sign_in

ACME = {"acme": {"owners": ["ann"], "members": ["bob"]}, "globex": {"owners": ["gus"], "members": []}}


def test_a_tenants_people_are_told_to_who_administers_it_and_to_operators_alone(call: Callable[[str], Caller]) -> None:
    assert call("acme-owner").members()["acme-member"] == "member"
    assert call("operator").members("globex") == {"globex-owner": "owner"}
    for name in ("acme-member", "globex-owner"):
        for method, path in (("GET", "members"), ("GET", "invitations"), ("POST", "invitations"), ("DELETE", "members/acme-member")):
            refused = call(name).ask(method, f"tenants/acme/{path}", {} if method == "POST" else None)
            assert refused.status_code == 403, (name, path)
            assert f"needs the scope {TENANT}" in refused.json()["error"]["message"]
    assert call("operator").ask("GET", "tenants/nowhere/members").json()["error"]["code"] == "not_found"
    assert call("acme-owner").ask("GET", "audit").status_code == 403


def test_a_token_without_the_owners_scope_is_refused_whoever_has_it(hub: Any) -> None:
    narrow = Caller(hub, "acme-owner", scopes=["custom:forebay:compute!user=acme-owner"])
    assert narrow.ask("GET", "tenants/acme/members").status_code == 403
    wide = Caller(hub, "acme-owner", scopes=[f"{TENANT}!group=tenant-acme"])
    assert wide.ask("GET", "tenants/acme/members").status_code == 200


def test_a_newcomer_makes_a_login_by_the_link_and_belongs_to_that_tenant_in_that_role(
    hub: Any, call: Callable[[str], Caller], browser: httpx.Client
) -> None:
    made = call("acme-owner").invite(role="billing", address="carol@acme.example")
    page = open_link(browser, made)
    assert str(page.url).endswith("/hub/join") and made["token"] not in page.text, "the token is in no address and on no page"
    assert "acme-owner invites you to the tenant acme" in page.text
    wrong = press(browser, page, name="Carol!", password="short", again="other")
    assert wrong.status_code == 400
    assert "begins with a letter or a digit" in wrong.text and "at least 12 characters" in wrong.text
    taken = press(browser, page, name="acme-member", password=PASSWORD, again="another one")
    assert "Somebody has this name already" in taken.text and "The two passwords differ" in taken.text
    joined = press(browser, page, name="carol", password=PASSWORD, again=PASSWORD)
    assert joined.status_code == 302, joined.text
    assert call("acme-owner").members()["carol"] == "billing"
    with httpx.Client(base_url=str(browser.base_url), timeout=60) as later:
        assert sign_in(later, "carol", PASSWORD).status_code == 302
        assert sign_in(later, "carol", "wrong").status_code != 302
    kept = json.loads((hub.folder / "logins.json").read_text())["carol"]
    assert PASSWORD not in kept and matches(kept, PASSWORD)


def test_a_link_is_good_once_and_not_after_it_was_revoked_or_has_expired(
    hub: Any, call: Callable[[str], Caller], browser: httpx.Client
) -> None:
    owner = call("acme-owner")
    used, revoked, expired = (owner.invite() for _ in range(3))
    assert begin(browser, used, "dave").status_code == 302
    assert call("globex-owner").ask("DELETE", f"tenants/globex/invitations/{revoked['id']}").status_code == 404
    assert owner.ask("DELETE", f"tenants/acme/invitations/{revoked['id']}").status_code == 200
    with sqlite3.connect(hub.folder / "hub.sqlite", timeout=30) as books:
        books.execute("UPDATE forebay_invitations SET expires_at_ns = ? WHERE id = ?", (time.time_ns() - 1, expired["id"]))
        stored = books.execute("SELECT * FROM forebay_invitations").fetchall()
    assert not any(made["token"] in str(stored) for made in (used, revoked, expired)), "a token is kept nowhere"
    for number, made in enumerate((used, revoked, expired)):
        with httpx.Client(base_url=str(browser.base_url), headers={"X-Forwarded-For": f"10.8.0.{number}"}, timeout=60) as another:
            page = open_link(another, made)
            assert page.status_code == 404 and "it was used, revoked, or has expired" in page.text
    assert not {used["id"], revoked["id"], expired["id"]} & owner.open_invitations()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("globex-owner", "You belong to another tenant"),
        ("acme-member", "You belong to acme already"),
        ("operator", "operators belong to no tenant"),
    ],
)
def test_who_belongs_elsewhere_cannot_take_it_and_it_stays_good(
    hub: Any, call: Callable[[str], Caller], browser: httpx.Client, name: str, sentence: str
) -> None:
    made = call("acme-owner").invite()
    password = json.loads((hub.folder / "logins.json").read_text())[name]
    assert sign_in(browser, name, password).status_code == 302
    page = open_link(browser, made)
    assert f"You are signed in as {name}" in page.text
    refused = press(browser, page)
    assert refused.status_code == 409 and sentence in refused.text
    assert made["id"] in call("acme-owner").open_invitations()
    call("acme-owner").ask("DELETE", f"tenants/acme/invitations/{made['id']}")


def test_roles_change_at_once_the_last_owner_stays_and_who_was_removed_may_be_invited_elsewhere(
    hub: Any, call: Callable[[str], Caller], browser: httpx.Client
) -> None:
    owner = call("acme-owner")
    assert begin(browser, owner.invite(), "erin").status_code == 302
    for role in ("owner", "member"):
        assert owner.ask("PUT", "tenants/acme/members/erin", {"role": role}).status_code == 200
        assert owner.members()["erin"] == role
        assert (Caller(hub, "erin").ask("GET", "tenants/acme/invitations").status_code == 200) is (role == "owner")
    stays = owner.ask("DELETE", "tenants/acme/members/acme-owner")
    assert stays.status_code == 409 and stays.json()["error"]["fault"]["code"] == "last_owner"
    assert owner.ask("PUT", "tenants/acme/members/erin", {"role": "king"}).status_code == 400
    assert owner.ask("DELETE", "tenants/acme/members/erin").status_code == 200
    assert "erin" not in owner.members()
    assert owner.ask("DELETE", "tenants/acme/members/erin").json()["error"]["fault"]["code"] == "no_member"
    page = open_link(browser, call("globex-owner").invite("globex"))
    assert press(browser, page).status_code == 302
    assert call("globex-owner").members("globex")["erin"] == "member"
    tenants = {"acme": {"owners": ["acme-owner"], "members": ["erin"]}, "globex": {"owners": ["globex-owner"]}}
    written = directory_of({"operators": ["operator"], "tenants": tenants})
    again = {tenant.name: tenant for tenant in written.overlaid(read_decisions(f"sqlite:///{hub.folder}/hub.sqlite")).tenants}
    assert "erin" not in again["acme"].people and "erin" in again["globex"].members, "a restart changes nothing of it"
    entries = call("operator").ask("GET", "audit?subject=acme/erin").json()["entries"]
    assert [(one["who"], one["action"]) for one in entries] == [
        ("acme-owner", "member.remove"), ("acme-owner", "member.set"), ("acme-owner", "member.set"), ("erin", "member.set"),
    ]  # fmt: skip


def test_a_tenant_makes_so_many_invitations_in_an_hour_and_nobody_guesses_tokens_without_end(
    call: Callable[[str], Caller], browser: httpx.Client
) -> None:
    owner = call("globex-owner")
    answers = [owner.ask("POST", "tenants/globex/invitations", {}) for _ in range(HOURLY_MAX + 1)]
    assert [answer.status_code for answer in answers[-2:]] in ([201, 413], [413, 413])
    assert answers[-1].json()["error"]["fault"] == {"code": "invitations_hourly", "field": None, "values": {"most": HOURLY_MAX}}
    statuses = [browser.get("/join").status_code for _ in range(22)]
    assert statuses[0] == 404 and statuses[-1] == 429


@pytest.mark.parametrize(
    "address",
    ["me@=?utf-8?q?mine.cc=2Cv=40x.cc?=", "a\0@x.cc", "a\u202e@x.cc", "a@x.cc,b@y.cc", "Ann <a@x.cc>", "a@x.cc\r\nBcc: b@y.cc", "a", ""],
)
def test_an_invitation_is_for_one_address_or_none(call: Callable[[str], Caller], address: str) -> None:
    refused = call("operator").ask("POST", "tenants/globex/invitations", {"address": address})
    assert refused.status_code == 400 and refused.json()["error"]["fault"]["field"] == "address"


def test_the_page_is_in_the_language_of_the_browser(call: Callable[[str], Caller], browser: httpx.Client) -> None:
    browser.headers["Accept-Language"] = "ko"
    page = open_link(browser, call("acme-owner").invite())
    assert 'lang="ko"' in page.text and "초대" in page.text


def test_what_owners_decided_lies_over_the_file_which_counts_more_for_whom_it_places_elsewhere() -> None:
    written = directory_of({"operators": ["op"], "tenants": ACME})
    decided = [
        Decision("acme", "carol", "billing"),
        Decision("acme", "bob", None),
        Decision("globex", "bob", "owner"),
        Decision("acme", "gus", "owner"),
        Decision("acme", "op", "owner"),
        Decision("gone", "dan", "member"),
        Decision("acme", "eve", "member"),
        Decision("acme", "eve", None),
        Decision("acme", "pool", "member"),
    ]
    assert written.overlaid(decided) == Directory(
        (
            Tenant("acme", frozenset({"ann"}), frozenset({"carol"}), frozenset()),
            Tenant("globex", frozenset({"gus", "bob"}), frozenset(), frozenset()),
        ),
        frozenset({"op"}),
        frozenset({"dan", "eve"}),
    )
    assert written.overlaid([]) == written


def test_a_pace_lets_so_many_tries_pass_and_forgets_them() -> None:
    now = [0.0]
    pace = RateLimit(2, 60.0, lambda: now[0])
    assert [pace.takes("a"), pace.takes("a"), pace.takes("a"), pace.takes("b")] == [True, True, False, True]
    now[0] = 61.0
    assert pace.takes("a")


def test_a_hash_matches_its_password_alone() -> None:
    kept = hashed(PASSWORD)
    assert matches(kept, PASSWORD) and not matches(kept, PASSWORD + " ") and hashed(PASSWORD) != kept
    assert matches("generated", "generated") and not matches("generated", "other")
