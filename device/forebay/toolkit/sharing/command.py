"""``forebay share``, ``shares`` and ``unshare``: notebooks that others of the tenant may read by a link, as a page that can run nothing."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from forebay.errors import ForebayError, NotConfigured
from forebay.service import URL_VARIABLE, Service
from forebay.toolkit import pool, table
from forebay.toolkit.jobs.listing import time_of
from forebay.toolkit.sharing.page import page_of

DESCRIPTION = """\
Makes a page of a notebook as it is saved, with its outputs, and prints a link to it. Members of your tenant who have the link may read it;
nobody can run or change it there. What you change afterwards is not in it: share it again.
"""
DAYS = 30
PAGE_BYTES_MAX = 8 * 2**20
"""What the pool takes."""
PATH = "api/shared-notebooks"

Row = Mapping[str, Any]


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the three subcommands."""
    sharing = commands.add_parser(
        "share", help="let others of your tenant read a notebook by a link", description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    sharing.add_argument("notebook", type=Path, help="the notebook's file")
    sharing.add_argument("--days", type=int, default=DAYS, metavar="COUNT", help=f"for how long it may be read ({DAYS}; 90 at most)")
    sharing.set_defaults(perform=perform_share)
    listing = commands.add_parser("shares", help="list notebooks that you share", description="Lists the notebooks that you share.")
    listing.add_argument("--everybody", action="store_true", help="all of the tenant's, for its owners; all there are, for operators")
    listing.add_argument("--json", action="store_true", help="print JSON instead of a table")
    listing.set_defaults(perform=perform_shares)
    removal = commands.add_parser("unshare", help="take a shared notebook back", description="Its link opens nothing any more.")
    removal.add_argument("number", type=int, help="its number, as `forebay shares` shows it")
    removal.set_defaults(perform=perform_unshare)


def perform_share(arguments: argparse.Namespace) -> int:
    """Prints the link."""
    row = share(_service(), arguments.notebook, arguments.days)
    sys.stdout.write(
        f"{row['name']} can be read until {time_of(row['expires_at_ns'])} by members of {row['tenant']} who have this link:\n"
        f"{link_of(row, os.environ)}\n"
        f"`forebay unshare {row['id']}` takes it back.\n"
    )
    return 0


def perform_shares(arguments: argparse.Namespace) -> int:
    """Prints what is shared."""
    rows = pool.rows(_service(), PATH + ("?everybody=true" if arguments.everybody else ""))
    if arguments.json:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    if not rows:
        sys.stdout.write("No notebook is shared; `forebay share` shares one.\n")
        return 0
    lines = [[str(row["id"]), row["name"], row["user"], time_of(row["shared_at_ns"]), time_of(row["expires_at_ns"])] for row in rows]
    sys.stdout.write(table.render(["Number", "Name", "Shared by", "Shared", "Until"], lines) + "\n")
    return 0


def perform_unshare(arguments: argparse.Namespace) -> int:
    """Takes it back."""
    _service().delete(f"{PATH}/{arguments.number}")
    sys.stdout.write(f"Notebook {arguments.number} is shared no longer: its link opens nothing any more.\n")
    return 0


def _service() -> Service:
    """Raises NotConfigured."""
    found = pool.remote()
    if found is None:
        ways = f"sign in with `forebay login`, or set {URL_VARIABLE} to your pool's address"
        raise NotConfigured(f"Notebooks are shared by a service: {ways}.")
    return found


def share(service: Service, notebook: Path, days: int = DAYS) -> dict[str, Any]:
    """Shares the notebook as it is saved; the pool's row, with the link's key. Raises ForebayError."""
    from forebay_wire.texts import name_of

    page = page_of(notebook)
    size = len(page.encode())
    if size > PAGE_BYTES_MAX:
        sizes = f"{size / 2**20:.1f} MiB as a page, and at most {PAGE_BYTES_MAX >> 20} MiB are shared"
        raise ForebayError(f"{notebook.name} has {sizes}: clear outputs that are large, save it, and share it again.")
    return pool.row(service, service.post(PATH, {"name": name_of(notebook.name), "page": page, "days": days}), "key")


def link_of(row: Row, environment: Mapping[str, str]) -> str:
    """The address of the page in the dashboards; of a hub that does not know its own, what follows the host's name."""
    hub = environment.get("JUPYTERHUB_PUBLIC_HUB_URL") or environment.get("JUPYTERHUB_BASE_URL", "/")
    return f"{hub.rstrip('/').removesuffix('/hub')}/services/dashboards/shared/{row['id']}?key={row['key']}"
