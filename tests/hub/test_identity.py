"""Whose a token is, asked of a real JupyterHub; and of hubs that fail."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import httpx
import pytest
from forebay_hub.roles import SERVER_TOKEN_SCOPES
from forebay_service.identity import (
    BILLING,
    CACHE_ENTRIES_MAX,
    CACHE_SECONDS,
    COMPUTE,
    CONFIRM_SECONDS,
    OPERATE,
    SERVICE,
    TENANT,
    HubAuthenticator,
    Identity,
    IdentityRefused,
    IdentityUnavailable,
    RefusedOnce,
    TokenAuthenticator,
    identity_of,
)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def identify(authenticator: HubAuthenticator | TokenAuthenticator, *tokens: str) -> list[Identity | None]:
    async def ask() -> list[Identity | None]:
        return [await authenticator.identify(token) for token in tokens]

    return asyncio.run(ask())


@contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """A hub that always gives this answer; yields its API's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with served(Handler) as url:
        yield url


@contextmanager
def served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of the API of a hub that this handler stands for."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hub/api"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def knowing(tokens: set[str]) -> Iterator[str]:
    """A hub that knows these tokens at present, and says 403 to all others; yields its API's address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            token = self.headers["Authorization"].split()[-1]
            body = json.dumps({"name": token, "kind": "user", "groups": [], "scopes": []}).encode()
            self.send_response(200 if token in tokens else 403)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    with served(Handler) as url:
        yield url


def test_a_members_token_carries_tenant_and_compute_alone(hub: Any) -> None:
    assert identify(HubAuthenticator(hub.api_url), hub.new_token("acme-member")) == [
        Identity("acme-member", "user", "acme", frozenset({COMPUTE}))
    ]


def test_an_admins_token_carries_the_tenant_scope(hub: Any) -> None:
    (identity,) = identify(HubAuthenticator(hub.api_url), hub.new_token("globex-owner"))
    assert identity == Identity("globex-owner", "user", "globex", frozenset({COMPUTE, TENANT}))


def test_an_operators_token_operates_and_belongs_to_no_tenant(hub: Any) -> None:
    (identity,) = identify(HubAuthenticator(hub.api_url), hub.new_token("operator"))
    assert identity == Identity("operator", "user", None, frozenset({OPERATE}))


def test_the_scopes_of_a_server_token_are_enough_to_compute(hub: Any) -> None:
    scopes = [scope for scope in SERVER_TOKEN_SCOPES if not scope.endswith("!server")]
    (identity,) = identify(HubAuthenticator(hub.api_url), hub.new_token("acme-member", scopes=scopes))
    assert identity is not None
    assert identity.tenant == "acme" and identity.may(COMPUTE) and not identity.may(SERVICE)


def test_a_token_narrowed_to_nothing_identifies_but_permits_nothing(hub: Any) -> None:
    token = hub.new_token("acme-member", scopes=["users:activity!user"])
    assert identify(HubAuthenticator(hub.api_url), token) == [Identity("acme-member", "user", "acme", frozenset())]


def test_a_member_cannot_ask_for_more_than_it_holds(hub: Any) -> None:
    (identity,) = identify(HubAuthenticator(hub.api_url), hub.new_token("acme-member"))
    assert identity is not None
    assert not identity.may(OPERATE) and not identity.may(TENANT) and not identity.may(SERVICE)


def test_an_expired_token_is_nobody(hub: Any) -> None:
    token = hub.new_token("acme-member", expires_in=1)
    authenticator = HubAuthenticator(hub.api_url)
    assert identify(authenticator, token) != [None]
    time.sleep(1.2)  # the hub's own clock decides
    assert identify(HubAuthenticator(hub.api_url), token) == [None]


def test_a_revoked_token_works_no_longer_than_the_cache_lasts(hub: Any) -> None:
    clock = Clock()
    authenticator = HubAuthenticator(hub.api_url, clock)
    token = hub.new_token("acme-owner")
    assert identify(authenticator, token) != [None]
    for known in hub.ask("GET", "users/acme-owner/tokens")["api_tokens"]:
        hub.ask("DELETE", f"users/acme-owner/tokens/{known['id']}")
    assert identify(authenticator, token) != [None]
    clock.now += CACHE_SECONDS
    with pytest.raises(RefusedOnce, match="asked again before that counts"):
        identify(authenticator, token)
    clock.now += CONFIRM_SECONDS - 1
    with pytest.raises(RefusedOnce):
        identify(authenticator, token)
    clock.now += 1
    assert identify(authenticator, token, token) == [None, None]


@contextmanager
def without_tokens(hub: Any) -> Iterator[None]:
    """The hub's database does not answer for tokens, as where its disk is full or its server is away."""
    with sqlite3.connect(hub.folder / "hub.sqlite", isolation_level=None, timeout=30) as database:
        database.execute("alter table api_tokens rename to away")
        try:
            yield
        finally:
            database.execute("alter table away rename to api_tokens")
    database.close()


def test_a_hub_whose_database_does_not_answer_ends_no_session(hub: Any) -> None:
    """JupyterHub says 403 then, as to a bad token; for an hour nobody takes that for an answer."""
    clock = Clock()
    authenticator, token = HubAuthenticator(hub.api_url, clock, hub.admin_token), hub.new_token("acme-owner")
    before = identify(authenticator, token)
    assert before != [None]
    with without_tokens(hub):
        assert httpx.get(f"{hub.api_url}/user", headers={"Authorization": f"token {token}"}).status_code == 403
        for _ in range(4):
            clock.now += 20 * CONFIRM_SECONDS
            for one in (token, "never-seen"):
                with pytest.raises(IdentityUnavailable, match="this service's own too: its database does not answer"):
                    identify(authenticator, one)
        assert "its database does not answer" in str(ill(authenticator))
        assert httpx.get(f"{hub.api_url}/forebay/health").json()["troubles"]["database"].startswith("The hub's database does not answer")
    clock.now += CACHE_SECONDS
    assert identify(authenticator, token, "never-seen") == [*before, None]
    assert ill(authenticator) is None


