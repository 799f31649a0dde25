"""A person whom an identity provider calls by an e-mail address joins, computes in a notebook, is billed, and sees her pages."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.acceptance

LOGIN = "ada.lovelace@example.org"
PASSWORD = "correct horse battery"
CELL = "import torch; print(float(torch.ones(1000, device='cuda:0').sum()))"


@pytest.fixture(scope="module")
def ada(cloud: Any) -> Any:
    """She writes her name with capital letters, as on her card."""
    owner = cloud.person("globex-owner")
    made = owner.hub_api("POST", "forebay/tenants/globex/invitations", {"address": "Ada.Lovelace@example.org"}).raise_for_status().json()
    person = cloud.visitor(LOGIN)
    page = person.web.get(made["path"])
    xsrf = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
    assert xsrf is not None, page.text
    headers = {"Referer": str(page.url), "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}
    fields = {"_xsrf": xsrf[1], "name": "Ada.Lovelace@Example.org", "password": PASSWORD, "again": PASSWORD}
    assert person.web.post("/hub/join", data=fields, headers=headers).status_code == httpx.codes.OK
    return person


@pytest.mark.full_sweep
def test_she_signs_in_computes_is_billed_and_sees_her_pages(
    cloud: Any, ada: Any, kernel_type: Any, eventually: Any, text_of: Any
) -> None:  # fmt: skip
    again = cloud.visitor("Ada.Lovelace@example.org")
    assert again.sign_in(PASSWORD).status_code == httpx.codes.OK, "in capital letters she is the same person"
    ada.spawn("dev.1gb")
    ada.open_lab()
    homes = sorted(path.name for path in (cloud.state / "homes").iterdir() if path.name.startswith("ada"))
    assert len(homes) == 1 and re.fullmatch(r"ada-lovelace-example-org---[0-9a-f]{12}", homes[0])
    content = {"cells": [], "metadata": {"kernelspec": {"name": "python3"}}, "nbformat": 4, "nbformat_minor": 5}
    notebook = {"type": "notebook", "content": content}
    root = f"/user/{LOGIN}/"
    ada.web.put(f"{root}api/contents/own.ipynb", json=notebook, headers={"X-XSRFToken": ada.xsrf(root)}).raise_for_status()
    kernel = kernel_type(ada, "own.ipynb")
    try:
        assert kernel.run(CELL).strip() == "1000.0"
        assert kernel.run("import os; print(os.getcwd())").strip().endswith(homes[0])
    finally:
        kernel.close()
    token = ada.new_token()

    def billed() -> Any:
        return cloud.service("billing/api/usage", token).raise_for_status().json()["records"]

    records = eventually(billed)
    assert {(one["user"], one["tenant"], one["span"]["label"]) for one in records} == {(LOGIN, "globex", "own.ipynb")}
    for page in ("usage", "usage/jobs", "jobs", "shared"):
        answer = ada.web.get(f"/services/dashboards/{page}")
        assert answer.status_code in (httpx.codes.OK, httpx.codes.NOT_FOUND), page
    assert "own.ipynb" in text_of(ada.web.get("/services/dashboards/usage").raise_for_status())
    owner = cloud.person("globex-owner")
    people = owner.web.get("/services/dashboards/tenant/people").raise_for_status().text
    assert LOGIN in people and "tenant/people/ada.lovelace%40example.org" in people
    assert LOGIN in text_of(owner.web.get("/services/dashboards/tenant").raise_for_status())
    removed = owner.hub_api("DELETE", f"forebay/tenants/globex/members/{LOGIN}")
    assert removed.status_code == httpx.codes.OK, removed.text
    stopped = eventually(lambda: ada.hub_api("GET", f"users/{LOGIN}").raise_for_status().json()["servers"] == {})
    assert stopped, "the server of who leaves is stopped"
    gone = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN, httpx.codes.SERVICE_UNAVAILABLE)  # until the hub has said so twice
    assert eventually(lambda: cloud.service("billing/api/usage", token).status_code in gone), "services remember a token for ten seconds"


@pytest.mark.parametrize("name", ["pool", "Billing", "ada lovelace", "ad\u0430@x.org", "a/b", "@ada", "ada\u202egro.x", ".", "x" * 129])
def test_names_of_services_and_names_that_look_like_others_are_no_logins(cloud: Any, name: str) -> None:
    owner = cloud.person("globex-owner")
    made = owner.hub_api("POST", "forebay/tenants/globex/invitations", {}).raise_for_status().json()
    person = cloud.visitor("nobody")
    page = person.web.get(made["path"])
    xsrf = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
    assert xsrf is not None
    headers = {"Referer": str(page.url), "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Site": "same-origin"}
    fields = {"_xsrf": xsrf[1], "name": name, "password": PASSWORD, "again": PASSWORD}
    answer = person.web.post("/hub/join", data=fields, headers=headers)
    assert answer.status_code == httpx.codes.BAD_REQUEST
    assert ("name of a service" in answer.text) is (name.lower() in ("pool", "billing"))
    owner.hub_api("DELETE", f"forebay/tenants/globex/invitations/{made['id']}").raise_for_status()
