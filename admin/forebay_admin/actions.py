"""What the things of ``forebay admin`` have in common: parsers of actions, and answers as tables or JSON."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from urllib.parse import quote

from forebay.toolkit import table

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Parsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def things(parsers: Parsers, name: str, text: str) -> Parsers:
    """The parsers of the actions on a kind of thing."""
    command = parsers.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    return command.add_subparsers(title="actions", required=True, metavar="ACTION")


def action(actions: Parsers, name: str, perform: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
    """The parser of one action; ``perform`` gives the exit status."""
    made = actions.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    made.add_argument("--json", action="store_true", help="print the service's answer as JSON")
    made.set_defaults(perform=perform)
    return made


def show(arguments: argparse.Namespace, answer: Any, text: Callable[[], str]) -> int:
    """Prints the answer as it came, or the text made of it."""
    sys.stdout.write((json.dumps(answer, indent=2) if arguments.json else text()) + "\n")
    return 0


def cells(headers: Sequence[str], rows: Sequence[Sequence[object]], empty: str) -> str:
    """A table; dashes where there is nothing, and ``empty`` where there are no rows."""
    if not rows:
        return empty
    return table.render(headers, [["-" if cell in (None, "") else str(cell) for cell in row] for row in rows])


def part(text: str) -> str:
    """``text`` as one part of a path."""
    return quote(text, safe="")


def asked(path: str, query: Iterable[str]) -> str:
    """``path`` with the parts of a query, if there are any."""
    return f"{path}?{'&'.join(query)}".removesuffix("?")


def time_text(time_ns: int) -> str:
    """To the second, in UTC; what is valid from the beginning has no time."""
    return "always" if time_ns == 0 else f"{EPOCH + timedelta(seconds=time_ns // 10**9):%Y-%m-%d %H:%M:%S}"
