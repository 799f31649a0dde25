"""The page on threats names each account, certificate, secret and network policy that an installation has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from forebay_admin.certificates.folder import AUTHORITY
from forebay_admin.host.units import ACCOUNTS
from forebay_admin.node.units import NODE

CHECKOUT = Path(__file__).parents[2]
PAGE = "docs/operators/threat-model.md"


def first_cells(page: str, heading: str) -> set[str]:
    """What stands between backticks in the first column of the table below the heading."""
    section = page.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_each_account_is_said_to_be_for_something(manual: Any) -> None:
    assert first_cells(manual.pages[PAGE], "Accounts") == {"root", *(f"forebay-{name}" for name in ACCOUNTS), NODE}


def test_each_certificate_and_key_is_said_to_be_for_something(manual: Any) -> None:
    sources = [CHECKOUT / "admin" / "forebay_admin" / path for path in ("host/files.py", "node/head.py", "node/join.py")]
    laid = {name for source in sources for name in re.findall(r"\"([\w-]+\.(?:crt|key))\"", source.read_text(encoding="utf-8"))}
    assert {"server.key", "ca.key", "nodes-ca.key", "node.key"} <= laid
    issued = {f"certificates/{name}.{ending}" for name in (AUTHORITY, "NAME") for ending in ("crt", "key")}
    said = first_cells(manual.pages[PAGE], "Certificates and secrets") - {"secrets/*.env", "NAME.toml"}
    assert said == {f"tls/{name}" for name in laid} | issued


def test_each_network_policy_is_said_to_be_there_for_something(manual: Any) -> None:
    template = (CHECKOUT / "deploy" / "helm" / "templates" / "_network.tpl").read_text(encoding="utf-8")
    edges = template.partition('define "forebay.edges"')[2].partition("{{- end }}")[0]
    parts = set(re.findall(r"^([a-z-]+):", edges, re.MULTILINE))
    assert len(parts) == 10 and first_cells(manual.pages[PAGE], "Network") == parts
