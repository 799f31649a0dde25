"""What a user's process tries to reach, by the proxy of its sandbox and past it: each attempt with what it came to, as JSON.

The argument is a port. At each address that this host has an echo answers there, outside of the sandbox."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable
from urllib.parse import urlsplit

PORT = int(sys.argv[1])
PROXY = urlsplit(os.environ["HTTPS_PROXY"])
WORDS = b"what was said" * 20_000


def echoed(connection: socket.socket) -> str:
    connection.sendall(WORDS)
    connection.shutdown(socket.SHUT_WR)
    heard = b""
    while piece := connection.recv(65_536):
        heard += piece
    return "reached" if heard == WORDS else f"{len(heard)} bytes came back"


def asked(request: bytes, path: str = "") -> str:
    """What the proxy answers to it, and whether somebody is behind it."""
    with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as connection:
        connection.settimeout(15)
        connection.connect(path or (PROXY.hostname, PROXY.port))
        connection.sendall(request)
        head = b""
        while b"\r\n\r\n" not in head:
            piece = connection.recv(1)
            if not piece:
                return "closed"
            head += piece
        status = head.split(b" ")[1].decode()
        return echoed(connection) if status == "200" else f"{status} {connection.recv(4096).decode().strip()}"


def connects(name: str, path: str = "") -> str:
    return asked(f"CONNECT {name} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode(), path)


def directly(address: str) -> str:
    with socket.socket() as connection:
        connection.settimeout(5)
        connection.connect((address, PORT))
        return echoed(connection)


ATTEMPTS: dict[str, Callable[[], str]] = {
    "a listed name": lambda: connects(f"listed.example:{PORT}"),
    "a listed name in capitals": lambda: connects(f"LISTED.example:{PORT}"),
    "a listed private address": lambda: connects(f"10.9.8.7:{PORT}"),
    "the socket of the proxy": lambda: connects(f"listed.example:{PORT}", "/run/egress"),
    "another name": lambda: connects(f"other.example:{PORT}"),
    "a name below it": lambda: connects(f"below.listed.example:{PORT}"),
    "a name that begins so": lambda: connects(f"listed.example.evil.example:{PORT}"),
    "a name with a user": lambda: connects(f"listed.example:{PORT}@other.example:{PORT}"),
    "a listed name with a zero byte": lambda: connects(f"listed.example\0.other.example:{PORT}"),
    "another port": lambda: connects(f"listed.example:{PORT + 1}"),
    "a listed name that leads into a private network": lambda: connects(f"rebound.example:{PORT}"),
    "a listed name that leads to the metadata address": lambda: connects(f"metadata.example:{PORT}"),
    "a listed name that leads to the host": lambda: connects(f"inside.example:{PORT}"),
    "a listed name that leads to nobody": lambda: connects(f"gone.example:{PORT}"),
    "the metadata address": lambda: connects(f"169.254.169.254:{PORT}"),
    "the metadata address in IPv6": lambda: connects(f"[::ffff:169.254.169.254]:{PORT}"),
    "the metadata address as a number": lambda: connects(f"2852039166:{PORT}"),
    "the host": lambda: connects(f"127.0.0.1:{PORT}"),
    "the host's name": lambda: connects(f"localhost:{PORT}"),
    "the listed name's address": lambda: connects(f"93.184.216.34:{PORT}"),
    "a page": lambda: asked(f"GET http://listed.example:{PORT}/ HTTP/1.1\r\nHost: listed.example\r\n\r\n".encode()),
    "a head without an end": lambda: asked(b"CONNECT " + b"x" * 20_000),
    "two lines": lambda: asked(f"CONNECT listed.example:{PORT}\nCONNECT other.example:{PORT} HTTP/1.1\r\n\r\n".encode()),
    "a connection past the proxy": lambda: directly("93.184.216.34"),
    "the host past the proxy": lambda: directly("127.0.0.1"),
    "the metadata address past the proxy": lambda: directly("169.254.169.254"),
}


def tried(attempt: Callable[[], str]) -> str:
    try:
        return attempt()
    except OSError as error:
        return f"failed: {error}"


def children() -> str:
    try:
        return f"a child that is nobody's: {os.waitpid(-1, os.WNOHANG)}"
    except ChildProcessError:
        return "none"


print(json.dumps({name: tried(attempt) for name, attempt in ATTEMPTS.items()} | {"children": children()}))
