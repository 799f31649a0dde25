"""A worker's certificate for the door of its process, as the command stream has one: made as it is needed, kept in memory alone."""

from __future__ import annotations

import hashlib
import os
import ssl
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "forebay-worker"
LASTS = timedelta(days=3650)
"""Longer than any worker. Its client knows it by its hash, and asks for no date."""


def server_context() -> tuple[ssl.SSLContext, str]:
    """What speaks TLS 1.3 at the door, and the SHA-256 of the certificate that it shows. Raises OSError."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - timedelta(days=1), now + LASTS)
    certificate = builder.sign(key, hashes.SHA256())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with os.fdopen(os.memfd_create(NAME), "wb") as file:  # `ssl` takes them from files alone
        file.write(private + certificate.public_bytes(serialization.Encoding.PEM))
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{file.fileno()}")
    return context, hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest()
