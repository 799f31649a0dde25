"""``python -m forebay_billing``: the service as a process."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from forebay_service import process
from forebay_service.errors import SettingsError

from forebay_billing.errors import BillingError
from forebay_billing.service import serve
from forebay_billing.settings import Settings

DESCRIPTION = "Forebay's billing service: price book, usage records, double-entry ledger and statements over HTTP."


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 after a clean stop, 2 where the settings or the database do not allow a start."""
    options = process.parser(Settings, DESCRIPTION).parse_args(arguments)
    return process.run(Settings.package, lambda: _main(options), (SettingsError, BillingError))


async def _main(options: argparse.Namespace) -> int:
    await serve(process.begin(Settings, options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
