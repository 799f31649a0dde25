"""``python -m forebay_edge``: the edge as a process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from forebay_service import process
from forebay_service.errors import SettingsError

from forebay_edge.service import serve
from forebay_edge.settings import Settings

DESCRIPTION = "Passes the bytes of programs outside on to their workers, by WebSockets through the hub's address. A service of JupyterHub."


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 after a clean stop, 2 where the settings do not allow a start."""
    options = process.parser(Settings, DESCRIPTION).parse_args(arguments)
    return process.run(Settings.package, lambda: _main(options), (SettingsError,))


async def _main(options: argparse.Namespace) -> int:
    await serve(process.begin(Settings, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
