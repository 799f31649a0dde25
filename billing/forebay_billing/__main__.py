"""``python -m forebay_billing``: the service as a process."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys
from pathlib import Path

from forebay_service.logs import log_to_stderr

from forebay_billing.errors import BillingError, ConfigurationError
from forebay_billing.service import serve
from forebay_billing.settings import ENVIRONMENT_PREFIX, Settings, load_settings


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit status: 0 after a clean stop, 2 where the settings or the database do not allow a start."""
    options = _parser().parse_args(arguments)
    try:
        settings = load_settings(options.config, os.environ)
        log_to_stderr(settings.log_level)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        asyncio.run(serve(settings))
    except (ConfigurationError, BillingError) as error:
        print(f"forebay-billing: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    settings = "\n".join(f"  {name:18} {field.description} [{field.default or 'none'}]" for name, field in Settings.model_fields.items())
    parser = argparse.ArgumentParser(
        prog="python -m forebay_billing",
        description="Forebay's billing service: price book, usage records, double-entry ledger and statements over HTTP.",
        epilog=f"settings, each also as {ENVIRONMENT_PREFIX}<NAME> in the environment:\n{settings}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")
    return parser


if __name__ == "__main__":
    sys.exit(main())
