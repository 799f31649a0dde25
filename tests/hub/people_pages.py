"""What tests of people ask the hub for: its API as somebody, and its pages as their browser."""

from __future__ import annotations

import re
from typing import Any

import httpx

PASSWORD = "correct horse battery"


class Caller:
    """Somebody with a token, who asks the hub's API."""

    def __init__(self, hub: Any, name: str, **fields: object) -> None:
        self._url, self._headers = f"{hub.api_url}/forebay", {"Authorization": f"token {hub.new_token(name, **fields)}"}

    def ask(self, method: str, path: str, body: object = None) -> httpx.Response:
        return httpx.request(method, f"{self._url}/{path}", json=body, headers=self._headers, timeout=60)

    def invite(self, tenant: str = "acme", **body: object) -> dict[str, Any]:
        made = self.ask("POST", f"tenants/{tenant}/invitations", body)
        assert made.status_code == 201, made.text
        found: dict[str, Any] = made.json()
        return found

    def open_invitations(self) -> set[int]:
        return {one["id"] for one in self.ask("GET", "tenants/acme/invitations").json()["invitations"]}

    def members(self, tenant: str = "acme") -> dict[str, str]:
        rows = self.ask("GET", f"tenants/{tenant}/members").json()["members"]
        return {row["name"]: row["role"] for row in rows}


def open_link(browser: httpx.Client, made: dict[str, Any]) -> httpx.Response:
    return browser.get(made["path"].removeprefix("/hub"), follow_redirects=True)


def press(browser: httpx.Client, page: httpx.Response, **fields: str) -> httpx.Response:
    xsrf = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
    assert xsrf is not None, page.text
    headers = {"Referer": str(page.url), "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
    return browser.post("/join", data={"_xsrf": xsrf[1], **fields}, headers=headers)


def sign_in(browser: httpx.Client, name: str, password: str) -> httpx.Response:
    page = browser.get("/login")
    xsrf = next(cookie.value for cookie in browser.cookies.jar if cookie.name == "_xsrf")
    headers = {"Referer": str(page.url), "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
    return browser.post("/login", data={"username": name, "password": password, "_xsrf": xsrf or ""}, headers=headers)


def begin(browser: httpx.Client, made: dict[str, Any], name: str) -> httpx.Response:
    return press(browser, open_link(browser, made), name=name, password=PASSWORD, again=PASSWORD)