def ill(authenticator: HubAuthenticator) -> str | None:
    """What a look at the hub finds."""

    async def look() -> str | None:
        authenticator.ill  # noqa: B018 # begins the look
        if authenticator._look is not None:
            await authenticator._look
        return authenticator.ill

    return asyncio.run(look())


def test_a_hub_that_fails_between_two_looks_does_not_refuse_twice() -> None:
    """While the disk is full JupyterHub goes on knowing the tokens whose use it noted less than half a minute ago: ours may be one."""
    clock, known = Clock(), {"own", "good"}
    with knowing(known) as url:
        authenticator = HubAuthenticator(url, clock, "own")
        assert identify(authenticator, "good") != [None]
        for failing in ({"own"}, set(), {"own"}):  # the second refusal in a row, without a good answer between, has to be confirmed
            known.clear()
            known |= failing
            clock.now += CACHE_SECONDS
            with pytest.raises(IdentityUnavailable):
                identify(authenticator, "good")
        known |= {"own", "good"}
        assert identify(authenticator, "good") != [None]
        known.discard("good")
        clock.now += CONFIRM_SECONDS
        with pytest.raises(RefusedOnce):  # what was refused before the good answer counts no more
            identify(authenticator, "good")
        clock.now += CONFIRM_SECONDS
        assert identify(authenticator, "good") == [None]


def test_a_token_that_was_never_good_is_refused_at_once_by_a_hub_that_is_well() -> None:
    with knowing({"own"}) as url:
        assert identify(HubAuthenticator(url, own_token="own"), "bad") == [None]


def test_a_flood_of_bad_tokens_makes_nobody_forget_the_good_ones() -> None:
    clock, known = Clock(), {"own", "good"}
    with knowing(known) as url:
        authenticator = HubAuthenticator(url, clock, "own")
        assert identify(authenticator, "good") != [None]
        for number in range(CACHE_ENTRIES_MAX + 1):
            authenticator._remember(f"bad-{number}", None)
        known.discard("good")
        with pytest.raises(RefusedOnce):
            identify(authenticator, "good")


def test_a_foreign_token_is_nobody(hub: Any) -> None:
    assert identify(HubAuthenticator(hub.api_url), "c" * 32, "") == [None, None]


def test_a_hub_that_is_down_is_not_mistaken_for_a_bad_token() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        authenticator = HubAuthenticator(f"http://127.0.0.1:{unused.getsockname()[1]}/hub/api")
        with pytest.raises(IdentityUnavailable, match=r"cannot be reached .* try again"):
            identify(authenticator, "any")


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_failing_hub_is_not_mistaken_for_a_bad_token(status: int) -> None:
    with answering(status, b"") as url, pytest.raises(IdentityUnavailable, match=f"answered {status}"):
        identify(HubAuthenticator(url), "any")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}"])
def test_an_answer_that_is_no_hubs_is_refused(body: bytes) -> None:
    with answering(200, body) as url, pytest.raises(IdentityUnavailable, match="cannot be understood"):
        identify(HubAuthenticator(url), "any")


def test_a_known_token_costs_the_hub_one_question() -> None:
    model = json.dumps({"name": "a", "kind": "user", "groups": [], "scopes": []}).encode()
    clock = Clock()
    with answering(200, model) as url:
        authenticator = HubAuthenticator(url, clock)
        before = identify(authenticator, "known")
    assert identify(authenticator, "known") == before  # the hub is gone by now


def test_a_login_has_the_tenant_of_its_one_group_and_no_rights_in_another() -> None:
    """Groups of other names mean nothing; a scope for a tenant that the login has left counts no more."""
    scopes = [f"{COMPUTE}!user=a", "read:users", "custom:other:x", f"{TENANT}!group=tenant-b", f"{BILLING}!group=tenant-c"]
    identity = identity_of({"name": "a", "kind": "user", "groups": ["a", "tenant-b", "z"], "scopes": scopes})
    assert identity == Identity("a", "user", "b", frozenset({COMPUTE, TENANT}))
    moved = identity_of({"name": "a", "kind": "user", "groups": ["tenant-c"], "scopes": scopes})
    assert moved == Identity("a", "user", "c", frozenset({COMPUTE, BILLING}))
    left = identity_of({"name": "a", "kind": "user", "groups": ["b"], "scopes": scopes})
    assert left == Identity("a", "user", None, frozenset({COMPUTE})) and not left.sees_tenant


def test_a_login_in_two_tenants_is_refused_with_both_names() -> None:
    model = {"name": "ann", "kind": "user", "groups": ["tenant-bolt", "tenant-acme"], "scopes": []}
    with pytest.raises(IdentityRefused, match=r"ann is in the groups of the tenants acme and bolt; an operator must"):
        identity_of(model)
    with answering(200, json.dumps(model).encode()) as url, pytest.raises(IdentityRefused, match="acme and bolt"):
        identify(HubAuthenticator(url), "any")


def test_a_fixed_table_knows_its_tokens_and_no_others() -> None:
    me = Identity("me", "user", None, frozenset({COMPUTE}))
    assert identify(TokenAuthenticator({"right": me}), "right", "wrong", "rght") == [me, None, None]
