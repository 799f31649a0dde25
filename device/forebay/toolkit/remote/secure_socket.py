"""TLS over a connection that one thread reads and others write: the state of OpenSSL is behind a lock, and the network outside of it."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import socket
import ssl
import threading

PIECE_BYTES = 2**18


class SecureSocket:
    """Speaks with who shows one certificate alone."""

    def __init__(self, plain: socket.socket, certificate: str) -> None:
        """``certificate``: its SHA-256, in hexadecimal digits. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the hash says more than a name would
        self._plain = plain
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._state, self._sending = threading.Lock(), threading.Lock()
        self._shake_hands()
        shown = hashlib.sha256(self._tls.getpeercert(binary_form=True) or b"").hexdigest()
        if not hmac.compare_digest(shown, certificate):
            raise OSError("the worker shows another certificate than the pool told of")

    def _shake_hands(self) -> None:
        done = False
        while not done:
            try:
                self._tls.do_handshake()
                done = True
            except ssl.SSLWantReadError:
                self._plain.sendall(self._outgoing.read())
                if not self._receive():
                    raise OSError("the worker ended the connection") from None
        self._plain.sendall(self._outgoing.read())

    def _receive(self) -> bool:
        data = self._plain.recv(PIECE_BYTES)
        with self._state:
            self._incoming.write(data) if data else self._incoming.write_eof()
        return bool(data)

    def sendall(self, data: bytes) -> None:
        """Raises OSError."""
        with self._sending:
            with self._state:
                self._tls.write(data)
                sealed = self._outgoing.read()
            self._plain.sendall(sealed)

    def recv(self, count: int) -> bytes:
        """Some bytes, ``count`` at most; none at the connection's end. Raises OSError."""
        while True:
            with self._state, contextlib.suppress(ssl.SSLWantReadError):
                try:
                    return self._tls.read(count)
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return b""
            self._receive()

    def settimeout(self, seconds: float | None) -> None:
        self._plain.settimeout(seconds)

    def shutdown(self, how: int) -> None:
        self._plain.shutdown(how)

    def close(self) -> None:
        self._plain.close()
