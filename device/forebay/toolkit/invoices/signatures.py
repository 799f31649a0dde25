"""Whether a pool signed a receipt."""

from __future__ import annotations

from collections.abc import Callable

from forebay_wire.message_parts import RECEIPT_CONTEXT

from forebay.errors import NotConfigured


def verifier_of(key: str) -> Callable[[str, str], bool]:
    """A function of signature and text. Raises NotConfigured where signatures cannot be checked here, or this is no key."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise NotConfigured("Signatures cannot be checked without the package cryptography: pip install 'forebay[bills]'") from None
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
    except ValueError:
        raise NotConfigured(f"The record's file `key` holds no public key of a pool: {key[:80]!r}.") from None

    def signed(signature: str, text: str) -> bool:
        try:
            public.verify(bytes.fromhex(signature), RECEIPT_CONTEXT + text.encode())
        except (InvalidSignature, ValueError):
            return False
        return True

    return signed
