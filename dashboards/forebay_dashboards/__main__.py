"""``python -m forebay_dashboards``: the service as a process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from forebay_service import process
from forebay_service.errors import SettingsError

from forebay_dashboards.service import serve
from forebay_dashboards.settings import Settings

DESCRIPTION = "Forebay's web pages: my usage, the tenant's spend, and the operator's tables. A managed service of JupyterHub."


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 after a clean stop, 2 where the settings do not allow a start."""
    options = process.parser(Settings, DESCRIPTION).parse_args(arguments)
    return process.run(Settings.package, lambda: _main(options), (SettingsError,))


async def _main(options: argparse.Namespace) -> int:
    await serve(process.begin(Settings, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
