"""Where billing is, for what notebooks show of budgets, and for operators' commands."""

from __future__ import annotations

import os
from dataclasses import replace

from forebay.errors import NotConfigured
from forebay.service import BILLING_VARIABLE, URL_VARIABLE, Service, beside_pool, configured, service_at


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
