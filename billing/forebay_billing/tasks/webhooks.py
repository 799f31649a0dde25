"""Webhooks, signed as Standard Webhooks (standardwebhooks.com) says: HMAC-SHA256 over id, timestamp and body.

Where a webhook goes was typed by a tenant, so it may be aimed at what only we can reach. Names are resolved here, every address must be
public, and the connection goes to the addresses that were looked at; redirects are not followed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import socket
from base64 import b64decode, b64encode
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.netutil import DefaultLoopResolver, Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from forebay_billing.errors import InvalidRequest

HTTPS_PORT = 443
CONNECT_SECONDS = 5.0
REQUEST_SECONDS = 10.0
ANSWER_BYTES_MAX = 64 * 1024
CLIENTS_MAX = 8
_SECRET_PREFIX = "whsec_"  # noqa: S105 - says what follows
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_NOT_PUBLIC_4 = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
        "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
    )
)  # fmt: skip
"""IANA's registry of special addresses (iana.org/assignments/iana-ipv4-special-registry) and multicast, kept here: what Python's own
list takes for global changes with its version, and leaves gaps, such as 192.0.0.192, where some clouds answer with their secrets."""
_PUBLIC_6 = ipaddress.ip_network("2000::/3")
"""What is given to networks (iana.org/assignments/ipv6-address-space) …"""
_NOT_PUBLIC_6 = tuple(ipaddress.ip_network(text) for text in ("2001::/23", "2001:db8::/32", "3fff::/20"))
"""… but for protocols and documentation."""
_LOCAL_NAMES = ("localhost", "local", "internal", "home.arpa")
"""Names below these are of no public host (RFC 6761, 6762, 8375)."""


class Undelivered(Exception):
    """What did not arrive; ``str(error)`` is one sentence without secrets."""


def signature(secret: str, id: str, timestamp_seconds: int, body: bytes) -> str:
    """The header ``webhook-signature``."""
    key = b64decode(secret.removeprefix(_SECRET_PREFIX))
    signed = f"{id}.{timestamp_seconds}.".encode() + body
    return "v1," + b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def check_target(url: str, private_allowed: bool, ports: Collection[int]) -> None:
    """Refuses what can be seen to be wrong before any name is resolved. Where private addresses are allowed, all ports are.

    Raises InvalidRequest.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise InvalidRequest("target: the URL cannot be read.") from None
    schemes = ("https", "http") if private_allowed else ("https",)
    if parts.scheme not in schemes or not host or port == 0 or not url.isascii() or any(mark <= " " for mark in url):
        raise InvalidRequest(f"target: give a URL that begins with {' or '.join(schemes)}://.")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise InvalidRequest("target: a URL without a user, a password and a fragment; webhooks prove themselves by their signature.")
    if not private_allowed and (port or HTTPS_PORT) not in ports:
        raise InvalidRequest(f"target: webhooks go to {_listed(ports)}; an operator may allow other ports (setting webhook_ports).")
    if not private_allowed and not _may_be_public(host):
        raise InvalidRequest(_not_public(host))


async def check_resolved(url: str, private_allowed: bool) -> None:
    """Refuses a name that leads to an address that is not public; one that leads nowhere may do so later. Raises InvalidRequest."""
    host = urlsplit(url).hostname
    if private_allowed or host is None:
        return
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await PublicResolver().resolve(host, HTTPS_PORT)
    except NotPublic:
        raise InvalidRequest(_not_public(host)) from None
    except (OSError, TimeoutError, UnicodeError):
        return


def _listed(ports: Collection[int]) -> str:
    return f"port {' or '.join(map(str, sorted(ports)))}" if ports else "no port"


def _not_public(host: str) -> str:
    return f"target: {host} is not a public address; an operator may allow such (setting alert_private_addresses)."


def _may_be_public(host: str) -> bool:
    """Whether the host could be one, before any name is resolved; numbers in all notations that resolvers know are addresses."""
    name = host.rstrip(".").lower()
    if any(name == local or name.endswith(f".{local}") for local in _LOCAL_NAMES):
        return False
    try:
        return is_public(ipaddress.ip_address(name))
    except ValueError:
        pass
    try:
        return is_public(ipaddress.IPv4Address(socket.inet_aton(name)))
    except OSError:
        return True


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Whether anybody on the internet could reach it; an IPv4 address inside an IPv6 one counts as itself."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        return address in _PUBLIC_6 and not any(address in network for network in _NOT_PUBLIC_6)
    return not any(address in network for network in _NOT_PUBLIC_4)


class NotPublic(OSError):
    """An address that only we can reach, or a port that is not allowed; the message says which."""


class PublicResolver(Resolver):
    """Resolves names to public addresses only: one that is not makes the whole answer suspect. What it returns is connected to.

    A port that is not allowed is refused, too: channels may be older than the rule.
    """

    def initialize(self, ports: Collection[int] = (HTTPS_PORT,)) -> None:
        self._resolver = DefaultLoopResolver()
        self._ports = ports

    async def resolve(self, host: str, port: int, family: socket.AddressFamily = socket.AF_UNSPEC) -> list[tuple[int, Any]]:
        if port not in self._ports:
            raise NotPublic(f"port {port} is not one that webhooks may go to; these go to {_listed(self._ports)}")
        found: list[tuple[int, Any]] = await self._resolver.resolve(host, port, family)
        for _, address in found:
            if not is_public(ipaddress.ip_address(str(address[0]).partition("%")[0])):
                raise NotPublic(f"{host} leads to {address[0]}, which is not a public address")
        return found


class Webhooks:
    """Sends webhooks until :meth:`close`."""

    def __init__(self, private_allowed: bool, ports: Collection[int] = (HTTPS_PORT,)) -> None:
        resolver = DefaultLoopResolver() if private_allowed else PublicResolver(ports=ports)
        self._client = SimpleAsyncHTTPClient(
            force_instance=True, max_clients=CLIENTS_MAX, resolver=resolver, max_buffer_size=ANSWER_BYTES_MAX,
            max_body_size=ANSWER_BYTES_MAX,
        )  # fmt: skip

    def close(self) -> None:
        """Lets go of the connections."""
        self._client.close()

    async def send(self, url: str, secret: str | None, id: str, timestamp_seconds: int, body: bytes) -> None:
        """Delivers ``body``, signed where there is a secret. Raises Undelivered unless it is taken with a status of 2xx."""
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "forebay-billing",
            "webhook-id": id,
            "webhook-timestamp": str(timestamp_seconds),
        }
        if secret is not None:
            headers["webhook-signature"] = signature(secret, id, timestamp_seconds, body)
        request = HTTPRequest(
            url, method="POST", headers=headers, body=body, follow_redirects=False, connect_timeout=CONNECT_SECONDS,
            request_timeout=REQUEST_SECONDS, decompress_response=False,
        )  # fmt: skip
        try:
            response = await self._client.fetch(request, raise_error=False)
        except (HTTPClientError, OSError, ValueError) as error:
            raise Undelivered(f"The webhook's address could not be reached ({error}).") from None
        if not 200 <= response.code < 300:
            why = f" ({response.error})" if response.error is not None and response.code >= 599 else ""
            raise Undelivered(f"The webhook's address answered {response.code}{why}.")
