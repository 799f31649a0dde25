"""Whose a token is, asked of a real JupyterHub; and of hubs that fail."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from forebay_hub.roles import SERVER_TOKEN_SCOPES
from forebay_service.identity import (
    BILLING,
    CACHE_SECONDS,
    COMPUTE,
    OPERATE,
    SERVICE,
    TENANT,
    HubAuthenticator,
    Identity,
    IdentityRefused,
    IdentityUnavailable,
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

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hub/api"
        finally:
            server.shutdown()
            thread.join()


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
    assert identify(authenticator, token) == [None]


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
