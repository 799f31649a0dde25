"""Which proxy stands before an address, as variables of the environment say; that programs go through it is in ``tests/pool``."""

from __future__ import annotations

import base64

import pytest
from forebay.errors import NotConfigured
from forebay.service.proxy import Proxy, proxy_for

HUB = "https://hub.example.org/services/pool/"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"):
        for spelt in (name, name.lower()):
            monkeypatch.delenv(spelt, raising=False)


def basic(credentials: str) -> str:
    return f"Basic {base64.b64encode(credentials.encode()).decode()}"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("http://proxy.example.org:3128", Proxy("proxy.example.org", 3128)),
        ("proxy.example.org:3128", Proxy("proxy.example.org", 3128)),
        ("http://proxy.example.org", Proxy("proxy.example.org", 80)),
        ("http://proxy.example.org:3128/", Proxy("proxy.example.org", 3128)),
        ("http://[::1]:3128", Proxy("::1", 3128)),
        ("http://ann:p%40ss%3Aw@proxy:1", Proxy("proxy", 1, basic("ann:p@ss:w"))),
        ("http://ann:@proxy:1", Proxy("proxy", 1, basic("ann:"))),
        ("http://ann@proxy:1", Proxy("proxy", 1, basic("ann:"))),
    ],
)
def test_an_address_is_read_as_people_write_it(monkeypatch: pytest.MonkeyPatch, said: str, found: Proxy) -> None:
    monkeypatch.setenv("HTTPS_PROXY", said)
    assert proxy_for(HUB) == proxy_for("wss://hub.example.org/services/edge/x") == found
    assert proxy_for("http://hub.example.org/") is None, "which HTTP_PROXY is for"


@pytest.mark.parametrize("said", ["https://proxy:3128", "socks5://proxy:1080", "http://", "http://:3128", "http://proxy:70000", "http://proxy:x"])
def test_what_names_no_proxy_that_can_be_used_is_refused_without_its_password(monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    monkeypatch.setenv("HTTPS_PROXY", said.replace("://", "://ann:secret@", 1))
    with pytest.raises(NotConfigured, match=r"HTTPS_PROXY names no proxy that can be used; give one like http://proxy") as refused:
        proxy_for(HUB)
    assert "secret" not in str(refused.value)
    assert proxy_for("https://127.0.0.1/") is None, "what is on this host needs none"


@pytest.mark.parametrize(
    ("excepted", "straight"),
    [
        ("hub.example.org", True),
        (".example.org", True),
        ("example.org", True),
        ("hub.example.org:443", True),
        ("hub.example.org:8443", False),
        ("b.example.org", False),
        ("other.org, hub.example.org", True),
        ("*", True),
        ("", False),
    ],
)
def test_hosts_of_no_proxy_are_reached_straight(monkeypatch: pytest.MonkeyPatch, excepted: str, straight: bool) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("NO_PROXY", excepted)
    assert (proxy_for(HUB) is None) == straight
