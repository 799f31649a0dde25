"""What users' processes reach beyond their sandboxes: a proxy that opens connections to listed places alone.

A sandbox has no network but a loopback interface of its own. Where an operator lists places, this proxy listens outside of it, at a socket
in a file that the sandbox sees. It takes CONNECT (RFC 9110, section 9.3.6) for a listed name and port, and nothing else. It looks names up
itself, and connects to the address that it has judged: a name that leads into a private network, to this host or to where clouds tell
hosts their credentials is refused, whatever its lookup says next.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import os
import re
import socket
from collections.abc import Collection

from forebay_wire.remote.places import METADATA, Address, place, plain

from forebay_worker.remote.tunnel import join

LOG = logging.getLogger("forebay.worker")
HEAD_BYTES_MAX = 8192
HEAD_SECONDS_MAX, CONNECT_SECONDS_MAX = 10.0, 10.0
CONNECTIONS_MAX = 128
"""At a time, for each process."""
TRANSLATED = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32")))
"""Addresses of IPv6 that lead to others of IPv4."""
REQUEST = re.compile(rb"CONNECT ([!-~]{1,300}) HTTP/1\.[01]")


class Refused(Exception):
    """The connection is not made."""

    def __init__(self, status: str, why: str) -> None:
        super().__init__(why)
        self.status = status


class Egress:
    """The proxy of one process."""

    def __init__(self, path: str, listed: Collection[str]) -> None:
        """``listed``: as the pool's setting ``process_egress`` has them, ``host:port``."""
        self.path = path
        self._listed = frozenset(listed)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Raises OSError."""
        self._server = await asyncio.start_unix_server(self._welcome, self.path, limit=HEAD_BYTES_MAX)
        os.chmod(self.path, 0o666)  # noqa: S103 the folder above it is passed by its sandbox alone

    def close(self) -> None:
        """Ends all connections."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            out = await self._connected(reader)
        except Refused as refused:
            LOG.info("a process is not let out: %s", refused, extra={"action": "egress_refused"})
            text = f"{refused}\n".encode()
            writer.write(f"HTTP/1.1 {refused.status}\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
            with contextlib.suppress(OSError):
                await writer.drain()
            writer.close()
        except BaseException:
            writer.transport.abort()
            raise
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await join((reader, writer), out)

    async def _connected(self, reader: asyncio.StreamReader) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the place that is asked for. Raises Refused."""
        if len(self._tasks) > CONNECTIONS_MAX:
            raise Refused("429 Too Many Requests", f"A process may have {CONNECTIONS_MAX} connections at a time.")
        try:
            async with asyncio.timeout(HEAD_SECONDS_MAX):
                head = await reader.readuntil(b"\r\n\r\n")
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            raise Refused("400 Bad Request", "No request came.") from None
        host, _, port = place_in(head.partition(b"\r\n")[0], self._listed).rpartition(":")
        try:
            async with asyncio.timeout(CONNECT_SECONDS_MAX):
                found = await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
                return await self._reached(host, int(port), [address[0] for *_, address in found])
        except (OSError, TimeoutError, UnicodeError) as error:
            raise Refused("502 Bad Gateway", f"{host}:{port} cannot be reached: {error or 'it does not answer'}") from None

    async def _reached(self, host: str, port: int, addresses: list[str | int]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """By the first address that may be gone to, and answers. Raises Refused, OSError."""
        judged = [(str(address), why_not(str(address), host)) for address in dict.fromkeys(addresses)]
        reasons, failed = [why for _, why in judged if why], OSError("it has no address")
        for address, why in judged:
            if not why:
                try:
                    out = await asyncio.open_connection(address, port)
                except OSError as error:
                    failed = error
                else:
                    LOG.info("a process is let out to %s:%d", host, port, extra={"action": "egress", "address": address})
                    return out
        if reasons and len(reasons) == len(judged):
            raise Refused("403 Forbidden", f"{host} leads to {reasons[0]}.")
        raise failed


def place_in(request: bytes, listed: Collection[str]) -> str:
    """The listed place that the first line of a request asks for. Raises Refused for one that is not listed, and for what is no CONNECT."""
    asked = REQUEST.fullmatch(request)
    if asked is None:
        raise Refused("405 Method Not Allowed", "Only CONNECT is served: use https.")
    name = asked[1].decode("ascii")
    try:
        found = place(name)
    except ValueError as error:
        raise Refused("403 Forbidden", f"{error}.") from None
    if found not in listed:
        raise Refused("403 Forbidden", f"{name} is none of the places that processes may reach here: {', '.join(sorted(listed))}.")
    return found


def why_not(address: str, host: str) -> str:
    """What an address is that nobody is let out to; empty for others. An address that an operator listed itself may be a private one."""
    try:
        found: Address = plain(ipaddress.ip_address(address.partition("%")[0]))
    except ValueError:
        return f"{address}, which is no address"
    if found in METADATA or found.is_link_local:
        return f"{found}, where clouds tell hosts their credentials"
    if found.is_loopback or found.is_unspecified or found.is_multicast or found.is_reserved:
        return f"{found}, which is this host, or nobody's"
    if any(found in network for network in TRANSLATED):
        return f"{found}, which stands for another address"
    return f"{found}, which is in a private network" if not found.is_global and host.strip("[]") != str(found) else ""
