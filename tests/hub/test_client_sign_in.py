"""`forebay login` against a real JupyterHub: what it asks, what somebody confirms in a browser, and what the token is worth."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import keyring
import pytest
from forebay.errors import NotConfigured
from forebay.service import configured, service_at
from forebay.service import sign_in as record
from forebay.service.login import hub_url
from forebay.toolkit.command import main
from forebay_hub.clients.codes import CODE_SECONDS, CODES_MAX, POLL_SECONDS, Asker, Codes, TooManyCodes, TooSoon, Unknown, written
from forebay_service.identity import COMPUTE, identity_of
from keyring.backend import KeyringBackend
from keyring.backends import fail
from people_pages import sign_in

SHOWN = re.compile(r"[B-Z]{4}-[B-Z]{4}")
ASKER = Asker("laptop", "10.1.2.3", 0.0)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An account without any setting of Forebay's, on a machine without a keyring."""
    keyring.set_keyring(fail.Keyring())
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("FOREBAY_URL", "FOREBAY_TOKEN", "JUPYTERHUB_API_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def url(hub: Any) -> str:
    return str(hub.api_url.removesuffix("/hub/api"))


@pytest.fixture
def member(hub: Any, browser: httpx.Client) -> httpx.Client:
    password = json.loads((hub.folder / "logins.json").read_text())["acme-member"]
    assert sign_in(browser, "acme-member", password).status_code == 302
    return browser


class Command:
    """`forebay login`, in a thread of its own: it waits for the browser."""

    def __init__(self, url: str) -> None:
        self.status: int | None = None
        self._thread = threading.Thread(target=self._run, args=(url,), daemon=True)
        self._thread.start()

    def _run(self, url: str) -> None:
        self.status = main(["login", "--no-browser", url])

    def end(self) -> int | None:
        self._thread.join(30)
        return self.status


@pytest.fixture
def begin(url: str, home: Path, capfd: pytest.CaptureFixture[str]) -> Callable[[], tuple[Command, str]]:
    def begin() -> tuple[Command, str]:
        command, seen, deadline = Command(url), "", time.monotonic() + 20
        while time.monotonic() < deadline:
            seen += capfd.readouterr().out
            found = SHOWN.search(seen)
            if found:
                return command, found[0]
            time.sleep(0.05)
        pytest.fail(f"no code was shown: {seen}")

    return begin


def decide(browser: httpx.Client, code: str, decision: str) -> httpx.Response:
    page = browser.get("/client", params={"code": code})
    assert page.status_code == 200, page.text
    xsrf = re.search(r'name="_xsrf" value="([^"]+)"', page.text)
    assert xsrf is not None
    headers = {"Referer": str(page.url), "Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "navigate"}
    return browser.post("/client", data={"_xsrf": xsrf[1], "code": code, "decision": decision}, headers=headers)


def test_a_confirmed_code_signs_a_machine_in_with_a_token_that_computes_and_nothing_else(
    hub: Any, url: str, home: Path, member: httpx.Client, begin: Callable[[], tuple[Command, str]]
) -> None:
    command, code = begin()
    page = member.get("/client", params={"code": code.lower().replace("-", " ")})
    assert code in page.text and "127.0.0.1" in page.text and "another address" in page.text, "who asks is shown"
    assert "signed in" in decide(member, code, "confirm").text
    assert command.end() == 0
    kept = record.kept()
    assert kept is not None and kept.user == "acme-member" and kept.pool == f"{url}/services/pool/"
    assert record.place().stat().st_mode & 0o777 == 0o600
    assert 29 * 86_400 < kept.expires_at - time.time() <= 30 * 86_400
    headers = {"Authorization": f"token {kept.secret()}"}
    told = httpx.get(f"{hub.api_url}/user", headers=headers).json()
    assert identity_of(told).scopes == {COMPUTE} and identity_of(told).tenant == "acme"
    assert {scope.partition("!")[0] for scope in told["scopes"]} == {COMPUTE, "read:users:name", "read:users:groups"}
    assert httpx.post(f"{hub.api_url}/users/acme-member/tokens", headers=headers, json={}).status_code in (403, 404)
    assert httpx.post(f"{hub.api_url}/users/acme-member/server", headers=headers).status_code in (403, 404)
    assert configured() == kept.pool and service_at(kept.pool).token == kept.secret()
    with pytest.raises(NotConfigured):
        service_at("https://elsewhere.example/services/pool/")
    assert member.get("/client", params={"code": code}).status_code == 404, "a code is good once"


def test_signing_out_revokes_the_token_and_forgets_it(
    hub: Any, member: httpx.Client, begin: Callable[[], tuple[Command, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    command, code = begin()
    decide(member, code, "confirm")
    assert command.end() == 0
    kept = record.kept()
    assert kept is not None
    assert main(["logout"]) == 0
    assert record.kept() is None and configured() is None
    headers = {"Authorization": f"token {kept.secret()}"}
    assert httpx.get(f"{hub.api_url}/user", headers=headers).status_code == 403, "the hub knows it no more"
    assert main(["logout"]) == 0
    assert "is not signed in" in capfd.readouterr().out


def test_a_refused_code_gives_no_token_and_one_sentence(
    member: httpx.Client, begin: Callable[[], tuple[Command, str]], capfd: pytest.CaptureFixture[str]
) -> None:
    command, code = begin()
    assert "not signed in" in decide(member, code, "refuse").text
    assert command.end() == 1 and record.kept() is None
    assert capfd.readouterr().err == "forebay: Somebody refused the code in the browser.\n"


def test_nobody_confirms_without_a_sign_in_a_form_of_this_page_or_a_tenant(hub: Any, browser: httpx.Client) -> None:
    begun = httpx.post(f"{hub.api_url}/forebay/logins", json={"host": "laptop"}).json()
    assert "/login" in browser.get("/client", params={"code": begun["user_code"]}).headers["location"]
    forged = browser.post("/client", data={"code": begun["user_code"], "decision": "confirm"})
    assert forged.status_code == 403
    answer = httpx.post(f"{hub.api_url}/forebay/logins/token", json={"device_code": begun["device_code"]})
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "authorization_pending"
    password = json.loads((hub.folder / "logins.json").read_text())["operator"]
    assert sign_in(browser, "operator", password).status_code == 302
    nowhere = browser.get("/client", params={"code": begun["user_code"]})
    assert nowhere.status_code == 403 and "no tenant" in nowhere.text


def test_a_token_of_another_kind_is_not_given_back_by_a_client(hub: Any) -> None:
    other = hub.new_token("acme-member")
    refused = httpx.delete(f"{hub.api_url}/forebay/logins/token", headers={"Authorization": f"token {other}"})
    assert refused.status_code == 403
    assert httpx.get(f"{hub.api_url}/user", headers={"Authorization": f"token {other}"}).status_code == 200


def test_codes_are_good_once_for_ten_minutes_and_asked_for_slowly() -> None:
    clock = Clock()
    codes = Codes(clock)
    device, waiting = codes.begin(ASKER)
    assert codes.ask(device).state == "pending"
    with pytest.raises(TooSoon):
        codes.ask(device)
    clock.now += POLL_SECONDS
    assert codes.ask(device).state == "pending"
    codes.decide(written(waiting.user_code), "ann", True)
    with pytest.raises(Unknown):
        codes.decide(waiting.user_code, "eve", True)
    assert codes.ask(device).user == "ann"
    with pytest.raises(Unknown):
        codes.ask(device)
    late, old = codes.begin(ASKER)
    clock.now += CODE_SECONDS
    for call in (lambda: codes.ask(late), lambda: codes.shown(old.user_code)):
        with pytest.raises(Unknown):
            call()
    for _ in range(CODES_MAX):
        codes.begin(ASKER)
    with pytest.raises(TooManyCodes):
        codes.begin(ASKER)


def test_one_address_begins_ten_times_a_minute_at_most(hub: Any) -> None:
    headers = {"X-Forwarded-For": "10.8.7.6"}
    statuses = [httpx.post(f"{hub.api_url}/forebay/logins", json={"host": "laptop"}, headers=headers).status_code for _ in range(11)]
    assert statuses == [200] * 10 + [429]


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("hub.example.org", "https://hub.example.org/"),
        ("https://hub.example.org/hub/home", "https://hub.example.org/"),
        ("https://example.org/jupyter/", "https://example.org/jupyter/"),
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000/"),
    ],
)
def test_a_hubs_address_is_taken_as_people_type_it(typed: str, url: str) -> None:
    assert hub_url(typed) == url


@pytest.mark.parametrize("typed", ["http://hub.example.org", "ftp://hub", "https://user@hub.example.org", "https://hub?x=1"])
def test_an_address_that_would_tell_the_token_to_others_is_refused(typed: str) -> None:
    with pytest.raises(NotConfigured):
        hub_url(typed)


class Memory(KeyringBackend):
    """A keyring of the library's own kind that lives in memory."""

    priority = -1.0  # type: ignore[assignment]  # never chosen by itself

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.held.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.held[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.held[service, username]


@pytest.fixture
def memory(home: Path) -> Memory:
    own = Memory()
    keyring.set_keyring(own)
    return own


def made(**fields: Any) -> record.Login:
    told = {"hub": "https://hub.example/", "pool": "https://hub.example/services/pool/", "user": "ann", "token": None}
    return record.Login(**{**told, "expires_at": int(time.time()) + 60, **fields})


def test_a_keyring_keeps_the_token_where_there_is_one(home: Path, memory: Memory) -> None:
    assert "keyring" in record.keep(made(), "secret")
    kept = record.kept()
    assert kept is not None and kept.secret() == "secret" and "secret" not in record.place().read_text()
    record.forget(kept)
    assert not memory.held and record.kept() is None


def test_a_sign_in_that_is_over_or_that_others_read_is_said_in_one_sentence(home: Path) -> None:
    record.keep(made(expires_at=int(time.time()) - 1), "secret")
    with pytest.raises(NotConfigured, match=r"^The sign-in at https://hub.example/ has expired; sign in again: `forebay login https://hub.example`\.$"):
        service_at("https://hub.example/services/pool/")
    record.place().chmod(0o644)
    with pytest.raises(NotConfigured, match="Others may read"):
        configured()


def test_a_url_that_is_set_to_nothing_leaves_pytorch_as_it_was(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record.keep(made(), "secret")
    assert configured() == "https://hub.example/services/pool/"
    monkeypatch.setenv("FOREBAY_URL", "")
    assert configured() is None
