"""TLS between services: the certificate that one shows, and whose certificates it takes. Files are read again once they have changed, so
that a renewed certificate needs no restart: connections that are open go on, and new ones get the new certificate.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import ssl
import stat
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509

from forebay_service.errors import SettingsError

WARN_SECONDS = 14 * 86_400
"""A certificate that ends so soon is told of in the log when it is read."""

log = logging.getLogger(__name__)


class _Files:
    """Files, and whether they have changed since they were last read."""

    def __init__(self, *paths: Path) -> None:
        self._paths = paths
        self._seen = self._states()

    def have_changed(self) -> bool:
        before, self._seen = self._seen, self._states()
        return self._seen != before

    def _states(self) -> list[tuple[int, int, int] | None]:
        return [_state(path) for path in self._paths]


def _state(path: Path) -> tuple[int, int, int] | None:
    """None where it is not there, or not to be read."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


class ServerCertificate:
    """What a listener shows. ``context`` is for its sockets: each handshake takes the files as they are then, or as they last were good."""

    def __init__(self, certificate: Path, key: Path | None = None) -> None:
        """PEM files; without ``key`` it is in ``certificate``. Raises SettingsError."""
        self._certificate, self._key = certificate, key or certificate
        self._files = _Files(self._certificate, self._key)
        self._current, self.end = self._read()
        self.context = self._current
        self.context.sni_callback = self._choose  # OpenSSL calls it where the client names no host, too

    @property
    def seconds_left(self) -> float:
        """Until it ends; below zero once it has."""
        return (self.end - datetime.now(UTC)).total_seconds()

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        if self._files.have_changed():
            try:
                self._current, self.end = self._read()
                fields = {"action": "certificate_read", "file": str(self._certificate), "ends": self.end.isoformat()}
                log.info("a renewed certificate is shown from now on", extra=fields)
            except SettingsError as error:  # a key that does not fit yet: its certificate is about to follow
                fields = {"action": "certificate_unread", "file": str(self._certificate)}
                log.warning("%s; the one before is still shown", error, extra=fields)
        connection.context = self._current

    def _read(self) -> tuple[ssl.SSLContext, datetime]:
        """Raises SettingsError."""
        try:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(self._certificate, self._key)
            mode = stat.S_IMODE(self._key.stat().st_mode)
            end = x509.load_pem_x509_certificates(self._certificate.read_bytes())[0].not_valid_after_utc
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            why = getattr(error, "strerror", None) or error
            raise SettingsError(f"tls_certificate and tls_key cannot be used ({why}): name PEM files") from None
        if mode & 0o007:
            raise SettingsError(f"tls_key {self._key} is open to everybody on this host: chmod 600 it")
        left = (end - datetime.now(UTC)).total_seconds()
        if left < WARN_SECONDS:
            told = "has ended: peers refuse it" if left < 0 else f"ends in {left / 86_400:.0f} days"
            log.warning("%s %s", self._certificate, told, extra={"action": "certificate_ends", "ends": end.isoformat()})
        return context, end


def seconds_left(certificate: ServerCertificate | None) -> float:
    """Until a service's certificate ends; infinite where it shows none."""
    return math.inf if certificate is None else certificate.seconds_left


class Trust:
    """Whose certificates are good: those of the authorities in a file, or, without one, those of the authorities that the system knows.

    ``context`` is for connections to other services. An authority that is added to the file is trusted once :meth:`refresh` was called, one
    that is taken out of it until the next start.
    """

    def __init__(self, authority: Path | None) -> None:
        """Raises SettingsError."""
        self._authority = authority
        self._files = _Files(*([] if authority is None else [authority]))
        try:
            self.context = ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise SettingsError(f"tls_authority {authority} cannot be used ({error.strerror or error}): name a PEM file") from None

    def refresh(self) -> None:
        """Takes up what was added to the file."""
        if self._authority is None or not self._files.have_changed():
            return
        try:
            self.context.load_verify_locations(self._authority)
        except OSError as error:
            fields = {"action": "authority_unread", "file": str(self._authority)}
            log.warning("the authority cannot be read (%s); those before are still trusted", error, extra=fields)


def is_local(host: str) -> bool:
    """Whether only programs on this host reach an address, or a name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_open(url: str) -> bool:
    """Whether what is sent to this address goes over a network in clear."""
    parts = urlsplit(url)
    return parts.scheme == "http" and not is_local(parts.hostname or "")
