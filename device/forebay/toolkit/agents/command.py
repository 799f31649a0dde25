"""``forebay mcp``: a server of tools for agents."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from forebay.errors import ForebayError, NotConfigured
from forebay.service import TOKEN_VARIABLE

if TYPE_CHECKING:
    from forebay.client import Client

DESCRIPTION = f"""\
Serves tools to an agent by the Model Context Protocol, on standard input and output, or over HTTP: it runs code in kernels of your
environments, submits jobs, and asks prices and costs, as far as the token in {TOKEN_VARIABLE} allows. Kernels end with it. An agent's
program starts it for itself; with --http it is there before, and whoever asks shows that token.
"""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    command = commands.add_parser("mcp", help="serve tools to an agent (Model Context Protocol)", description=DESCRIPTION)
    command.add_argument("--http", metavar="[HOST:]PORT", help="serve over HTTP there, at /mcp, and print the address (0: a free port)")
    command.set_defaults(perform=perform)


def perform(arguments: argparse.Namespace) -> int:
    """Serves until standard input ends, or until it is told to end. Raises ForebayError."""
    try:
        from forebay.toolkit.agents.server import server_of
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        raise ForebayError(f"The package {package} is not here; `pip install 'forebay[mcp]'` brings what this needs.") from None
    server = server_of(own_client())
    if arguments.http is None:
        server.run("stdio")
    else:
        from forebay.toolkit.agents import web

        web.serve(server, arguments.http, os.environ[TOKEN_VARIABLE], lambda url: print(url, flush=True))
    return 0


def own_client() -> Client:
    """With the agent's own token, which may compute and no more. Raises ForebayError."""
    if not os.environ.get(TOKEN_VARIABLE):
        raise NotConfigured(f"Set {TOKEN_VARIABLE} to a token that you made for the agent; docs/users/agents.md tells how.")
    from forebay.client import Client, Forbidden

    client = Client()
    try:
        client.quotas()
    except Forbidden:
        pass
    else:
        raise ForebayError(f"The token in {TOKEN_VARIABLE} sees more than your own work; make one for the agent that may compute alone.")
    client.notice_preferences()  # refused to whom may not compute, with the sentence that says so
    return client
