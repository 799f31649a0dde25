"""Tokens that an installation makes for programs, in files that only its owner can read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

TOKEN_BYTES = 32
"""Of chance."""


def ensure_token(path: Path) -> str:
    """The token in this file, which is made where there is none. Raises OSError."""
    known = path.read_text(encoding="ascii").strip() if path.exists() else ""
    if known:
        return known
    made = secrets.token_hex(TOKEN_BYTES)
    draft = path.with_suffix(".new")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(f"{made}\n")
    draft.replace(path)
    return made
