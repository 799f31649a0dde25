"""The certificate that browsers see, where none is given: signed by an authority of this installation's own, which is kept."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

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
    return _signed(authority, [name], [ExtendedKeyUsageOID.SERVER_AUTH])


def new_node(names: list[str], authority: Pair) -> Pair:
    """Of a host that connects to others, and that others connect to under these names and addresses."""
    return _signed(authority, names, [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])


def _signed(authority: Pair, names: list[str], uses: list[x509.ObjectIdentifier]) -> Pair:
    ca = x509.load_pem_x509_certificate(authority.certificate)
    ca_key = serialization.load_pem_private_key(authority.key, None)
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is of another kind than those that are made here")
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_named(names[0][:64]), ca.subject, key, SERVER_DAYS)
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


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    begin = datetime.now(UTC) - EARLIER
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    return builder.serial_number(x509.random_serial_number()).not_valid_before(begin).not_valid_after(begin + timedelta(days=days))


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    plain = serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return Pair(certificate.public_bytes(serialization.Encoding.PEM), private)
