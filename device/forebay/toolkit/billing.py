"""Where billing is, for what notebooks show of budgets, and for operators' commands."""

from __future__ import annotations

import os
from dataclasses import replace

from forebay.errors import NotConfigured
from forebay.service import URL_VARIABLE, Service, configured, service_at

BILLING_VARIABLE = "FOREBAY_BOOKS_URL"
POOL_PATH, BILLING_PATH = "/services/pool/", "/services/billing/"


def billing() -> Service:
    """Beside the hub's pool, unless a variable says. Raises NotConfigured."""
    return replace(service_at(_billing_url()), name="billing service", variable=BILLING_VARIABLE)


def _billing_url() -> str:
    told = os.environ.get(BILLING_VARIABLE, "").strip()
    if told:
        return told
    beside = beside_pool(configured() or "")
    if beside is None:
        raise NotConfigured(f"Set {BILLING_VARIABLE} to billing's address; it cannot be told from {URL_VARIABLE}.")
    return beside


def beside_pool(pool_url: str) -> str | None:
    """Where billing is beside a hub's pool, or beside the first of several; None for a pool at another path."""
    url = pool_url.split(",")[0].strip().rstrip("/") + "/"
    return url.removesuffix(POOL_PATH) + BILLING_PATH if url.endswith(POOL_PATH) else None
