"""``forebay admin``, which the command ``forebay`` finds by the entry-point group ``forebay.commands``."""

from __future__ import annotations

from forebay_admin import backup, billing, budgets, cluster, grafana, invoices, tenants
from forebay_admin.actions import Parsers
from forebay_admin.certificates import command as certificates
from forebay_admin.host import init, upgrade

DESCRIPTION = "What operators do. Needs a token with the scope custom:forebay:operate. Every action takes --json."


def add_to(commands: Parsers) -> None:
    """Adds the subcommand with its own."""
    command = commands.add_parser("admin", help="for operators: nodes, devices, quotas, queue and more", description=DESCRIPTION)
    things = command.add_subparsers(title="things", required=True, metavar="THING")
    for module in (cluster, invoices, backup, grafana, billing, budgets, tenants, certificates, init, upgrade):
        module.add_to(things)
