"""``python -I -m forebay.toolkit.jobs``: what JupyterHub starts as the user, in place of a notebook server, for a job."""

from __future__ import annotations

import os
import sys

from forebay.errors import ForebayError
from forebay.toolkit.jobs.runner import Runner

if __name__ == "__main__":
    try:
        sys.exit(Runner(os.environ).run())
    except ForebayError as error:
        sys.exit(f"forebay: {error}")
