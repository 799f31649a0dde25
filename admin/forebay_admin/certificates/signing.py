"""Makes authorities, and certificates that they sign: keys are EC P-256, and certificates of X.509 (RFC 5280)."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
SERVER_DAYS = 397
"""Browsers take no certificate that is valid for longer."""
EARLIER = timedelta(minutes=5)
"""Clocks differ."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, as PEM."""

    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, folder: Path, name: str) -> Pair | None:
        """What ``NAME.crt`` and ``NAME.key`` of a folder hold; None where one is missing. Raises OSError."""
        certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
        return cls(certificate.read_bytes(), key.read_bytes()) if certificate.exists() and key.exists() else None


def new_authority(name: str) -> Pair:
    """One that may sign servers' certificates, and no other authority's."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _named(f"Forebay of {name}"[:64])
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)  # signs certificates and their revocations
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = _builder(subject, subject, key, AUTHORITY_DAYS).add_extension(x509.BasicConstraints(True, 0), critical=True)
    signed = builder.add_extension(usage, critical=True).add_extension(identifier, critical=False).sign(key, hashes.SHA256())
    return _pair(signed, key)


def new_server(name: str, authority: Pair) -> Pair:
    """A server's, of this name or address."""
    return _signed(authority, [name], [ExtendedKeyUsageOID.SERVER_AUTH], SERVER_DAYS)


def new_node(names: Sequence[str], authority: Pair, days: int = SERVER_DAYS) -> Pair:
    """Of a host or service that connects to others, and that others connect to under these names and addresses.

    It ends with the authority at the latest.
    """
    return _signed(authority, names, [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH], days)


def _signed(authority: Pair, names: Sequence[str], uses: list[x509.ObjectIdentifier], days: int) -> Pair:
    ca = x509.load_pem_x509_certificate(authority.certificate)
    ca_key = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is of another kind than those that are made here")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_named(names[0][:64]), ca.subject, key, days, ca.not_valid_after_utc)
    builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(False, None), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    return _pair(builder.add_extension(issuer, critical=False).sign(ca_key, hashes.SHA256()), key)


def is_of(certificate: bytes, name: str) -> bool:
    """Whether a server's certificate is for this name, and not about to end."""
    found = x509.load_pem_x509_certificate(certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return _alternative(name) in names and found.not_valid_after_utc > datetime.now(UTC) + timedelta(days=30)


def names_of(certificate: x509.Certificate) -> list[str]:
    """The names and addresses that a certificate is for."""
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in found]


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int, end_max: datetime | None = None
) -> x509.CertificateBuilder:
    begin = datetime.now(UTC) - EARLIER
    end = begin + timedelta(days=days)
    end = end if end_max is None else min(end, end_max)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(end)


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)
