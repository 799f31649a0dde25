"""Signing in through JupyterHub where any of several services may answer the next request of a browser.

JupyterHub's library keeps in memory where a browser that signs in wanted to go, and the secret that the service proves itself with at the
end (PKCE, RFC 7636). Here the first travels with the browser, signed, and the second is made of it with a key. The keys are made of the
service's token, so that all services of an installation have the same ones, before and after a restart.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

from jupyterhub.services.auth import HubOAuth
from tornado.web import create_signed_value, decode_signed_value

NEXT_CHARS_MAX = 512
"""A longer address is forgotten, and the visitor comes to the first page: a browser sends the cookies of all sign-ins that it began."""
NONCE_BYTES = 16
NONCE_CHARS = 22
_STATE = "oauth-state"
_SECONDS_A_DAY = 86_400


def key_of(token: str, use: str) -> bytes:
    """A key for one use, which whoever has the service's token can make."""
    return hmac.new(token.encode(), f"forebay dashboards {use}".encode(), hashlib.sha256).digest()


class SignIn(HubOAuth):  # type: ignore[misc] # JupyterHub has no type information
    """As JupyterHub's own, without a memory of the browsers that are on their way."""

    def generate_pkce_code_challenge(self, method: str = "S256") -> tuple[str, str, str]:
        """A secret that :meth:`get_code_verifier` can make again of its beginning."""
        if method != "S256":
            raise ValueError(f"Only the method S256 is supported, not {method!r}.")
        verifier = self._verifier(secrets.token_urlsafe(NONCE_BYTES))
        return verifier, _text(hashlib.sha256(verifier.encode()).digest()), method

    def generate_state(self, next_url: str | None = None, **extra_state: Any) -> str:
        """What JupyterHub hands back: where to go, the cookie's name, and the beginning of the secret."""
        state = {"cookie_name": extra_state.get("cookie_name"), "nonce": secrets.token_urlsafe(NONCE_BYTES)}
        if next_url is not None and len(next_url) <= NEXT_CHARS_MAX:
            state["next_url"] = next_url
        if "code_verifier" in extra_state:
            state["proof"] = extra_state["code_verifier"][:NONCE_CHARS]
        return _text(create_signed_value(self._key("states"), _STATE, json.dumps(state)))

    def clear_oauth_state(self, state_id: str) -> None:
        """Nothing is kept here; the cookie is cleared, and JupyterHub takes a code once."""

    def get_code_verifier(self, state_id: str = "", /) -> str | None:
        """The secret whose beginning the state has."""
        nonce = self._decode_state(state_id).get("proof")
        return None if nonce is None else self._verifier(nonce)

    def _decode_state(self, state_id: str, /) -> dict[str, str]:
        """Empty for a state that we did not make, or too long ago."""
        try:
            signed = urlsafe_b64decode(state_id + "=" * (-len(state_id) % 4))
        except ValueError:
            return {}
        days = self.oauth_state_max_age / _SECONDS_A_DAY
        value = decode_signed_value(self._key("states"), _STATE, signed, max_age_days=days)
        found: dict[str, str] = {} if value is None else json.loads(value)
        return found

    def _verifier(self, nonce: str) -> str:
        return nonce + _text(hmac.new(self._key("proofs"), nonce.encode(), hashlib.sha256).digest())

    def _key(self, use: str) -> bytes:
        return key_of(self.api_token, use)


def _text(value: bytes) -> str:
    return urlsafe_b64encode(value).decode("ascii").rstrip("=")
