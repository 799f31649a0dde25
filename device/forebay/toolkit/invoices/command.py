"""``forebay bill``: gets invoices, checks them by the receipts that this machine keeps, and asks a pool for those that it lacks."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from forebay.errors import NotConfigured
from forebay.service import Service
from forebay.toolkit import pool
from forebay.toolkit.billing import billing

if TYPE_CHECKING:
    from forebay_wire.message_parts import SignedReceipt

BILL = "Checks what you are billed by the receipts of your leases, which the pool signs and this machine keeps."
VERIFY = """\
Recomputes an invoice, or a draft, from the receipts that this machine keeps of your leases, and says everything that differs. It asks
nobody. Exit status: 0 where all lines of the users whose records are here are as their receipts say, 3 where something is not, 1 where
nothing could be checked.
"""
FETCH = """\
Asks the pool for receipts of a month that the record lacks: of programs that were killed, or that ran on another machine.
"""
GET = "Gets an invoice by its number, or the drafts of an open month, in JSON; for the tenant's owners and who pays its bills."
FOUND = 3


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand, which has subcommands of its own."""
    bill = commands.add_parser("bill", help="check invoices by the receipts that this machine keeps", description=BILL)
    actions = bill.add_subparsers(title="commands", required=True, metavar="COMMAND")
    raw = argparse.RawDescriptionHelpFormatter
    verifying = actions.add_parser("verify", help="check an invoice", description=VERIFY, formatter_class=raw)
    verifying.add_argument("invoice", type=Path, nargs="+", help="its file, in JSON; for late usage with those of earlier months")
    verifying.add_argument("--record", type=Path, action="append", metavar="FOLDER", help="check by this record; else by all that are here")
    verifying.add_argument("--json", action="store_true", help="print what was found as JSON")
    verifying.set_defaults(perform=perform_verify)
    getting = actions.add_parser("get", help="get an invoice, or a draft, from billing, as JSON", description=GET)
    getting.add_argument("invoice", help="its number, or an open month as 2026-11 (UTC)")
    getting.add_argument("-o", "--output", type=Path, metavar="FILE", help="write it there; else it is printed")
    getting.set_defaults(perform=perform_get)
    fetching = actions.add_parser("fetch", help="ask the pool for receipts that the record lacks", description=FETCH, formatter_class=raw)
    fetching.add_argument("month", nargs="?", default=f"{datetime.now(UTC):%Y-%m}", help="as 2026-11, in UTC; without it this month")
    fetching.set_defaults(perform=perform_fetch)


def perform_verify(arguments: argparse.Namespace) -> int:
    """Prints what differs, and what was checked."""
    from forebay.service.receipts import Records
    from forebay.service.record import Record
    from forebay.toolkit.invoices import invoice, verifier

    invoices = [one for path in arguments.invoice for one in invoice.read(path)]
    records = [Record(folder) for folder in arguments.record] if arguments.record else Records.configured().all()
    outcome = verifier.verify(invoices, records)
    if arguments.json:
        told = {"findings": [asdict(one) for one in outcome.findings], "lines": outcome.lines, "unproved": outcome.unproved}
        sys.stdout.write(f"{json.dumps(told, indent=2)}\n")
        return FOUND if outcome.findings else 0
    for finding in outcome.findings:
        sys.stdout.write(f"{finding.fault}: {finding.place}: {finding.text}\n")
    for evidence in outcome.records:
        lines = verifier.counted(evidence.lines, "line")
        sys.stdout.write(f"Checked by the record of {evidence.user}: {lines}; the pool's key is {evidence.key}.\n")
    for text in outcome.unproved:
        sys.stdout.write(f"{text}.\n")
    names = ", ".join(one.name for one in invoices)
    if outcome.findings:
        sys.stdout.write(f"{names}: {verifier.counted(len(outcome.findings), 'difference')}.\n")
        return FOUND
    lines = verifier.counted(outcome.lines, "line")
    sys.stdout.write(f"{names}: {lines} of leases, equal to the receipts to the nano-unit.\n")
    return 0


def perform_get(arguments: argparse.Namespace) -> int:
    """Prints or writes it as billing gives it. Raises OSError."""
    named = arguments.invoice
    path = f"api/drafts?month={named}" if re.fullmatch(r"[0-9]{4}-[0-9]{2}", named) else f"api/invoices/{quote(named, safe='')}"
    text = f"{json.dumps(billing().get(path), indent=2, ensure_ascii=False)}\n"
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")
    return 0


def perform_fetch(arguments: argparse.Namespace) -> int:
    """Adds what the record lacks."""
    from forebay.service.receipts import OFF, VARIABLE, Records

    service, records = pool.remote(), Records.configured()
    if service is None:
        raise NotConfigured(pool.NO_SERVICE)
    if records.root is None:
        raise NotConfigured(f"No receipts are kept: {VARIABLE} is `{OFF}`.")
    key, receipts = fetched(service, arguments.month)
    users = {json.loads(one.text)["user"] for one in receipts if '"user":' in one.text}
    for user in users:
        record = records.record(key, user)
        record.pin(key)
        kept = {parts[2] for line in record.lines() if (parts := line.parts) is not None}
        new = [one for one in receipts if one.text not in kept]
        record.append(new)
        sys.stdout.write(f"{len(new)} of {len(receipts)} receipts of {arguments.month} were not in {record.folder}, and are now.\n")
    if not users:
        sys.stdout.write(f"The pool has no receipts of {arguments.month} for you.\n")
    return 0


def fetched(service: Service, month: str) -> tuple[str, list[SignedReceipt]]:
    """The pool's key, and its receipts of the user's leases of a month that are over. Raises PoolUnreachable, PoolRefused."""
    from forebay_wire.message_parts import SignedReceipt

    key, receipts = "", list[SignedReceipt]()
    for page in _pages(service, month):
        key = page["key"]
        known = set(receipts)
        receipts += (receipt for row in page["receipts"] if (receipt := SignedReceipt(**row)) not in known)
    return key, receipts


def _pages(service: Service, month: str) -> Iterator[dict[str, Any]]:
    after: str | None = ""
    while after is not None:
        asked = {"month": month} | ({"after": after} if after else {})
        page = pool.row(service, service.get(f"api/receipts?{urlencode(asked)}"), "receipts")
        yield page
        after = page["next"]
