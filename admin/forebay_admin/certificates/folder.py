"""A folder with an authority, and the certificates of services and hosts that it signed: ``NAME.crt`` and ``NAME.key`` of each."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from forebay.errors import ForebayError

from forebay_admin.certificates.signing import EARLIER, Pair, names_of, new_authority, new_node

AUTHORITY = "authority"
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,61}[A-Za-z0-9])?")
"""Of a certificate, which is a file's and a host's name at once."""
HOST = re.compile(r"(\*\.)?[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?")
RENEWAL_SHARE = 3
"""A certificate is renewed once less than one part in so many of its life is left."""
FOLDER_MODE, CERTIFICATE_MODE, KEY_MODE = 0o755, 0o644, 0o600


class CertificateError(ForebayError):
    """What cannot be done with certificates; nothing was written."""


@dataclass(frozen=True)
class Entry:
    """A certificate of the folder."""

    name: str
    hosts: tuple[str, ...]
    """Names and addresses that it is for."""
    begin: datetime
    end: datetime
    fingerprint: str
    """SHA-256 of the certificate, in hexadecimal digits."""
    is_ours: bool
    """Whether the folder's authority signed it."""

    @property
    def days(self) -> int:
        """How long it is good for in all."""
        return round((self.end - self.begin) / timedelta(days=1))

    def ends_within(self, days: float | None, now: datetime) -> bool:
        """Whether it ends in so many days; None: in a third of its life."""
        left = (self.end - self.begin) / RENEWAL_SHARE if days is None else timedelta(days=days)
        return self.end - now < left

    def row(self, now: datetime) -> dict[str, object]:
        """As JSON."""
        return {
            "name": self.name,
            "hosts": list(self.hosts),
            "ends": self.end.isoformat(),
            "days_left": int((self.end - now) / timedelta(days=1)),
            "fingerprint": self.fingerprint,
            "signed_here": self.is_ours,
        }


class CertificateFolder:
    """Every method raises CertificateError where the folder is not as it must be, or cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has_authority(self) -> bool:
        """Whether an authority is there."""
        return self._file(AUTHORITY, "crt").exists() or self._file(AUTHORITY, "key").exists()

    def has(self, name: str) -> bool:
        """Whether there is a certificate of this name, which must be one."""
        if not NAME.fullmatch(name) or name == AUTHORITY:
            raise CertificateError(f"{name!r} is no name for a certificate: use a host name of letters, digits, '.' and '-'.")
        return self._file(name, "crt").exists() or self._file(name, "key").exists()

    def make_authority(self, name: str) -> Entry:
        """Makes one, also in place of another."""
        pair = new_authority(name)
        try:
            if not self.path.exists():
                self.path.mkdir(mode=FOLDER_MODE, parents=True)
        except OSError as error:
            raise _refused(self.path, error) from None
        self._write(AUTHORITY, pair)
        return _entry(AUTHORITY, pair.certificate, pair.certificate)

    def issue(self, name: str, hosts: Sequence[str], days: int) -> Entry:
        """A new certificate with a new key, also in place of another. ``hosts``: names and addresses beside ``name`` itself."""
        if days < 1:
            raise CertificateError(f"{days} days is no life for a certificate: use one day or more.")
        for host in hosts:
            if not _is_host(host):
                raise CertificateError(f"{host!r} is no host name, and no address.")
        authority = self._authority()
        now, end = datetime.now(UTC), _entry(AUTHORITY, authority.certificate, authority.certificate).end
        if end <= now:
            raise CertificateError(f"The authority in {self.path} ended on {end:%Y-%m-%d}: make another with `certificates init`.")
        pair = new_node(list(dict.fromkeys((name, *hosts))), authority, days)
        self._write(name, pair)
        return _entry(name, pair.certificate, authority.certificate)

    def renew(self, entry: Entry) -> Entry:
        """The same again, with a new key, for as long as before."""
        return self.issue(entry.name, entry.hosts, max(1, entry.days))

    def entries(self) -> list[Entry]:
        """The authority first, then the others by name."""
        try:
            found = {file.stem: file.read_bytes() for file in sorted(self.path.glob("*.crt"))}
        except OSError as error:
            raise _refused(self.path, error) from None
        if AUTHORITY not in found:
            raise self._no_authority()
        signer = found.pop(AUTHORITY)
        return [_entry(AUTHORITY, signer, signer), *(_entry(name, content, signer) for name, content in found.items())]

    def _authority(self) -> Pair:
        try:
            pair = Pair.read(self.path, AUTHORITY)
        except OSError as error:
            raise _refused(self.path, error) from None
        if pair is None:
            raise self._no_authority()
        return pair

    def _no_authority(self) -> CertificateError:
        return CertificateError(
            f"{AUTHORITY}.crt and {AUTHORITY}.key are not in {self.path}: make them with `forebay admin certificates init`, or name another"
            " folder."
        )

    def _file(self, name: str, ending: str) -> Path:
        return self.path / f"{name}.{ending}"

    def _write(self, name: str, pair: Pair) -> None:
        """The key first: whoever reads between the two finds a pair that does not fit, and reads again."""
        try:
            _replace(self._file(name, "key"), pair.key, KEY_MODE)
            _replace(self._file(name, "crt"), pair.certificate, CERTIFICATE_MODE)
        except OSError as error:
            raise _refused(self.path, error) from None


def _is_host(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return HOST.fullmatch(text) is not None
    return True


def _entry(name: str, content: bytes, authority: bytes) -> Entry:
    """``content`` and ``authority`` are certificates as PEM. Raises CertificateError."""
    try:
        certificate, signer = (x509.load_pem_x509_certificate(pem) for pem in (content, authority))
        hosts = () if name == AUTHORITY else tuple(names_of(certificate))
    except (ValueError, x509.ExtensionNotFound) as error:
        raise CertificateError(f"{name}.crt is no certificate that was made here ({error}).") from None
    begin, end = certificate.not_valid_before_utc + EARLIER, certificate.not_valid_after_utc
    return Entry(name, hosts, begin, end, certificate.fingerprint(hashes.SHA256()).hex(), _is_signed_by(certificate, signer))


def _is_signed_by(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _replace(file: Path, content: bytes, mode: int) -> None:
    """The file as a whole, for whom it was before: its owner, group and mode stay. Raises OSError."""
    before = file.stat() if file.exists() else None
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as output:
        output.write(content)
        if before is not None and (before.st_uid, before.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(output.fileno(), before.st_uid, before.st_gid)
        os.fchmod(output.fileno(), mode if before is None else before.st_mode & 0o777)
        output.flush()
        os.fsync(output.fileno())
    draft.replace(file)


def _refused(path: Path, error: OSError) -> CertificateError:
    return CertificateError(f"{error.filename or path} cannot be used ({error.strerror}).")
