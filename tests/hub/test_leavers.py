"""What people leave behind at the hub: nobody comes back, or brings others in, by what they made while they were owners."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from forebay_service.people.memberships import HubPeople, PeopleUnknown
from people_pages import Caller, begin, open_link, press


def owner_named(name: str, hub: Any, call: Callable[[str], Caller], browser: httpx.Client) -> Caller:
    """A second owner of acme, who joined by an invitation."""
    assert begin(browser, call("acme-owner").invite(role="owner"), name).status_code == 302
    return Caller(hub, name)


@pytest.mark.parametrize("loss", ["removed", "member", "billing"])
def test_invitations_of_a_former_owner_open_nothing(hub: Any, call: Callable[[str], Caller], browser: httpx.Client, loss: str) -> None:
    """The former owner takes one, and another takes one; an invitation of an owner who stays is good."""
    former, stays = owner_named(f"former-{loss}", hub, call, browser), call("acme-owner")
    own, others, good = former.invite(role="owner"), former.invite(role="owner"), stays.invite()
    path = f"tenants/acme/members/former-{loss}"
    done = stays.ask("DELETE", path) if loss == "removed" else stays.ask("PUT", path, {"role": loss})
    assert done.status_code == 200
    assert stays.open_invitations() & {own["id"], others["id"], good["id"]} == {good["id"]}
    with httpx.Client(base_url=browser.base_url, headers=browser.headers, timeout=60) as another:
        for made, whose in ((own, browser), (others, another)):
            page = open_link(whose, made)
            assert page.status_code == 404 and "used, revoked, or has expired" in page.text
    assert stays.members().get(f"former-{loss}") == (None if loss == "removed" else loss)
    audits = call("operator").ask("GET", f"audit?subject=acme/%23{own['id']}").json()["entries"]
    assert [(one["who"], one["action"]) for one in audits] == [("acme-owner", "invitation.revoke"), (f"former-{loss}", "invitation.make")]
    stays.ask("PUT", path, {"role": "owner"})
    assert open_link(browser, own).status_code == 404, "the role that comes back brings no invitation back"
    stays.ask("DELETE", path)
    stays.ask("DELETE", f"tenants/acme/invitations/{good['id']}")


def test_an_invitation_is_no_good_where_its_maker_lost_the_role_past_the_pages(
    hub: Any, call: Callable[[str], Caller], browser: httpx.Client
) -> None:
    """As by another hub.toml, or on JupyterHub's own admin page: nothing revoked it, and it is looked at when it is taken."""
    former = owner_named("past-owner", hub, call, browser)
    made = former.invite(role="owner")
    with httpx.Client(base_url=browser.base_url, headers=browser.headers, timeout=60) as another:
        page = open_link(another, made)
        assert page.status_code == 200
        hub.ask("DELETE", "groups/tenant-acme/users", {"users": ["past-owner"]})
        refused = press(another, page, name="late", password="correct horse battery", again="correct horse battery")
        assert refused.status_code == 404 and "may invite nobody any more" in refused.text
        assert open_link(another, made).status_code == 404
    assert "late" not in call("acme-owner").members()
    hub.ask("POST", "groups/tenant-acme/users", {"users": ["past-owner"]})
    call("acme-owner").ask("DELETE", "tenants/acme/members/past-owner")


def test_tokens_of_who_leaves_end_and_do_not_act_for_the_next_tenant(
    hub: Any, call: Callable[[str], Caller], browser: httpx.Client
) -> None:
    assert begin(browser, call("acme-owner").invite(), "mover").status_code == 302
    old = hub.new_token("mover")

    def asks() -> int:
        return httpx.get(f"{hub.api_url}/user", headers={"Authorization": f"token {old}"}, timeout=60).status_code

    assert asks() == 200
    assert call("acme-owner").ask("PUT", "tenants/acme/members/mover", {"role": "billing"}).status_code == 200
    assert asks() == 200, "who stays keeps them"
    assert call("acme-owner").ask("DELETE", "tenants/acme/members/mover").status_code == 200
    assert asks() == 403
    assert press(browser, open_link(browser, call("initech-owner").invite("initech"))).status_code == 302, "the sign-in lasts"
    assert call("initech-owner").members("initech")["mover"] == "member" and asks() == 403
    with sqlite3.connect(hub.folder / "hub.sqlite", timeout=30) as books:
        rows = books.execute("SELECT t.id FROM api_tokens t JOIN users u ON u.id = t.user_id WHERE u.name = 'mover'").fetchall()
    assert rows == []
    call("initech-owner").ask("DELETE", "tenants/initech/members/mover")


def test_services_are_told_who_belongs_where_and_nobody_else_is(hub: Any, call: Callable[[str], Caller]) -> None:
    told = call("operator").ask("GET", "people").json()
    rows = told["people"]
    assert {"name": "acme-member", "tenant": "acme", "role": "member"} in rows
    assert {"name": "globex-owner", "tenant": "globex", "role": "owner"} in rows
    assert "operator" not in json.dumps(rows) and told["operators"] == ["operator"]
    for name in ("acme-owner", "acme-member"):
        assert call(name).ask("GET", "people").status_code == 403
    known = asyncio.run(HubPeople(hub.api_url, hub.new_token("operator")).everybody())
    assert known.belongs("acme", "acme-member") and not known.belongs("globex", "acme-member") and not known.belongs("acme", "operator")
    assert known.administers("acme", "acme-owner") and known.administers("acme", "operator") and known.administers(None, "operator")
    assert not known.administers("acme", "acme-member") and not known.administers(None, "acme-owner")
    for people in (HubPeople(hub.api_url, hub.new_token("acme-owner")), HubPeople("http://127.0.0.1:9/hub/api", "x")):
        with pytest.raises(PeopleUnknown, match="JupyterHub does not say"):
            asyncio.run(people.everybody())
