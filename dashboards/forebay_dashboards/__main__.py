"""``python -m forebay_dashboards``: the service as a process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from forebay_service.logs import log_to_stderr

from forebay_dashboards.errors import SettingsError
from forebay_dashboards.service import serve
from forebay_dashboards.settings import ENVIRONMENT_PREFIX, describe, load


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 after a clean stop, 2 where the settings do not allow a start."""
    options = _parser().parse_args(arguments)
    try:
        settings = load(options.config)
        log_to_stderr(settings.log_level)
        logging.getLogger("tornado.application").setLevel(max(logging.WARNING, logging.getLevelName(settings.log_level)))
        asyncio.run(serve(settings))
    except SettingsError as error:
        print(f"forebay-dashboards: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m forebay_dashboards",
        description="Forebay's web pages: my usage, the tenant's spend, and the operator's tables. A managed service of JupyterHub.",
        epilog=f"settings, in the file or as {ENVIRONMENT_PREFIX}<NAME> in the environment:\n{describe()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")
    return parser


if __name__ == "__main__":
    sys.exit(main())
